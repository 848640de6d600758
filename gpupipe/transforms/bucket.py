"""Sizes that models with variable input want: the shape of a batch, or whole patches within a budget."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from ..errors import ConfigError
from . import fields
from .fields import Converted, Flag, Interpolation, frozen
from .numbers import below, filled, i32
from .ops import Crop
from .ops.op import F64, I64
from .resize import resized
from .transform import Images, Ops, Transform

__all__ = ["ResizeToBucket", "ResizeToPatches", "SmartResize"]


@frozen
class ResizeToBucket(Transform):
    """Bring every image to the shape of its batch: resize it until it covers the shape, and crop what stands out.

    The shape comes from the loader's sampler, :class:`gpupipe.samplers.AspectRatioBuckets` or
    :class:`~gpupipe.samplers.RandomShapes`. The aspect ratio is kept: both edges are multiplied by the larger of the
    two factors and rounded to the nearest integer.

    Args:
        crop: ``"center"``, whose offset is ``round((edge - size) / 2)`` as in :class:`CenterCrop`, or ``"random"``.
        interpolation, antialias: as in :class:`Resize`.

    Raises:
        PipelineError: the batch has no shape, because its sampler gives none.

    >>> ResizeToBucket(crop="random")
    ResizeToBucket(crop='random', interpolation='bilinear', antialias=True)
    """

    DRAWS: ClassVar[int] = 2
    sizes_vary = True

    crop: Literal["center", "random"] = "center"
    interpolation: Interpolation = Converted(fields.interpolation, default="bilinear")
    antialias: Flag = Converted(fields.antialias, default=True)

    def __post_init__(self) -> None:
        if self.crop not in ("center", "random"):
            raise ConfigError(f'ResizeToBucket: crop must be "center" or "random", not {self.crop!r}')

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if images.batch_shape is None:
            raise self.refuse(
                "no shape is known, because it belongs to a batch: load the images with DataLoader(dataset, "
                "sampler=gpupipe.samplers.AspectRatioBuckets(shapes))"
            )
        want = images.batch_shape
        scale = np.maximum(want[0] / images.height, want[1] / images.width)
        edges = [
            # Rounding must not leave an edge shorter than the shape.
            np.maximum((have * scale + 0.5).astype(np.int64), size)
            for have, size in zip((images.height, images.width), want, strict=True)
        ]
        start = []
        for axis, (edge, size) in enumerate(zip(edges, want, strict=True)):
            random = below(u[:, axis], edge - size + 1)
            start.append(np.rint((edge - size) / 2.0).astype(np.int64) if self.crop == "center" else random)
        height, width = (filled(len(images.sizes), size) for size in want)
        window = Crop(i32(start[0]), i32(start[1]), i32(height), i32(width))
        return (*resized(self, images, edges[0], edges[1]), window), images.sized(height, width)


@frozen
class SmartResize(Transform):
    """Resize to multiples of ``factor``, with ``min_pixels`` to ``max_pixels`` pixels, as Qwen2-VL does.

    The aspect ratio is kept as well as multiples of ``factor`` allow. The formula is ``smart_resize`` of Qwen2-VL
    (Wang et al., *Qwen2-VL*, 2024).

    Args:
        factor: both sides become multiples of it.
        min_pixels: smallest area in pixels.
        max_pixels: largest area in pixels.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        antialias: ``False`` shrinks tensors without a filter. PIL images are always filtered.

    >>> SmartResize(max_pixels=1280 * 28 * 28).tokens(480, 640)
    array(391)
    """

    factor: int = 28
    min_pixels: int = 56 * 56
    max_pixels: int = 14 * 14 * 4 * 1280
    interpolation: Interpolation = Converted(fields.interpolation, default="bicubic")
    antialias: Flag = Converted(fields.antialias, default=True)

    def __post_init__(self) -> None:
        values = self.factor, self.min_pixels, self.max_pixels
        if not all(isinstance(n, int) and n > 0 for n in values) or self.min_pixels > self.max_pixels:
            raise ConfigError(
                "SmartResize: factor, min_pixels and max_pixels must be positive integers with min_pixels <= "
                f"max_pixels, not {values}"
            )

    def size_of(self, height: Any, width: Any) -> tuple[I64, I64]:
        """Return the heights and widths i64[B] of images of these heights and widths."""
        h, w = np.asarray(height, np.float64), np.asarray(width, np.float64)
        f = self.factor
        # Python rounds halves to even, as numpy does.
        new = [np.maximum(np.rint(edge / f) * f, f) for edge in (h, w)]
        area = new[0] * new[1]
        shrink, grow = np.sqrt(h * w / self.max_pixels), np.sqrt(self.min_pixels / (h * w))
        # Rounding down keeps a large image within max_pixels, rounding up a small one above min_pixels.
        smaller = [np.maximum(np.floor(edge / shrink / f) * f, f) for edge in (h, w)]
        larger = [np.ceil(edge * grow / f) * f for edge in (h, w)]
        large, small = area > self.max_pixels, area < self.min_pixels
        height, width = (
            np.where(large, less, np.where(small, more, as_is)).astype(np.int64)
            for less, more, as_is in zip(smaller, larger, new, strict=True)
        )
        return height, width

    def tokens(self, height: Any, width: Any) -> I64:
        """Return the tokens i64[B] of images of these heights and widths: squares of ``factor`` pixels."""
        height, width = self.size_of(height, width)
        return np.asarray(height // self.factor * (width // self.factor))

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        height, width = self.size_of(images.height, images.width)
        return resized(self, images, height, width), images.sized(height, width)


@frozen
class ResizeToPatches(Transform):
    """Resize to whole patches, as many as ``max_patches`` allows, keeping the aspect ratio, as NaFlex models take them.

    The scale is found by the bisection of timm's ``get_image_size_for_seq`` (Tschannen et al., *SigLIP 2*, 2025). Edges
    are rounded up to whole patches.

    Args:
        patch_size: side of a patch in pixels.
        max_patches: largest number of patches of an image.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        antialias: ``False`` shrinks tensors without a filter. PIL images are always filtered.

    >>> ResizeToPatches(16, 256).tokens(480, 640)
    array(252)
    """

    patch_size: int = 16
    max_patches: int = 1024
    interpolation: Interpolation = Converted(fields.interpolation, default="bicubic")
    antialias: Flag = Converted(fields.antialias, default=True)

    def __post_init__(self) -> None:
        values = self.patch_size, self.max_patches
        if not all(isinstance(n, int) and n > 0 for n in values):
            raise ConfigError(f"ResizeToPatches: patch_size and max_patches must be positive integers, not {values}")

    def size_of(self, height: Any, width: Any) -> tuple[I64, I64]:
        """Return the heights and widths i64[B] of images of these heights and widths."""
        h, w = np.asarray(height, np.float64), np.asarray(width, np.float64)
        # The precision and both bounds are timm's, so that the bisection ends at the same scale.
        eps = 1e-5
        low, high = np.full(np.broadcast(h, w).shape, eps / 10), np.full(np.broadcast(h, w).shape, 100.0)
        while (high - low >= eps).any():
            # An image whose bisection has ended keeps its scale, as if each had a loop of its own.
            going = high - low >= eps
            mid = (low + high) / 2
            rows, columns = self._patches(h, mid), self._patches(w, mid)
            fits = rows * columns <= self.max_patches
            low, high = np.where(going & fits, mid, low), np.where(going & ~fits, mid, high)
        # The lower bound is the largest scale that is known to fit.
        height, width = (self._patches(edge, low) * self.patch_size for edge in (h, w))
        return height, width

    def _patches(self, edge: F64, scale: F64) -> I64:
        return np.maximum(np.ceil(edge * scale / self.patch_size).astype(np.int64), 1)

    def tokens(self, height: Any, width: Any) -> I64:
        """Return the patches i64[B] of images of these heights and widths."""
        height, width = self.size_of(height, width)
        return np.asarray(height // self.patch_size * (width // self.patch_size))

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        height, width = self.size_of(images.height, images.width)
        return resized(self, images, height, width), images.sized(height, width)
