"""The one rule of translation: same class name, same field names.

torchvision's ``RandomInvert`` becomes gpupipe's, with each of its fields read from the attribute of the same name. What
the two keep in another form has a converter here, by the name of the field. Only what this rule does not reproduce has
a function of its own, in :mod:`.transforms` and :mod:`.timm`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ..transforms import Transform

__all__ = ["PIL_FILTERS", "Refused", "interpolation", "same_names"]

PIL_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


class Refused(Exception):
    """A transform, one of its parameters, or a dataset that has no form here.

    Args:
        why: a sentence about it.
        code: of the reason, in :data:`gpupipe.reasons.ADVICE`.
    """

    def __init__(self, why: str, code: str = "other"):
        super().__init__(why)
        self.code = code


def interpolation(value: Any) -> Any:
    """The name of an interpolation that was given as torchvision's enum, as a name, or as PIL's number; the names of
    several."""
    if isinstance(value, (tuple, list)):
        return tuple(map(interpolation, value))
    value = getattr(value, "value", value)
    return PIL_FILTERS.get(value, str(value)) if isinstance(value, int) else str(value)


def _fill(value: Any) -> Any:
    """``None``, a number or three."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if value is not None and not all(isinstance(v, (int, float)) for v in values):
        raise Refused(f"fill={value!r}; it can be a number or three", "transform-argument")
    return tuple(values) if isinstance(value, list) else value


def _value(value: Any) -> Any:
    """Of erased windows: the second generation stores ``None`` for "random"."""
    return "random" if value is None else value


CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "antialias": bool,  # None means no for tensors; for PIL images it makes no difference
    "fill": _fill,
    "interpolation": interpolation,
    "value": _value,
}
"""By the name of a field: what torch's world keeps there, as ours takes it."""


def same_names(t: Any, theirs: type, ours: type[Transform], **given: Any) -> Transform:
    """``ours`` with each of its fields as ``t`` has it.

    Args:
        t: an instance of ``theirs``, or of a subclass that changes nothing.
        given: fields that are not to be read.

    Raises :class:`Refused` if ``theirs`` takes a parameter that ``ours`` has not: what it does could not be told.
    """
    known = {f.name for f in fields(ours)}
    unknown = [name for name in inspect.signature(theirs).parameters if name not in known]
    if unknown:
        raise Refused(f"gpupipe's {ours.__name__} has no {' and no '.join(unknown)}", "transform-argument")
    read = {name: getattr(t, name) for name in known - given.keys() if hasattr(t, name)}
    return ours(**given, **{name: CONVERTERS.get(name, lambda value: value)(value) for name, value in read.items()})
