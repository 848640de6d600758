"""The random changes of color of SSD."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from . import fields, ops
from .color import Bounds, Strength, factor_range, hue_range
from .fields import Converted, Probability, frozen
from .numbers import between, by_chance
from .ops.op import F64, Mask
from .orders import random_order
from .transform import Images, Ops, Transform

__all__ = ["RandomPhotometricDistort"]


@frozen
class RandomPhotometricDistort(Transform):
    """Change brightness, contrast, saturation, hue and the order of channels, each with probability ``p`` (Liu et al.,
    *SSD: Single Shot MultiBox Detector*, 2016).

    Contrast changes before saturation and hue, or after them, with equal probability.

    Args:
        brightness, contrast, saturation: the factor is uniform in (low, high). A factor of 1 changes nothing.
        hue: hues turn by a fraction of the circle that is uniform in (low, high).
        p: probability of each step.

    Images of one channel skip saturation, hue and the order of channels.

    Raises:
        ConfigError: a range is not increasing or exceeds the limits.

    >>> RandomPhotometricDistort().hue
    (-0.05, 0.05)
    """

    # Two for each of four steps, one for contrast's place, one for whether channels move, three for their order.
    DRAWS: ClassVar[int] = 13

    brightness: Strength = Converted(factor_range, default=(0.875, 1.125))
    contrast: Strength = Converted(factor_range, default=(0.5, 1.5))
    saturation: Strength = Converted(factor_range, default=(0.5, 1.5))
    hue: Strength = Converted(hue_range, default=(-0.05, 0.05))
    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        color, first = images.channels == 3, u[:, 8] < 0.5

        def step(kind: Any, number: int, bounds: Bounds, within: Mask | None = None) -> Ops:
            """Return a step that uses two numbers: whether it is drawn, and its factor."""
            if bounds is None or self.p == 0:
                return ()
            mask, always = by_chance(u[:, 2 * number], self.p)
            # Only about half of the images take contrast at this place.
            mask, always = (mask, always) if within is None else (mask & within, False)
            return (kind(mask, between(u[:, 2 * number + 1], *bounds), kind=images.kind, always=always),)

        # Contrast is there twice, with the same numbers; an image takes at most one of the two.
        steps = [
            step(ops.Brightness, 0, self.brightness),
            step(ops.Contrast, 1, self.contrast, first),
            step(ops.Saturation, 2, self.saturation) if color else (),
            step(ops.Hue, 3, self.hue) if color else (),
            step(ops.Contrast, 1, self.contrast, ~first),
        ]
        if color and self.p:
            mask, always = by_chance(u[:, 9], self.p)
            order = random_order(u[:, 10:]).astype(np.int32)
            steps.append((ops.ChannelPermutation(mask, order, always=always),))
        return tuple(op for found in steps for op in found), images
