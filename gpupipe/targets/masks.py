"""Masks: one id per pixel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..codecs.files import Undecodable
from ..codecs.masks import read_mask
from ..errors import DatasetError
from .target import Array, Collated, Moves, Target


class Masks(Target):
    """One mask of ids per image, which crops, resizes, flips and warps move with the image.

    Pixels are moved, never averaged. A batch is one array [B, H', W'] of the masks' data type, or a list of arrays if
    they differ in size.

    Args:
        masks: one per image, as large as the image: an array [N, H, W], a list of arrays [H, W], or a list of paths.
            Files are read when a batch needs them: palette images as ids, gray images, also of 1, 16 or 32 bits, and
            with ``rgb_ids`` colors; see :func:`~gpupipe.codecs.masks.read_mask` for data types.
        nearest: the pixel that resizes and warps read: ``"floor"`` as ``tv_tensors.Mask`` and OpenCV, ``"center"`` as
            PIL images.
        fill: id of pixels outside the image, such as the 255 or -100 that a loss ignores.
        dtype: data type to convert masks to, such as ``"int64"`` for ``cross_entropy``.
        rgb_ids: whether colors of files encode ids: ``red + 256 * green + 65536 * blue``.

    Raises:
        DatasetError: ``masks`` are something else.

    >>> masks = Masks(np.zeros((2, 4, 4), np.uint8))
    >>> masks.collate(masks.of(np.array([1, 0]))).shape
    (2, 4, 4)
    """

    moves: bool = True

    def __init__(
        self,
        masks: Any,
        *,
        nearest: Literal["floor", "center"] = "floor",
        fill: int | float = 0,
        dtype: Any = None,
        rgb_ids: bool = False,
    ):
        if nearest not in ("floor", "center"):
            raise DatasetError(f"Masks: nearest must be 'floor' or 'center', not {nearest!r}")
        self.masks = _checked(masks)
        self.nearest = nearest
        self.fill = fill
        self.dtype = None if dtype is None else np.dtype(str(dtype).removeprefix("torch."))
        self.rgb_ids = rgb_ids

    def __len__(self) -> int:
        return len(self.masks)

    def of(self, indices: npt.NDArray[np.int64]) -> Sequence[Any]:
        found = [self.masks[i] for i in indices.tolist()]
        return [Path(mask) if isinstance(mask, str) else mask for mask in found]

    def follow(self, values: Sequence[Any], moves: Sequence[Moves]) -> Sequence[Any]:
        return [self._moved(value, move) for value, move in zip(values, moves, strict=True)]

    def _moved(self, value: Any, move: Moves) -> Array | Undecodable:
        named = isinstance(value, os.PathLike)
        try:
            mask = read_mask(value, rgb_ids=self.rgb_ids) if named else value
        except Undecodable as e:
            return Undecodable(e.kind, f"mask {os.fspath(value)}: {e.reason}")
        if mask.shape != tuple(move.size):
            which = f"mask {os.fspath(value)}" if named else "its mask"
            have, want = ("x".join(map(str, shape)) for shape in (mask.shape, move.size))
            return Undecodable("mask", f"{which} has {have} pixels, and the image {want}")
        return move.mask(mask if self.dtype is None else mask.astype(self.dtype, copy=False), self.nearest, self.fill)

    def collate(self, values: Sequence[Any]) -> Collated:
        return stacked(values)


def _checked(masks: Any) -> Any:
    if callable(getattr(masks, "numpy", None)):
        masks = masks.numpy()
    if isinstance(masks, np.ndarray) and masks.ndim == 3 and masks.dtype.kind in "biuf":
        return masks
    if isinstance(masks, (list, tuple)):
        if all(isinstance(mask, (str, os.PathLike)) for mask in masks):
            return masks
        if all(isinstance(mask, np.ndarray) and mask.ndim == 2 for mask in masks):
            return masks
    found = f"{masks.dtype}{list(masks.shape)}" if isinstance(masks, np.ndarray) else type(masks).__name__
    raise DatasetError(
        f"Masks: masks must be numbers [N, H, W], a list of arrays [H, W] or a list of paths, not {found}"
    )


def stacked(values: Sequence[Array]) -> Collated:
    """Return one array, or a list of arrays if they differ in shape."""
    return np.stack(values) if len({value.shape for value in values}) == 1 else list(values)
