"""Draws masks of polygons and run lengths. pycocotools, which believes what it is given, gets only what it can bear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.files import Undecodable
from ..errors import MissingDependency

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.uint8]

_STEPS = 1 << 22
"""pycocotools walks along the edges of a polygon in fifths of a pixel, and needs up to 20 bytes for each step."""
_FAR = 1 << 28
"""Pixels. pycocotools counts these fifths in 32 bits."""


def draw_polygons(polygons: Sequence[F64], size: tuple[int, int]) -> Mask:
    """Draw u8[H, W] of an object with polygons f64[2 n] of finite numbers, like ``COCO.annToMask`` of pycocotools.

    Raises:
        MissingDependency: pycocotools is not installed.
        Undecodable: the outlines are too long, or leave the image by far.
    """
    coco = _pycocotools()
    reach = [float(np.abs(polygon).max()) for polygon in polygons]
    # A sum of bounds first, because it needs no differences: it is enough for nearly all objects.
    if sum(len(polygon) * (1 + 10 * far) for polygon, far in zip(polygons, reach, strict=True)) > _STEPS:
        if max(reach) > _FAR:
            raise Undecodable("mask", f"the outlines of an object reach {max(reach):.3g} pixels from the image")
        steps = sum(map(_steps, polygons))
        if steps > _STEPS:
            raise Undecodable("mask", f"the outlines of an object are {steps / 5:,.0f} pixels long, more than is drawn")
    if not polygons:
        return np.zeros(size, np.uint8)
    merged = coco.merge(coco.frPyObjects([part.tolist() for part in polygons], *size))
    return draw_runs(unpacked_runs(merged["counts"]), size)


def _steps(polygon: F64) -> float:
    points = polygon.reshape(-1, 2)
    return float(5 * np.abs(points - np.roll(points, 1, axis=0)).max(axis=1).sum() + len(points))


def draw_runs(counts: I64, size: tuple[int, int]) -> Mask:
    """Draw u8[H, W] of run lengths: runs of 0 and 1 alternate, begin with 0, and go down the columns.

    Raises :class:`Undecodable` if they do not fill the image.
    """
    height, width = size
    pixels = height * width
    if (counts < 0).any() or (counts > pixels).any() or counts.sum() != pixels:
        raise Undecodable("mask", f"run lengths that do not fill an image of {height}x{width}")
    ids = np.repeat(np.arange(len(counts), dtype=np.int64).astype(np.uint8) & 1, counts)
    return ids.reshape(width, height).T


def unpacked_runs(text: bytes) -> I64:
    """Return the run lengths of COCO's compressed form, where pycocotools would read beyond the end of a broken text.

    Every number is a group of characters with five bits each, the lowest first. From the third on, it is the difference
    to the number before the last.

    Raises :class:`Undecodable`.
    """
    codes = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    if (codes < 0).any() or (codes > 63).any() or (len(codes) and codes[-1] & 32):
        raise Undecodable("mask", "compressed run lengths are damaged")
    last = np.flatnonzero((codes & 32) == 0)
    first = np.concatenate([[0], last + 1])[: len(last)].astype(np.int64)
    if (last - first > 6).any():
        raise Undecodable("mask", "compressed run lengths are damaged")
    place = np.arange(len(codes)) - np.repeat(first, last - first + 1)
    shifted = (codes & 31) << (5 * place)
    numbers = np.add.reduceat(shifted, first) if len(first) else np.zeros(0, np.int64)
    numbers -= np.where(codes[last] & 16, np.int64(1) << (5 * (last - first + 1)), 0)
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers


def _pycocotools() -> Any:
    try:
        from pycocotools import mask
    except ImportError:
        raise MissingDependency(
            "polygons of COCO need pycocotools, which is not installed: pip install 'gpupipe-loader[coco]', or leave "
            "'masks' out of target_keys"
        ) from None
    return mask
