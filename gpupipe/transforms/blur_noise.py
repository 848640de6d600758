"""Blur and noise, with torchvision's arguments and distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import ConfigError
from .base import F64, Images, Transform, items, pair, resolves
from .ops import Blur, Noise, Op
from .warp import seeds

__all__ = ["GaussianBlur", "GaussianNoise"]


@dataclass(frozen=True, repr=False)
class GaussianBlur(Transform):
    """Blur by a Gaussian of a deviation uniform in ``sigma`` (low, high), cut off at ``kernel_size``: one odd number,
    or one for x and one for y."""

    DRAWS: ClassVar[int] = 1

    kernel_size: int | Sequence[int]
    sigma: float | Sequence[float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        size = pair(self.kernel_size, "GaussianBlur: kernel_size")
        if not all(n % 2 for n in size):
            raise ConfigError(f"GaussianBlur: kernel_size must be odd, not {self.kernel_size!r}")
        sigma = items(self.sigma)
        if len(sigma) not in (1, 2) or not 0 < sigma[0] <= sigma[-1]:
            raise ConfigError(
                f"GaussianBlur: sigma must be a positive number or (low, high) with 0 < low <= high, not {self.sigma!r}"
            )
        self.set(kernel_size=size, sigma=(float(sigma[0]), float(sigma[-1])))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        assert isinstance(self.kernel_size, tuple) and isinstance(self.sigma, tuple)
        small = (images.width <= self.kernel_size[0] // 2) | (images.height <= self.kernel_size[1] // 2)
        if small.any():
            h, w = images.sizes[int(np.argmax(small))]
            raise self.refuse(
                f"an image of {h}x{w} pixels is too small to reflect half the kernel at its edges; "
                "use a smaller kernel_size, or put a Resize before it"
            )
        low, high = self.sigma
        op = Blur(
            np.ones(len(u), np.bool_),
            low + (high - low) * u[:, 0],
            kernel_size=self.kernel_size,
            kind=images.kind,
            always=True,
        )
        return resolves((op,), images)


@dataclass(frozen=True, repr=False)
class GaussianNoise(Transform):
    """Add normal noise to every value of a tensor; ``mean`` and ``sigma`` are shares of the range of values."""

    DRAWS: ClassVar[int] = 1

    mean: float = 0.0
    sigma: float = 0.1
    clip: bool = True

    def __post_init__(self) -> None:
        for name in ("mean", "sigma"):
            if not isinstance(getattr(self, name), (int, float)):
                raise ConfigError(f"GaussianNoise: {name} must be a number, not {getattr(self, name)!r}")
        if self.sigma < 0:
            raise ConfigError(f"GaussianNoise: sigma must not be negative, not {self.sigma!r}")
        self.set(mean=float(self.mean), sigma=float(self.sigma), clip=bool(self.clip))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        if images.kind != "tensor":
            raise self.refuse("torchvision adds noise to tensors only; put ToTensor() or ToImage() before it")
        noise = Noise(
            np.ones(len(u), np.bool_), seeds(u[:, 0]), mean=self.mean, sigma=self.sigma, clip=self.clip, always=True
        )
        return resolves((noise,), images)
