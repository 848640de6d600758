"""What an engine will hold: it says so by :meth:`gpupipe.engines.base.EngineConfig.memory_uses`, made of these."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from rich.filesize import decimal

from ..errors import GpupipeError
from ..planning.epoch import pictures_per_sample
from ..reading.setup import Setup
from ..transforms.compose import Output

__all__ = ["MemoryUse", "Place", "Workload"]

Place = Literal["host", "pinned", "shm", "device"]
"""``"pinned"`` and ``"shm"``, which is /dev/shm, are host memory too."""

_ITEMSIZE = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class MemoryUse:
    """One kind of memory, and the arithmetic behind its size."""

    what: str
    place: Place
    nbytes: int
    formula: str
    certain: bool = True
    """So much once the queues are full; otherwise an average, which refuses nothing."""

    def __str__(self) -> str:
        place = {"pinned": ", pinned", "shm": ", in /dev/shm"}.get(self.place, "")
        return f"{self.what}: {self.formula} = {'' if self.certain else 'about '}{decimal(self.nbytes)}{place}"


@dataclass(frozen=True)
class Workload:
    """What an engine will be asked for, and the uses of memory that several engines have."""

    setup: Setup
    samples: int
    """Of an epoch, on this rank."""

    @property
    def batch_size(self) -> int:
        """Of the largest batch."""
        return min(self.setup.batch_size, self.samples) * self.setup.dataset.images_per_sample

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """What goes out of the pipeline, one for each view; sizes known also of images that all have one size."""
        found, common = self.setup.pipeline.outputs, None
        if any(out.size is None for out in found):
            common = self.setup.dataset.common_size()
        if common is None:
            return found
        try:
            images = self.setup.pipeline.resolve(0, 0, np.zeros(1, np.uint64), np.array([common]))[1]
        except GpupipeError:  # the first batch will raise it
            return found
        made = [(int(view.height[0]), int(view.width[0])) for view in images.views or (images,)]
        return tuple(replace(out, size=out.size or size) for out, size in zip(found, made, strict=True))

    @cached_property
    def _some_sizes(self) -> npt.NDArray[np.float64] | None:
        """f64[N, 2] of what is decoded; ``None`` if nothing is, or no size is known."""
        sizes = self.setup.dataset.sizes
        if sizes is None or not len(sizes) or self.setup.dataset.kind == "pixels":
            return None
        # Of a large index only some rows: each may be another page of a file on a slow disk.
        return np.asarray(sizes[np.unique(np.linspace(0, len(sizes) - 1, 1024).astype(np.int64))], np.float64)

    @cached_property
    def pixels(self) -> float:
        """Of a decoded image or frame, on average; 0 if that is not known."""
        return 0.0 if self._some_sizes is None else float(self._some_sizes.prod(axis=1).mean())

    def batches(self, what: str, place: Place, count: int, of: str, out: Output) -> list[MemoryUse]:
        """``count`` batches like ``out``, ``of`` what; none if their size is known only once images are read."""
        if out.shape is None:
            return []
        shape = [self.batch_size, pictures_per_sample(self.setup.dataset, self.setup.pipeline), *out.shape]
        if shape[1] == 1:
            del shape[1]
        count, item = min(count, -(-self.samples // self.batch_size)), _ITEMSIZE[out.dtype]
        formula = f"{' × '.join(f'{n:,}' for n in shape)} × {item} byte{'s' * (item > 1)} × {count} {of}"
        return [MemoryUse(what, place, math.prod(shape) * item * count, formula)]

    def output(self, count: int, of: str) -> list[MemoryUse]:
        """Batches as they are handed out, of every view."""
        found: list[MemoryUse] = []
        for number, out in enumerate(self.outputs, 1):
            what = f"output batches of view {number}" if len(self.outputs) > 1 else "output batches"
            found += self.batches(what, "device" if self.setup.cuda else "host", count, of, out)
        return found

    def encoded(self, place: Place, samples: int) -> list[MemoryUse]:
        """The bytes of so many samples as they are stored, or of all that an epoch has; an average."""
        sizes = self.setup.dataset.file_sizes
        if sizes is None or not len(sizes):
            return []
        samples, mean = min(samples, self.samples), float(sizes.mean())
        formula = f"{samples:,} × {mean / 1e3:.3g} kB"
        return [MemoryUse("encoded images", place, int(samples * mean), formula, certain=False)]

    def decoded(self, place: Place, samples: int, *, at_once: bool = False) -> list[MemoryUse]:
        """The decoded images of so many samples, or of all that an epoch has.

        Certain if they are held ``at_once`` and all images have one size; else an average.
        """
        some = self._some_sizes
        if some is None:
            return []
        dataset, samples = self.setup.dataset, min(samples, self.samples)
        frames = pictures_per_sample(dataset, self.setup.pipeline)
        certain = at_once and bool((some == some[0]).all()) and dataset.common_size() is not None
        formula = f"{samples:,}{f' × {frames} frames' * (frames > 1)} × {self.pixels / 1e6:.3g} megapixels × 3 bytes"
        what = f"decoded {dataset.medium.picture}s"
        return [MemoryUse(what, place, int(samples * frames * self.pixels * 3), formula, certain)]
