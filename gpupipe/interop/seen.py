"""Changes that the code of a script's dataset makes to itself in a sample that trials did not show."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from .marks import is_transform
from .pending import PendingImage, PendingTensor, settled_part
from .standing import Standing

_DEEP, _FEW = 6, 64
_MISSING = object()
_VALUES = (bool, int, float, str, bytes)


class Seen:
    """Attributes of the copies that a dataset's code runs on, and of the transforms that it holds.

    Args:
        copied: (copy, original) of the dataset and of the objects in it.
        held: the transforms.
    """

    def __init__(self, copied: list[tuple[Any, Any]], held: list[Any]):
        self._held = held
        self.transforms_changed = False
        """Whether the dataset holds other transforms than those that were translated."""
        self._copied = [(vars(one), vars(other)) for one, other in copied]
        self._before = [dict(one) for one, _ in self._copied]
        self._originals = [dict(other) for _, other in self._copied]
        self._parts = list(_parts(held))
        # Views show what is in the parts at any time.
        self._views = [view for part, _ in self._parts for view in _views(part)]
        self._values = [*chain.from_iterable(self._views)]

    def undo(self) -> bool:
        """Return whether the code has changed a transform. Takes that back, because the code will do it again."""
        if not self._transforms_differ():
            return False
        for part, was in self._parts:
            part.clear()
            part.update(was) if isinstance(part, dict) else part.extend(was)
        return True

    def pass_on(self) -> None:
        """Set in the originals what the code has set in the copies."""
        for number, ((one, other), before) in enumerate(zip(self._copied, self._before, strict=True)):
            if _same(one, before):
                continue
            for name in before.keys() - one.keys():
                other.pop(name, None)
            other |= {name: _real(value) for name, value in one.items() if before.get(name, _MISSING) is not value}
            self._before[number], self._originals[number] = dict(one), dict(other)

    def is_outdated(self) -> bool:
        """Return whether the copies no longer stand for the originals, after these have made a sample."""
        self.transforms_changed |= self._transforms_differ()
        originals = (other for _, other in self._copied)
        same = all(map(_same, (one for one, _ in self._copied), self._before))
        return not same or not all(map(_same, originals, self._originals))

    def follow(self, earlier: Seen) -> None:
        """Take over what was found out with earlier copies."""
        same = len(self._held) == len(earlier._held) and all(map(operator.is_, self._held, earlier._held))
        self.transforms_changed = earlier.transforms_changed or not same

    def _transforms_differ(self) -> bool:
        # Usually nothing has changed, and this runs in C.
        now = [*chain.from_iterable(self._views)]
        if len(now) == len(self._values) and all(map(operator.is_, now, self._values)):
            return False
        return not all(_same(part, was) for part, was in self._parts)


def _views(part: Any) -> list[Iterable[Any]]:
    return [part.keys(), part.values()] if isinstance(part, dict) else [part]


def _same(now: Any, before: Any) -> bool:
    """Return whether two dictionaries or lists hold the same."""
    if len(now) != len(before):
        return False
    if isinstance(now, list):
        return all(map(operator.is_, now, before))
    if all(map(operator.is_, now.values(), before.values())) and all(map(operator.is_, now, before)):
        return True  # runs in C
    return all(_is_equal(value, before.get(name, _MISSING)) for name, value in now.items())


def _is_equal(value: Any, before: Any) -> bool:
    return value is before or (type(value) in _VALUES and type(before) is type(value) and bool(value == before))


def _real(value: Any) -> Any:
    """Return what the original holds in place of a value in the copy."""
    if isinstance(value, Standing):
        return vars(value)["_transform"]
    return settled_part(value) if isinstance(value, (PendingTensor, PendingImage)) else value


def _parts(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Iterate over (dictionary or list, copy of it) of everything that transforms of libraries consist of. The script's
    own functions run anyway, and may keep what they have built."""
    is_container = isinstance(value, (dict, list, tuple))
    part = value if is_container else vars(value) if is_transform(value) and hasattr(value, "__dict__") else ()
    if depth > _DEEP or not 0 < len(part) <= _FEW:
        return
    if depth and isinstance(part, (dict, list)):
        yield part, part.copy()
    inner: Iterable[Any] = part.values() if isinstance(part, dict) else part
    for one in inner:
        if type(one) not in _VALUES:
            yield from _parts(one, depth + 1)
