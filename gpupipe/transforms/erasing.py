"""Random erasing with torchvision's arguments, plus timm's window counts and colors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..errors import ConfigError
from . import fields
from .fields import Color, Converted, Probability, Range, frozen, is_integer, items
from .numbers import below, seeds
from .ops import Erase
from .ops.op import F64, I64, Mask
from .transform import Images, Ops, Transform

__all__ = ["RandomErasing"]

_ATTEMPTS = 10


def _value(value: Any, what: str) -> str | Color:
    if isinstance(value, str):
        if value not in ("random", "color"):
            raise ConfigError(f'{what} must be numbers, "random" or "color", not {value!r}')
        return value
    return fields.color(value, what)


def _count(value: int | Sequence[int], what: str) -> tuple[int, int]:
    count = items(value)
    if len(count) not in (1, 2) or not all(map(is_integer, count)) or not 1 <= count[0] <= count[-1]:
        raise ConfigError(f"{what} must be a positive integer or (low, high), not {value!r}")
    return int(count[0]), int(count[-1])


@frozen
class RandomErasing(Transform):
    """Overwrite a window of a tensor with probability ``p`` (Zhong et al., *Random Erasing Data Augmentation*, 2020).

    Each of ten attempts draws an area uniform in ``scale``, as a share of the image, and an aspect ratio (height over
    width) log-uniform in ``ratio``. The first window smaller than the image is placed uniformly; if no window is, the
    image stays as it is.

    Args:
        p: probability of erasing.
        scale: (low, high) share of the image's area.
        ratio: (low, high) height over width.
        value: a number, one number per channel, ``"random"`` for normal noise (timm's mode "pixel"), or ``"color"`` for
            one normal color per window (timm's mode "rand").
        inplace: accepted for compatibility with torchvision; it has no effect on the result.
        count: number of windows, or (low, high). Each window gets an equal part of the area, as in timm.

    >>> RandomErasing(0.25, value="random").value
    'random'
    """

    p: Probability = Converted(fields.probability, default=0.5)
    scale: Range = Converted(fields.interval(0, 1), default=(0.02, 0.33))
    ratio: Range = Converted(fields.interval(1e-9), default=(0.3, 3.3))
    value: Converted[float | Sequence[float] | Literal["random", "color"], str | Color] = Converted(_value, default=0.0)
    inplace: bool = False
    count: Converted[int | Sequence[int], tuple[int, int]] = Converted(_count, default=1)

    @property
    def draws(self) -> int:
        # Chance and count; for each window two numbers for its place, a seed, ten areas and ten ratios.
        return 2 + self.count[1] * (2 * _ATTEMPTS + 3)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if images.kind != "tensor":
            raise self.refuse(
                "it erases tensors only, and torchvision ignores it on PIL images; put it after ToTensor()"
            )
        color = None if isinstance(self.value, str) else self.value
        if color is None and images.dtype == "uint8":
            raise self.refuse(
                "uint8 cannot hold normal noise around zero; put it after ToTensor() or ToDtype(torch.float32)"
            )
        if color is not None and len(color) not in (1, images.channels):
            raise self.refuse(f"{len(color)} values for an image of {images.channels} channel(s)")
        low, high = self.count
        count = low + below(u[:, 1], high - low + 1)
        drawn, each = u[:, 0] < self.p, 2 * _ATTEMPTS + 3
        ops = []
        # The sequence of ops is the same for all images: as many windows as any image may have, each with a mask.
        for k in range(high):
            v = u[:, 2 + k * each : 2 + (k + 1) * each]
            fits, *window = self._window(v, images, count)
            top, left, height, width = (n.astype(np.int32) for n in window)
            ops.append(
                Erase(
                    drawn & fits & (k < count),
                    top,
                    left,
                    height,
                    width,
                    seeds(v[:, 2]),
                    value=color,
                    per_pixel=self.value != "color",
                )
            )
        return tuple(ops), images

    def _window(self, v: F64, images: Images, count: I64) -> tuple[Mask, I64, I64, I64, I64]:
        """Return (found, top, left, height, width) of the window, each [B]."""
        h, w = images.height, images.width
        (low, high), (flat, steep) = self.scale, np.log(self.ratio)
        # As in RandomResizedCrop, area * ratio is the square of one side, and area / ratio that of the other.
        area = (h * w / count)[:, None] * (low + (high - low) * v[:, 3 : 3 + _ATTEMPTS])
        shape = np.exp(flat + (steep - flat) * v[:, 3 + _ATTEMPTS :])
        heights = np.rint(np.sqrt(area * shape)).astype(np.int64)
        widths = np.rint(np.sqrt(area / shape)).astype(np.int64)
        fits = (heights < h[:, None]) & (widths < w[:, None])
        rows, first = np.arange(len(v)), fits.argmax(axis=1)
        found = fits[rows, first]
        # If no window fits, one without pixels stands in, and the mask excludes it.
        height, width = (np.where(found, n[rows, first], 0) for n in (heights, widths))
        top, left = (below(v[:, k], have - n + 1) for k, have, n in ((0, h, height), (1, w, width)))
        return found, top, left, height, width
