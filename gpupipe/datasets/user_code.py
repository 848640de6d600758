"""Datasets written for ``torch.utils.data`` that return encoded images or pixels, which every engine can process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from ..codecs.decode import Media
from ..codecs.limits import MAX_BYTES, Limits
from ..errors import DatasetError, PipelineError
from ..transforms.compose import Transforms, as_compose
from .dataset import Dataset, checked_limits

Returns = Literal["path", "bytes", "array", "pil"]

_EXPECTED = {
    "path": "the path of an image file (str or os.PathLike)",
    "bytes": "the bytes of an encoded image (bytes, bytearray, memoryview or uint8[N])",
    "array": "pixels (numpy uint8[H, W, C], C = 1 or 3)",
    "pil": "a PIL image",
}

_PLACED = ("BoundingBoxes", "KeyPoints", "Mask")
"""Classes of torchvision whose values belong to places in an image."""


def from_torch(
    ds: Any,
    media: Returns = "path",
    transform: Transforms = None,
    *,
    exif: bool = False,
    max_pixels: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> FromTorch:
    """Wrap a torch dataset whose items are images before any transform.

    ``ds[i]`` returns the image alone, or ``(image, target)``, or ``(image, target, ...)``. It runs in worker processes,
    so it may be any Python code.

    Args:
        ds: an object with ``len()`` and ``[i]``.
        media: type of the image: a path, encoded bytes, pixels u8[H, W, C], or a PIL image.
        transform: a gpupipe ``Compose``, the transforms for one, or transforms of torchvision.
        exif: apply the EXIF orientation.
        max_pixels: larger encoded images are bad samples of kind ``bomb``, and never decoded.
        max_bytes: files and encoded images with more bytes are bad samples of kind ``bomb``. The default is 2 GiB.

    Raises:
        ConfigError: ``media`` or ``transform`` is invalid.
        DatasetError: ``ds`` is empty, or lacks a length or ``[i]``. Also raised on reading an item whose type is not
            that of ``media``.

    >>> from_torch([(np.zeros((8, 8, 3), np.uint8), 5), (np.ones((8, 8, 3), np.uint8), 7)], media="array")
    FromTorch(list, 2 samples)
    """
    return FromTorch(ds, media, transform, Limits(exif, max_pixels, max_bytes))


class FromTorch(Dataset):
    """Dataset returned by :func:`from_torch`."""

    kind = "user code"

    def __init__(
        self,
        ds: Any,
        media: Returns = "path",
        transform: Transforms = None,
        limits: Limits = Limits(),
    ):
        if media not in get_args(Returns):
            raise DatasetError(f"from_torch: media must be one of {', '.join(get_args(Returns))}, not {media!r}")
        _check_length(ds)
        self.ds = ds
        self.transform = as_compose(transform)
        self.returns = media
        self.limits = checked_limits(limits)

    def __len__(self) -> int:
        return len(self.ds)

    @property
    def sizes(self) -> npt.NDArray[np.int32] | None:
        return None

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        return None

    @property
    def fingerprint(self) -> str:
        """Class and length. Datasets of the same class and length are indistinguishable, because arbitrary Python
        objects cannot be hashed."""
        return f"FromTorch:{type(self.ds).__module__}.{type(self.ds).__qualname__}:{len(self)}"

    def describe(self, index: int) -> str:
        return f"sample {index} of {type(self.ds).__name__}"

    def __repr__(self) -> str:
        return f"FromTorch({type(self.ds).__name__}, {len(self):,} samples)"

    def fetch(self, index: int) -> tuple[Media, Any]:
        item = self.ds[index]
        image, target = item, None
        if isinstance(item, (tuple, list)):
            if not item:
                raise self._refuse(index, "an empty sequence")
            image, *targets = item
            target = None if not targets else targets[0] if len(targets) == 1 else tuple(targets)
            self._check_target(index, target)
        return self._media(index, image), target

    def _check_target(self, index: int, target: Any) -> None:
        """Raise :class:`PipelineError` for a target that would have to move with its image."""
        parts = target.values() if isinstance(target, Mapping) else target if isinstance(target, (list, tuple)) else ()
        for part in parts:
            self._check_target(index, part)
        name = type(target).__name__
        is_placed = type(target).__module__.startswith("torchvision.tv_tensors") and name in _PLACED
        if is_placed and any(op.geometric for op in self.transform.skeleton):
            raise PipelineError(
                f"{type(self.ds).__name__}[{index}] returned {name}, which would not move with its image: apply the "
                "transforms in the dataset itself, and give it to gpupipe.DataLoader without from_torch"
            )

    def _media(self, index: int, image: Any) -> Media:
        if self.returns == "path" and isinstance(image, (str, os.PathLike)):
            return os.fsdecode(image)
        if self.returns == "bytes":
            if isinstance(image, bytes):
                return image
            flat = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 1
            if flat or isinstance(image, (bytearray, memoryview)):
                return bytes(image)
        if self.returns == "array" and isinstance(image, np.ndarray) and image.dtype == np.uint8:
            if image.ndim == 2:
                return image[:, :, None]
            if image.ndim == 3 and image.shape[2] in (1, 3):
                return image
        if self.returns == "pil" and isinstance(image, Image.Image):
            return np.asarray((ImageOps.exif_transpose(image) if self.limits.exif else image).convert("RGB"))
        raise self._refuse(index, _kind(image))

    def _refuse(self, index: int, got: str) -> DatasetError:
        return DatasetError(
            f"{type(self.ds).__name__}[{index}] returned {got}; media={self.returns!r} expects "
            f"{_EXPECTED[self.returns]}, alone or first in a tuple. Choose the media that fits, and give the dataset's "
            "own transform to from_torch() instead"
        )


def _check_length(ds: Any) -> None:
    """Raise :class:`DatasetError` if samples cannot be numbered."""
    name = f"{type(ds).__module__}.{type(ds).__qualname__}"
    data = sys.modules.get("torch.utils.data")  # an iterable dataset implies that it was imported
    iterable = data is not None and isinstance(ds, data.IterableDataset)
    lacks = [f"no {what}()" for what in ("__getitem__", "__len__") if not hasattr(ds, what)]
    if lacks or iterable:
        told = "is an IterableDataset" if iterable else f"has {' and '.join(lacks)}"
        raise DatasetError(
            f"{name} {told}: gpupipe orders and resumes samples by number and cannot run an "
            "iterable dataset. Write a map-style dataset (with __len__ and __getitem__), or keep torch's DataLoader "
            "for this one"
        )
    if len(ds) == 0:
        raise DatasetError(f"{name} is empty (its len() is 0); check the path or filter that it was made with")


def _kind(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        layout = "; permute(1, 2, 0).numpy() makes an array of it" if type(value).__module__ == "torch" else ""
        return f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')}{list(value.shape)}{layout}"
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
