"""What an engine's memory is made of: needs, and the load that they come from."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from ..errors import GpupipeError
from ..planning.epoch import clip_length
from ..transforms.base import Images
from ..transforms.ops import Op, split_off_mixing

if TYPE_CHECKING:
    from ..reading.setup import Setup

__all__ = ["Load", "Need", "Place", "size_text"]

Place = Literal["host", "pinned", "shm", "device"]

_ITEMSIZE = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4}
_SAMPLED = 1_024
"""Rows of the index that are looked at: each may be another page of a file on a slow disk."""


def size_text(nbytes: float) -> str:
    """Bytes with a unit, to three digits: ``1.81 TB``."""
    value = float(nbytes)
    units = ["TB", "GB", "MB", "kB", "bytes"]
    while abs(value) >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop()
    return f"{value:,.0f} {units[-1]}" if value == int(value) or abs(value) >= 99.95 else f"{value:.3g} {units[-1]}"


@dataclass(frozen=True)
class Need:
    """One kind of memory: ``count`` pieces of ``each`` bytes."""

    what: str
    place: Place
    """``"shm"`` is host memory that lies in /dev/shm."""
    each: int
    formula: str
    """Where ``each`` comes from."""
    count: int = 1
    of: str = ""
    """What ``count`` counts."""
    certain: bool = True
    """So much at least; otherwise an average."""
    passing: bool = False
    """Held while a batch is made, and perhaps never together with a full queue."""

    @property
    def nbytes(self) -> int:
        return self.each * self.count

    def __str__(self) -> str:
        about = "" if self.certain else "about "
        one = f"{self.what}: {self.formula} = {about}{size_text(self.each)}"
        return one if self.count == 1 else f"{one}, × {self.count:,} {self.of} = {about}{size_text(self.nbytes)}"


@dataclass(frozen=True)
class Load:
    """What an engine will be asked for, and helpers that turn it into needs."""

    setup: Setup
    """Its batch size is no more than ``samples``."""
    samples: int
    """Of an epoch, on this rank."""
    every: bool
    """Whether every sample comes once in an epoch, none left out."""

    @property
    def batches(self) -> int:
        """Of an epoch, on this rank."""
        return -(-self.samples // self.setup.batch_size)

    @cached_property
    def frames(self) -> int:
        """Images of one sample: those of a clip, or 1."""
        return clip_length(self.setup.dataset, self.setup.pipeline)

    @cached_property
    def _rows(self) -> npt.NDArray[np.int64]:
        """i64[n, 2]: height and width of evenly sampled images, 0 and 0 of bad ones; empty where only reading tells."""
        sizes = self.setup.dataset.sizes
        if sizes is None:
            return np.zeros((0, 2), np.int64)
        return np.asarray(sizes[_evenly(len(sizes))], np.int64)

    @cached_property
    def _good(self) -> npt.NDArray[np.int64]:
        good: npt.NDArray[np.int64] = self._rows[self._rows.min(axis=1, initial=1) > 0]
        return good

    @cached_property
    def _resolved(self) -> tuple[tuple[Op, ...], Images] | None:
        """What the pipeline makes of the good ones in epoch 0; ``None`` where nothing can be said."""
        if len(self._good):
            with suppress(GpupipeError):
                return self.setup.pipeline.resolve(0, 0, np.arange(len(self._good), dtype=np.uint64), self._good)
        return None

    def batch(self, what: str, place: Place, view: int = 0, *, channels: int, dtype: str) -> Need | None:
        """One batch of the size that goes out as view number ``view``; ``None`` where that is not known."""
        shape = self.setup.pipeline.outputs[view].size
        # Where it depends on the image: Arrays are known to be all alike, of files only a sample is looked at.
        if shape is None and self.setup.dataset.kind == "pixels" and self._resolved is not None:
            images = self._resolved[1]
            height, width = (images.views or (images,))[view].sizes[0].tolist()
            shape = height, width
        if shape is None:
            return None
        n, item = self.setup.batch_size, _ITEMSIZE[dtype]
        return Need(
            what,
            place,
            n * self.frames * channels * shape[0] * shape[1] * item,
            f"{self._count(n)} × {channels} × {shape[0]} × {shape[1]} × {item} byte{'s' * (item > 1)}",
        )

    def _count(self, samples: int) -> str:
        return f"{samples:,} × {self.frames} frames" if self.frames > 1 else f"{samples:,}"

    def output(self, count: int, of: str) -> list[Need]:
        """Batches as they are handed out."""
        place: Place = "device" if self.setup.cuda else "host"
        found = []
        for view, output in enumerate(self.setup.pipeline.outputs):
            what = f"output batches of view {view + 1}" if len(self.setup.pipeline.outputs) > 1 else "output batches"
            batch = self.batch(what, place, view, channels=output.channels, dtype=output.dtype)
            found += self.times(batch, count, of)
        if split_off_mixing(self.setup.pipeline.skeleton)[1]:
            output = self.setup.pipeline.output
            mixing = self.batch("batches while they are mixed", place, channels=output.channels, dtype=output.dtype)
            found += [replace(need, passing=True) for need in self.times(mixing, 2, "beside the one handed out")]
        return found

    def times(self, need: Need | None, count: int, of: str) -> list[Need]:
        """So many of a batch, or none of what is not known. There are no more than an epoch has."""
        if need is None:
            return []
        if count > self.batches:
            count, of = self.batches, "in the whole epoch"
        return [replace(need, count=count, of=of)]

    def decoded(self, place: Place, *, whole: bool, certain: bool, images: int | None = None) -> list[Need]:
        """Decoded images in RGB.

        Args:
            whole: of the size in the index; otherwise of the windows that the first crop takes.
            certain: whether those of a batch are held all at once.
            images: how many samples; a batch by default.
        """
        if not len(self._good) or self.setup.dataset.kind == "pixels":
            return []
        if whole:
            area = self._rows.prod(axis=1).astype(float)
        elif self._resolved is not None:
            numbers = self._resolved[0][0].numbers()
            area = numbers["height"].astype(float) * numbers["width"]
        else:
            return []
        mean, certain = float(area.mean()), certain and whole and self.every
        if images is None:
            # Some batch of every epoch has at least as many pixels as all of them together, divided by the batches.
            images = self.samples // self.batches if certain else self.setup.batch_size
        if certain and len(area) < len(self.setup.dataset):
            mean = max(0.0, mean - 4 * float(area.std()) / len(area) ** 0.5)  # what is looked at is a sample
        kind = "frames" if self.setup.dataset.has_frames else "images"
        return [
            Need(
                f"decoded {kind}" if whole else "decoded windows",
                place,
                int(images * self.frames * mean * 3),
                f"{self._count(images)} × {mean / 1e6:.3g} megapixels × 3 bytes",
                certain=certain,
                passing=True,
            )
        ]

    def encoded(self, place: Place) -> list[Need]:
        """The files of a batch as they are read."""
        sizes = self.setup.dataset.file_sizes
        if sizes is None or self.setup.dataset.has_frames:  # of a video only parts are read
            return []
        mean = float(np.mean(sizes[_evenly(len(sizes))]))
        n = self.setup.batch_size
        formula = f"{n:,} × {size_text(mean)}"
        return [Need("encoded files", place, int(n * mean), formula, certain=False, passing=True)]


def _evenly(count: int) -> npt.NDArray[np.int64]:
    """Up to :data:`_SAMPLED` rows of so many."""
    return np.unique(np.linspace(0, count - 1, min(count, _SAMPLED)).astype(np.int64))
