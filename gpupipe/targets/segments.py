"""Masks of objects as COCO stores them: polygons and run lengths, in few flat arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.files import Undecodable
from ..errors import MissingDependency
from .objects import ObjectNumbers
from .target import Array, Collated, Moves

_CENTS = 100
"""COCO's coordinates have two decimals: whole hundredths divided by this are the same floats in half of the memory."""


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

    @classmethod
    def of(cls, segmentations: Iterable[Any]) -> Segments:
        """Take over COCO's ``segmentation`` of every object. Raises ValueError for anything else."""
        numbers, parts, objects, runs = array("d"), array("q", [0]), array("q", [0]), dict[int, Any]()
        for k, segmentation in enumerate(segmentations):
            if isinstance(segmentation, dict):
                counts = segmentation["counts"]
                kept = counts if isinstance(counts, (str, bytes)) else np.array(counts, np.int32)
                runs[k] = (tuple(segmentation["size"]), kept)
            else:
                for polygon in segmentation:
                    if len(polygon) < 6 or len(polygon) % 2:
                        raise ValueError(f"a polygon has {len(polygon)} numbers; it needs at least 3 pairs")
                    numbers.extend(polygon)
                    parts.append(len(numbers))
            objects.append(len(parts) - 1)
        values = np.frombuffer(numbers, np.float64) if len(numbers) else np.zeros(0)
        # Hundredths are kept only if every number comes back unchanged.
        cents = np.rint(values * _CENTS)
        if np.abs(cents).max(initial=0) < 1 << 31 and (cents / _CENTS == values).all():
            values = cents.astype(np.int32)
        return cls(values, np.array(parts, np.int64), np.array(objects, np.int64), runs)

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
        polygons = range(self._objects[i], self._objects[i + 1])
        parts = [self._numbers[self._parts[k] : self._parts[k + 1]] for k in polygons]
        return [(part / _CENTS if part.dtype == np.int32 else part).tolist() for part in parts]

    def mask(self, i: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Draw u8[H, W] of an image of this size, like ``COCO.annToMask`` of pycocotools.

        Raises:
            MissingDependency: the object has polygons or compressed run lengths, and pycocotools is not installed.
            Undecodable: the run lengths are of an image of another size.
        """
        segmentation, (height, width) = self[i], size
        if isinstance(segmentation, dict):
            if tuple(segmentation["size"]) != tuple(size):
                have = "x".join(map(str, segmentation["size"]))
                raise Undecodable("mask", f"run lengths of {have} pixels for an image of {height}x{width}")
            counts = segmentation["counts"]
            if isinstance(counts, list):
                # Runs of 0 and 1 alternate, beginning with 0, and go down the columns.
                ids = np.repeat(np.arange(len(counts)) % 2, counts).astype(np.uint8)
                if len(ids) != height * width:
                    raise Undecodable("mask", f"run lengths of {len(ids)} pixels for an image of {height}x{width}")
                return ids.reshape(width, height).T
            return np.asarray(_pycocotools().decode(segmentation))
        coco = _pycocotools()
        if not segmentation:
            return np.zeros(size, np.uint8)
        return np.asarray(coco.decode(coco.merge(coco.frPyObjects(segmentation, height, width))))


def _pycocotools() -> Any:
    try:
        from pycocotools import mask
    except ImportError:
        raise MissingDependency(
            "masks of COCO need pycocotools, which is not installed: pip install 'gpupipe-loader[coco]', or leave "
            "'masks' out of target_keys"
        ) from None
    return mask


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
