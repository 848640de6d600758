"""What can be read off the code of Python functions."""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePath
from types import CellType, CodeType

__all__ = ["assigns_outside", "codes_of", "global_names", "is_full", "is_installed", "own_classes"]

_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_PACKAGES = {"site-packages", "dist-packages"}
"""Folders of packages, also of those installed for one user, and by an environment that another one builds on."""


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of the functions that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


@lru_cache(maxsize=4096)
def global_names(code: CodeType) -> frozenset[str]:
    """The global variables that a function names. An attribute of the same name does not count."""
    steps = dis.get_instructions(code)
    return frozenset(str(step.argval) for step in steps if step.opname.endswith(("_GLOBAL", "_NAME")))


@lru_cache(maxsize=4096)
def assigns_outside(code: CodeType) -> bool:
    """Whether a function assigns to variables outside of it."""
    free = set(code.co_freevars)
    return any(
        step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
        or (step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in free)
        for part in codes_of(code)
        for step in dis.get_instructions(part)
    )


def is_full(cell: CellType) -> bool:
    """Whether an enclosed variable has a value yet."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


@lru_cache(maxsize=4096)
def is_installed(file: str | None) -> bool:
    """Whether a file with code belongs to Python or an installed package, rather than to the script."""
    return file is None or file.startswith(_LIBRARIES) or not _PACKAGES.isdisjoint(PurePath(file).parts)


def own_classes(kind: type) -> Iterator[type]:
    """A class and those that it inherits from, as far as the script wrote them."""
    return (cls for cls in kind.__mro__ if _is_own(cls))


def _is_own(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    if module is None or cls.__module__ == "__main__":  # of a notebook it has no file
        return True
    return not is_installed(getattr(module, "__file__", None))
