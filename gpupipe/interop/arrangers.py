"""User code that only arranges transforms, such as several views of an image, a preset or a wrapper."""

from __future__ import annotations

from typing import Any

from ..datasets.sample_form import leaves
from .isolation import Isolated
from .marks import marked_function
from .recording import Mark, StandIn, watched
from .same_names import UnsupportedError

__all__ = ["arranged"]


def arranged(t: Any) -> Any:
    """Return what ``t`` makes of an image: a :class:`StandIn` with the transforms that were applied, or containers of
    several. Return ``None`` if ``t`` holds no transforms and therefore is a function of the image.

    Raises :class:`UnsupportedError` if ``t`` holds transforms and also does something else.
    """
    if not marked_function(t, Mark)[1]:
        return None
    with Isolated(t) as isolated:
        other, _ = marked_function(isolated.made[0], Mark)
        first = _called(other)
        isolated.begin()
        second = _called(other)
        isolated.check()
    if _shape(first) != _shape(second):
        raise UnsupportedError("it does not always treat the transforms that it holds alike", "own-view")
    parts = list(leaves(first))
    if not parts or not all(isinstance(part, StandIn) for part in parts):
        raise UnsupportedError("it returns something other than images", "own-view")
    return first


def _called(other: Any) -> Any:
    before = dict(getattr(other, "__dict__", {}))
    made = watched(other, StandIn(None), "it", seed=1)
    now = getattr(other, "__dict__", {})
    if before.keys() != now.keys() or any(before[name] is not now[name] for name in before):
        raise UnsupportedError("it changes when it is called", "changes-itself")
    return made


def _shape(tree: Any) -> list[tuple[int, ...]]:
    return [tuple(map(id, part.steps)) if isinstance(part, StandIn) else () for part in leaves(tree)]
