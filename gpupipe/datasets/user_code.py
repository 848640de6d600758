"""Datasets written for ``torch.utils.data`` that return encoded images or pixels, with transforms of gpupipe."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image, ImageOps

from ..errors import ConfigError, DatasetError, PipelineError
from ..transforms.compose import Transforms, as_compose

Returns = Literal["path", "bytes", "array", "pil"]

_EXPECTED = {
    "path": "the path of an image file (str or os.PathLike)",
    "bytes": "the bytes of an encoded image (bytes, bytearray, memoryview or uint8[N])",
    "array": "pixels (numpy uint8[H, W, C], C = 1 or 3)",
    "pil": "a PIL image",
}
_PLACED = ("BoundingBoxes", "KeyPoints", "Mask")
"""Classes of torchvision whose values belong to places in an image."""


def from_torch(ds: Any, media: Returns = "path", transform: Transforms = None, *, exif: bool = False) -> FromTorch:
    """Wrap a torch dataset whose items are images before any transform.

    ``ds[i]`` returns the image alone, or ``(image, target)``, or ``(image, target, ...)``. A loader is live: torch's
    DataLoader runs ``ds``, so it may be any Python code, and images wait for an engine.

    Args:
        ds: an object with ``len()`` and ``[i]``.
        media: type of the image: a path, encoded bytes, pixels u8[H, W, C], or a PIL image.
        transform: a gpupipe ``Compose``, the transforms for one, or transforms of torchvision, without MixUp and
            CutMix.
        exif: apply the EXIF orientation.

    Raises:
        ConfigError: ``transform`` is invalid.
        DatasetError: ``media`` is invalid, or ``ds`` lacks a length or ``[i]``. Also raised on reading an item whose
            type is not that of ``media``.

    >>> images = from_torch([(np.zeros((8, 8, 3), np.uint8), 5), (np.ones((8, 8, 3), np.uint8), 7)], media="array")
    >>> image, label = images[1]
    >>> image.shape, label
    (torch.Size([3, 8, 8]), 7)
    """
    return FromTorch(ds, media, transform, exif)


class FromTorch:
    """Dataset returned by :func:`from_torch`."""

    def __init__(self, ds: Any, media: Returns, transform: Transforms, exif: bool):
        if media not in get_args(Returns):
            raise DatasetError(f"from_torch: media must be one of {', '.join(get_args(Returns))}, not {media!r}")
        if not (hasattr(ds, "__getitem__") and hasattr(ds, "__len__")):
            raise DatasetError(f"from_torch: {type(ds).__name__} needs __getitem__() and __len__()")
        self.ds, self.returns, self.exif = ds, media, exif
        self.transform = as_compose(transform)
        if self.transform.mixing:
            raise ConfigError(
                f"from_torch: {self.transform.mixing[0]!r} mixes batches, and this pipeline gets single images; call "
                "torchvision.transforms.v2's in collate_fn"
            )

    def __len__(self) -> int:
        return len(self.ds)

    def __repr__(self) -> str:
        return f"FromTorch({type(self.ds).__name__}, {len(self):,} samples)"

    def __getitem__(self, index: int) -> Any:
        item = self.ds[index]
        if not isinstance(item, (tuple, list)):
            return self._transformed(index, item)
        if not item:
            raise self._refuse(index, "an empty sequence")
        image, *targets = item
        if not targets:
            return self._transformed(index, image)
        target = targets[0] if len(targets) == 1 else tuple(targets)
        self._check_target(index, target)
        return self._transformed(index, image), target

    def _transformed(self, index: int, item: Any) -> Any:
        image = self._image(index, item)
        return self.transform((ImageOps.exif_transpose(image) if self.exif else image).convert("RGB"))

    def _image(self, index: int, item: Any) -> Image.Image:
        if self.returns == "path" and isinstance(item, (str, os.PathLike)):
            return Image.open(item)
        array = item if isinstance(item, np.ndarray) and item.dtype == np.uint8 else None
        if self.returns == "bytes" and (isinstance(item, (bytes, bytearray, memoryview)) or _ndim(array) == 1):
            return Image.open(io.BytesIO(bytes(item)))
        if self.returns == "array" and array is not None and (array.ndim == 2 or array.shape[2:] in ((1,), (3,))):
            return Image.fromarray(array[:, :, 0] if array.shape[2:] == (1,) else array)
        if self.returns == "pil" and isinstance(item, Image.Image):
            return item
        raise self._refuse(index, _kind(item))

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

    def _refuse(self, index: int, got: str) -> DatasetError:
        return DatasetError(
            f"{type(self.ds).__name__}[{index}] returned {got}; media={self.returns!r} expects "
            f"{_EXPECTED[self.returns]}, alone or first in a tuple. Choose the media that fits, and give the dataset's "
            "own transform to from_torch() instead"
        )


def _ndim(array: Any) -> int:
    return -1 if array is None else int(array.ndim)


def _kind(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        layout = "; permute(1, 2, 0).numpy() makes an array of it" if type(value).__module__ == "torch" else ""
        return f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')}{list(value.shape)}{layout}"
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
