"""Facts about Python functions, read from their code objects."""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePath
from types import CellType, CodeType

_HERE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
# In a checkout, gpupipe itself lies outside of the folders of packages. Its code is not the script's there either.
_LIBRARIES = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), _HERE)
_PACKAGES = {"site-packages", "dist-packages"}
"""Folders of installed packages, including those of one user and those of an environment below a virtual one."""


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Iterate over the code of a function and of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


@lru_cache(maxsize=4096)
def global_names(code: CodeType) -> frozenset[str]:
    """Return the global variables that a function names. An attribute with the same name does not count."""
    steps = dis.get_instructions(code)
    return frozenset(str(step.argval) for step in steps if step.opname.endswith(("_GLOBAL", "_NAME")))


@lru_cache(maxsize=4096)
def assigns_outside(code: CodeType) -> bool:
    """Tell whether a function assigns to variables outside of it."""
    # A nested function may also assign to a variable of this function itself, which is not outside.
    free = set(code.co_freevars)
    return any(
        step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
        or (step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in free)
        for part in codes_of(code)
        for step in dis.get_instructions(part)
    )


def is_full(cell: CellType) -> bool:
    """Tell whether an enclosed variable has a value yet."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


@lru_cache(maxsize=4096)
def is_installed(file: str | None) -> bool:
    """Tell whether a file with code belongs to Python or an installed package rather than to the script."""
    # A module without a file is built into Python.
    return file is None or file.startswith(_LIBRARIES) or not _PACKAGES.isdisjoint(PurePath(file).parts)


def own_classes(kind: type) -> Iterator[type]:
    """Iterate over a class and its base classes, as far as the script wrote them."""
    return (cls for cls in kind.__mro__ if _is_own(cls))


@lru_cache(maxsize=4096)
def _is_own(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    if module is None or cls.__module__ == "__main__":  # in a notebook it has no file
        return True
    return not is_installed(getattr(module, "__file__", None))
