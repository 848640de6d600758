"""The general rule of translation: equal class names, equal field names.

torchvision's ``RandomInvert`` becomes gpupipe's, with each field read from the attribute of the same name. A field that
the two libraries store differently has a converter here. Only transforms that this rule does not reproduce have a
function of their own, in :mod:`.transforms` and :mod:`.timm`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ..transforms import Transform

PIL_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


class UnsupportedError(Exception):
    """A transform or one of its arguments has no counterpart in gpupipe, for a reason that is a sentence about "it"."""


def interpolation(value: Any) -> Any:
    """Return the name of an interpolation given as torchvision's enum, as a name or as PIL's number; for several, their
    names."""
    if isinstance(value, (tuple, list)):
        return tuple(map(interpolation, value))
    value = getattr(value, "value", value)
    return PIL_FILTERS.get(value, str(value)) if isinstance(value, int) else str(value)


def _fill(value: Any) -> Any:
    """Return ``None``, a number or three numbers."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if value is not None and not all(isinstance(v, (int, float)) for v in values):
        raise UnsupportedError(f"it has fill={value!r}, and fill can be one number or three")
    return tuple(values) if isinstance(value, list) else value


def _value(value: Any) -> Any:
    """Convert the value of erased windows. torchvision's v2 stores ``None`` for "random"."""
    return "random" if value is None else value


CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "antialias": bool,  # None means False for tensors and has no effect on PIL images
    "fill": _fill,
    "interpolation": interpolation,
    "value": _value,
}
"""Converters by the name of a field, from torchvision's values to gpupipe's."""


def same_names(t: Any, theirs: type, ours: type[Transform], **given: Any) -> Transform:
    """Make a transform ``ours`` with the fields of ``t``.

    Args:
        t: an instance of ``theirs``.
        given: values of fields that are not read from ``t``.

    Raises :class:`UnsupportedError` if ``theirs`` takes a parameter that ``ours`` does not have, because its effect is
    unknown.
    """
    known = {f.name for f in fields(ours)}
    unknown = [name for name in inspect.signature(theirs).parameters if name not in known]
    if unknown:
        raise UnsupportedError(f"gpupipe's {ours.__name__} does not have {' and '.join(unknown)}")
    # A field that this release of the library lacks keeps gpupipe's default.
    read = {name: getattr(t, name) for name in known - given.keys() if hasattr(t, name)}
    return ours(**given, **{name: CONVERTERS.get(name, lambda value: value)(value) for name, value in read.items()})
