"""``Arrays``: images stored as pixels, in memory or memory-mapped."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from ..errors import DatasetError
from ..targets import as_labels
from ..transforms.compose import Transforms, as_compose
from .dataset import Batches, Dataset, Sample

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = 256
_VALUES = 4_096


class Arrays(Dataset[Sample, Batches]):
    """Pixels in memory or memory-mapped: images of one size in one array.

    Args:
        images: u8[N, H, W, C] with C = 1 or 3, or u8[N, H, W]: a numpy array, a ``np.memmap``, or a torch tensor on the
            CPU. It is not copied.
        labels: int[N], or ``None``.
        transform: a gpupipe ``Compose``, the transforms for one, or transforms of torchvision.

    Raises:
        DatasetError: dtype or shape are wrong, there are no pixels, or the labels do not match.

    >>> Arrays(np.zeros((4, 8, 8, 3), np.uint8), [3, 1, 4, 1])
    Arrays(uint8[4, 8, 8, 3])
    """

    kind = "pixels"

    @overload
    def __init__(
        self: Arrays[tuple[Any, None], Tensor], images: Any, labels: None = None, *, transform: Transforms = ...
    ) -> None: ...
    @overload
    def __init__(
        self: Arrays[tuple[Any, int], tuple[Tensor, Tensor]], images: Any, labels: Any, *, transform: Transforms = ...
    ) -> None: ...
    def __init__(self, images: Any, labels: Any = None, *, transform: Transforms = None):
        pixels = _numpy(images, "images")
        if pixels.dtype != np.uint8:
            raise DatasetError(f"Arrays: images are {pixels.dtype}; they must be uint8 with values 0 to 255")
        if pixels.ndim not in (3, 4) or (pixels.ndim == 4 and pixels.shape[3] not in (1, 3)):
            hint = "; numpy.moveaxis(images, 1, -1) puts channels last" if pixels.shape[1:2] in ((1,), (3,)) else ""
            raise DatasetError(
                f"Arrays: images have shape {pixels.shape}; it must be [N, H, W, 1 or 3] or [N, H, W]{hint}"
            )
        if 0 in pixels.shape[1:]:
            raise DatasetError(f"Arrays: images of shape {pixels.shape} have no pixels")
        self.images = pixels
        self._labels = None if labels is None else _labels(labels, len(pixels))
        self.transform = as_compose(transform)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def sizes(self) -> npt.NDArray[np.int32]:
        """i32[N, 2] with equal rows, which takes no memory."""
        return np.broadcast_to(np.array(self.images.shape[1:3], np.int32), (len(self), 2))

    def common_size(self) -> tuple[int, int] | None:
        return (self.images.shape[1], self.images.shape[2]) if len(self) else None

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        return self._labels

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the shape, all labels and a regular sample of the pixels. Changes to other pixels go unnoticed."""
        digest = hashlib.blake2b(f"arrays 1 {self.images.shape}".encode(), digest_size=8)
        if len(self):
            for i in np.unique(np.linspace(0, len(self) - 1, _ROWS).astype(np.int64)):
                row = self.images[i].reshape(-1)
                digest.update(np.ascontiguousarray(row[:: max(1, len(row) // _VALUES)]).tobytes())
        digest.update(b"none" if self._labels is None else np.ascontiguousarray(self._labels, "<i8").tobytes())
        return digest.hexdigest()

    def fetch(self, index: int) -> tuple[npt.NDArray[np.uint8], int | None]:
        """Return (u8[H, W, C], label). The pixels are a view of the images if they are contiguous, otherwise a copy."""
        image = self.images[index]
        pixels = np.ascontiguousarray(image if image.ndim == 3 else image[..., None])
        # Not a memmap, because engines pass it to code that requires exactly ndarray.
        return pixels.view(np.ndarray), None if self._labels is None else int(self._labels[index])

    def describe(self, index: int) -> str:
        return f"images[{index}] of {self!r}"

    def __repr__(self) -> str:
        return f"Arrays(uint8[{', '.join(map(str, self.images.shape))}])"


def _numpy(value: Any, name: str) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    if callable(getattr(value, "numpy", None)):  # a torch tensor, without importing torch
        try:
            return np.asarray(value.numpy())
        except (TypeError, RuntimeError) as e:
            raise DatasetError(
                f"Arrays: {name} cannot be viewed as a numpy array ({e}); pass a detached CPU tensor"
            ) from None
    if name == "images":
        raise DatasetError(f"Arrays: images must be a numpy array or a torch tensor, not {type(value).__name__}")
    return np.asarray(value)


def _labels(labels: Any, count: int) -> npt.NDArray[np.int64]:
    values = _numpy(labels, "labels")
    if values.size == 0 and count == 0:
        return np.empty(0, np.int64)
    if values.ndim != 1 or values.dtype.kind not in "iu" or len(values) != count:
        raise DatasetError(
            f"Arrays: labels are {values.dtype}{list(values.shape)}; they must be one integer per image, int[{count}]"
        )
    return as_labels(values, "Arrays")
