"""What can be read off the code of Python functions."""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from types import CellType, CodeType
from typing import Any

__all__ = ["assigns_outside", "codes_of", "global_names", "is_full", "is_installed", "own_classes"]

_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


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


def is_installed(file: str | None) -> bool:
    """Whether a file with code belongs to Python or an installed package, rather than to the script."""
    return file is None or file.startswith(_LIBRARIES)


def own_classes(value: Any) -> Iterator[type]:
    """The classes of an object that the script wrote."""
    return (cls for cls in type(value).__mro__ if _is_own(cls))


def _is_own(cls: type) -> bool:
    return not is_installed(getattr(sys.modules.get(cls.__module__), "__file__", None))
