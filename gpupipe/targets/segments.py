"""Masks of objects as COCO stores them: polygons and run lengths, in few flat arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.files import Undecodable
from .drawing import draw_polygons, draw_runs, unpacked_runs
from .objects import ObjectNumbers
from .target import Array, Collated, Moves

_CENTS = 100
"""COCO's coordinates have two decimals: whole hundredths divided by this are the same floats in half of the memory."""

_MOST_RUNS = (1 << 31) - 1


class Segments:
    """Segmentations of objects, which take up little more memory than their numbers.

    ``self[i]`` is what COCO's ``segmentation`` has for object i: a list of polygons, or run lengths.
    """

    def __init__(
        self, numbers: Array, parts: npt.NDArray[np.int64], objects: npt.NDArray[np.int64], runs: dict[int, Any]
    ):
        self._numbers = numbers
        """Coordinates of all polygons, one after another, in hundredths if they are integers."""
        self._parts = parts
        """i64[P + 1]: where each polygon starts."""
        self._objects = objects
        """i64[M + 1]: the first polygon of each object."""
        self._runs = runs
        """Run lengths of the few objects that have them, by object."""
        self.wrong: dict[int, str] = {}
        """What is wrong with objects that could not be taken over, by object. They have no polygons."""

    @classmethod
    def of(cls, segmentations: Iterable[Any]) -> Segments:
        """Take over COCO's ``segmentation`` of every object. What is wrong with one is in :attr:`wrong`."""
        numbers, parts, objects, runs = array("d"), array("q", [0]), array("q", [0]), dict[int, Any]()
        wrong: dict[int, str] = {}
        for k, segmentation in enumerate(segmentations):
            before = len(numbers), len(parts)
            try:
                if isinstance(segmentation, dict):
                    runs[k] = _checked_runs(segmentation)
                else:
                    for polygon in segmentation:
                        if len(polygon) < 6 or len(polygon) % 2:
                            raise ValueError(f"a polygon has {len(polygon)} numbers; it needs at least 3 pairs")
                        numbers.extend(polygon)
                        parts.append(len(numbers))
            except (ValueError, TypeError, KeyError, OverflowError) as e:
                what = str(e) if isinstance(e, ValueError) else f"no polygons and no run lengths ({e!r:.80})"
                wrong[k] = f"segmentation: {what}"
                del numbers[before[0] :], parts[before[1] :]
            objects.append(len(parts) - 1)
        values = np.array(numbers, np.float64)
        infinite = np.flatnonzero(~np.isfinite(values))
        values[infinite] = 0.0  # nobody draws them
        polygons = np.searchsorted(parts, infinite, "right") - 1
        for k in (np.searchsorted(objects, polygons, "right") - 1).tolist():
            wrong[k] = "segmentation: a polygon has a number that is not finite"
        # Hundredths are kept only if every number comes back unchanged.
        if np.abs(values).max(initial=0) < (1 << 31) / _CENTS - 1:
            cents = np.rint(values * _CENTS)
            if (cents / _CENTS == values).all():
                values = cents.astype(np.int32)
        segments = cls(values, np.array(parts, np.int64), np.array(objects, np.int64), runs)
        segments.wrong = wrong
        return segments

    def __len__(self) -> int:
        return len(self._objects) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        runs = sum(
            len(counts) if isinstance(counts, (str, bytes)) else counts.nbytes for _, counts in self._runs.values()
        )
        return self._numbers.nbytes + self._parts.nbytes + self._objects.nbytes + runs

    def __getitem__(self, i: int) -> Any:
        if i in self._runs:
            size, counts = self._runs[i]
            return {"size": [*size], "counts": counts if isinstance(counts, (str, bytes)) else counts.tolist()}
        return [part.tolist() for part in self._polygons(i)]

    def mask(self, i: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Draw u8[H, W] of an image of this size, like ``COCO.annToMask`` of pycocotools.

        Raises:
            MissingDependency: the object has polygons, and pycocotools is not installed.
            Undecodable: the run lengths are of an image of another size or damaged, or the polygons are too long.
        """
        if i not in self._runs:
            return draw_polygons(self._polygons(i), size)
        (height, width), counts = self._runs[i]
        if (height, width) != tuple(size):
            raise Undecodable("mask", f"run lengths of {height}x{width} pixels for an image of {size[0]}x{size[1]}")
        if isinstance(counts, np.ndarray):
            return draw_runs(counts.astype(np.int64), size)
        return draw_runs(unpacked_runs(counts.encode() if isinstance(counts, str) else counts), size)

    def _polygons(self, i: int) -> list[npt.NDArray[np.float64]]:
        polygons = range(self._objects[i], self._objects[i + 1])
        parts = [self._numbers[self._parts[k] : self._parts[k + 1]] for k in polygons]
        return [part / _CENTS if part.dtype == np.int32 else part for part in parts]


def _checked_runs(segmentation: dict[str, Any]) -> tuple[tuple[int, int], Any]:
    """Return size and counts of run lengths. Raises ValueError, KeyError or TypeError."""
    counts, size = segmentation["counts"], segmentation["size"]
    if not isinstance(size, (list, tuple)) or [type(side) for side in size] != [int, int] or min(size) < 0:
        raise ValueError("the size of run lengths must be two whole numbers")
    if isinstance(counts, (str, bytes)):
        if not counts.isascii():
            raise ValueError("compressed run lengths are damaged")
        return (size[0], size[1]), counts
    kept = np.asarray(counts)
    if len(kept) and (kept.ndim != 1 or kept.dtype.kind not in "iu" or kept.min() < 0 or kept.max() > _MOST_RUNS):
        raise ValueError("run lengths must be whole numbers that fill the image")
    return (size[0], size[1]), kept.astype(np.int32)


class ObjectMasks(ObjectNumbers):
    """One mask for each object of an image, drawn from COCO's segmentations when a batch needs it.

    A value is u8[n, H, W]: the mask of the whole image as pycocotools draws it, moved as ``tv_tensors.Mask``. A batch
    is a list of arrays.

    Args:
        segments: segmentations of all objects.
        offsets: i64[N + 1]: the objects of image i are those from ``offsets[i]`` to before ``offsets[i + 1]``.
    """

    moves: bool = True

    def __init__(self, segments: Segments, offsets: Any):
        super().__init__(np.arange(len(segments)), offsets)
        self.segments = segments

    def follow(self, values: Sequence[Any], moves: Sequence[Moves]) -> Sequence[Any]:
        return [self._moved(objects, move) for objects, move in zip(values, moves, strict=True)]

    def _moved(self, objects: Array, move: Moves) -> Any:
        try:
            drawn = [move.mask(self.segments.mask(i, move.size)) for i in objects.tolist()]
        except Undecodable as e:
            return e
        return np.stack(drawn) if drawn else np.zeros((0, *move.out_size), np.uint8)

    def collate(self, values: Sequence[Any]) -> Collated:
        return list(values)
