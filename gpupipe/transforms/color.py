"""Brightness, contrast, saturation and hue by chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from .base import F64, Images, Transform, resolves
from .ops import Brightness, Contrast, Hue, Op, Saturation

__all__ = ["ColorJitter"]

Range = tuple[float, float] | None


@dataclass(frozen=True, repr=False)
class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue, always in this order.

    torchvision shuffles the order anew for every image; a graph has one order. ``RandomOrder`` of four jitters with
    one argument each shuffles it here too.

    Args:
        brightness, contrast, saturation: the factor is uniform in ``[max(0, 1 - value), 1 + value]``, or in the
            (low, high) given; 1 changes nothing.
        hue: the part of the circle by which hues turn is uniform in ``[-value, value]`` of at most 0.5, or in the
            (low, high) given.

    ``None`` or 0 leaves that step out. Images of one channel have neither saturation nor hue. Tensors of a float type
    must be in 0..1.

    Raises:
        ConfigError: a number is negative, or a range is not increasing or outside of what is allowed.
    """

    DRAWS: ClassVar[int] = 4  # also where a step is left out, so that the others keep their numbers

    brightness: float | Sequence[float] | None = None
    contrast: float | Sequence[float] | None = None
    saturation: float | Sequence[float] | None = None
    hue: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        around_one = {name: _range(getattr(self, name), name) for name in ("brightness", "contrast", "saturation")}
        self.set(**around_one, hue=_range(self.hue, "hue", center=0.0, bounds=(-0.5, 0.5)))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        steps: list[tuple[Any, Any]] = [(Brightness, self.brightness), (Contrast, self.contrast)]
        if images.channels == 3:
            steps += [(Saturation, self.saturation), (Hue, self.hue)]
        mask = np.ones(len(u), np.bool_)
        return resolves(
            tuple(
                op(mask, low_high[0] + (low_high[1] - low_high[0]) * u[:, k], kind=images.kind, always=True)
                for k, (op, low_high) in enumerate(steps)
                if low_high is not None
            ),
            images,
        )


def _range(value: Any, name: str, center: float = 1.0, bounds: tuple[float, float] = (0.0, np.inf)) -> Range:
    """(low, high) of an argument, ``None`` where it changes nothing."""
    if value is None:
        return None
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        if not value >= 0:
            raise ConfigError(f"ColorJitter: {name} as one number must not be negative, but is {value!r}")
        low, high = float(center - value), float(center + value)
        if center:
            low = max(low, 0.0)
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        low, high = float(value[0]), float(value[1])
    else:
        raise ConfigError(f"ColorJitter: {name} must be one number or a pair (low, high), not {value!r}")
    if not bounds[0] <= low <= high <= bounds[1]:
        raise ConfigError(
            f"ColorJitter: {name}={value!r} means the range {low:g} to {high:g}, which must be increasing and within "
            f"{bounds[0]:g} to {bounds[1]:g}"
        )
    return None if low == high == center else (low, high)
