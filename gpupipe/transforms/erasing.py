"""Random erasing, with torchvision's arguments, and with the counts and colours of timm's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError
from .base import F64, I64, Images, Transform, check_probability, items, resolves
from .geometry import below
from .ops import Erase, Op
from .ops.base import Mask
from .warp import seeds

__all__ = ["RandomErasing"]

_ATTEMPTS = 10


@dataclass(frozen=True, repr=False)
class RandomErasing(Transform):
    """With probability ``p`` overwrite a window (Zhong et al., *Random Erasing Data Augmentation*, 2020).

    Ten attempts draw an area uniform in ``scale``, as a share of the image, and a shape, height over width,
    log-uniform in ``ratio``. The first window that is smaller than the image is taken at a uniform place; if none is,
    nothing happens. ``value`` is a number, one for each channel, ``"random"``: normal noise (timm's mode "pixel"), or
    ``"color"``: one normal colour per window (timm's mode "rand"). With ``count`` (low, high) so many windows, each of
    a share of the area, as in timm.
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: Any = 0.0
    inplace: bool = False
    """Accepted for torchvision's sake: nobody else holds the tensor, so both values mean the same."""
    count: int | Sequence[int] = 1

    def __post_init__(self) -> None:
        for name, least, most in (("scale", 0.0, 1.0), ("ratio", 1e-9, np.inf)):
            bounds = items(getattr(self, name))
            if len(bounds) != 2 or not least <= bounds[0] <= bounds[1] <= most:
                limits = "0 <= low <= high <= 1" if name == "scale" else "0 < low <= high"
                raise ConfigError(f"RandomErasing: {name} must be (low, high) with {limits}, not {bounds!r}")
        value = self.value
        if isinstance(value, str):
            if value not in ("random", "color"):
                raise ConfigError(f'RandomErasing: value must be numbers, "random" or "color", not {value!r}')
        elif len(items(value)) not in (1, 3) or not all(isinstance(v, (int, float)) for v in items(value)):
            raise ConfigError(f'RandomErasing: value must be one or three numbers, "random" or "color", not {value!r}')
        else:
            value = tuple(float(v) for v in items(value))
        count = items(self.count)
        if len(count) not in (1, 2) or not all(isinstance(n, int) for n in count) or not 1 <= count[0] <= count[-1]:
            raise ConfigError(f"RandomErasing: count must be a positive integer or (low, high), not {self.count!r}")
        self.set(
            p=check_probability(self.p, "RandomErasing: p"),
            scale=tuple(float(v) for v in items(self.scale)),
            ratio=tuple(float(v) for v in items(self.ratio)),
            value=value,
            count=(count[0], count[-1]),
        )

    @property
    def draws(self) -> int:
        return 2 + self.count[1] * (2 * _ATTEMPTS + 3)  # type: ignore[index]

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        if images.kind != "tensor":
            raise self.refuse(
                "it erases tensors, and torchvision leaves PIL images as they are; put it after ToTensor()"
            )
        fixed = not isinstance(self.value, str)
        if not fixed and images.dtype == "uint8":
            raise self.refuse(
                "normal noise around zero means nothing in uint8; put it after ToTensor() or ToDtype(torch.float32)"
            )
        if fixed and len(self.value) not in (1, images.channels):
            raise self.refuse(f"{len(self.value)} values for an image of {images.channels} channel(s)")
        low, high = self.count  # type: ignore[misc]
        count = low + below(u[:, 1], high - low + 1)
        drawn, each = u[:, 0] < self.p, 2 * _ATTEMPTS + 3
        ops = []
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
                    value=self.value if fixed else None,
                    per_pixel=self.value != "color",
                )
            )
        return resolves(tuple(ops), images)

    def _window(self, v: F64, images: Images, count: I64) -> tuple[Mask, I64, I64, I64, I64]:
        """(whether there is one, top, left, height, width), each [B]."""
        h, w = images.height, images.width
        (low, high), (flat, steep) = self.scale, np.log(self.ratio)
        area = (h * w / count)[:, None] * (low + (high - low) * v[:, 3 : 3 + _ATTEMPTS])
        shape = np.exp(flat + (steep - flat) * v[:, 3 + _ATTEMPTS :])
        heights = np.rint(np.sqrt(area * shape)).astype(np.int64)
        widths = np.rint(np.sqrt(area / shape)).astype(np.int64)
        fits = (heights < h[:, None]) & (widths < w[:, None])
        rows, first = np.arange(len(v)), fits.argmax(axis=1)
        found = fits[rows, first]
        height, width = (np.where(found, n[rows, first], 0) for n in (heights, widths))
        top, left = (below(v[:, k], have - n + 1) for k, have, n in ((0, h, height), (1, w, width)))
        return found, top, left, height, width
