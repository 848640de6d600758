"""Memory that an engine will hold, as returned by :meth:`gpupipe.engines.base.EngineConfig.memory_uses`."""

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

MemoryKind = Literal["host", "pinned", "shm", "device"]
"""Kinds of memory. ``"pinned"`` and ``"shm"``, which is /dev/shm, are host memory too."""

_ITEMSIZE = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class MemoryUse:
    """One use of memory, and the calculation of its size."""

    what: str
    place: MemoryKind
    nbytes: int
    formula: str
    certain: bool = True
    """Whether this much is held once the queues are full. Otherwise it is an average, which never rejects a loader."""

    def __str__(self) -> str:
        place = {"pinned": ", pinned", "shm": ", in /dev/shm"}.get(self.place, "")
        return f"{self.what}: {self.formula} = {'' if self.certain else 'about '}{decimal(self.nbytes)}{place}"


@dataclass(frozen=True)
class Workload:
    """Work that an engine will be asked for, and uses of memory that several engines share."""

    setup: Setup
    samples: int
    """Number of samples of an epoch on this rank."""

    @property
    def batch_size(self) -> int:
        """Size of the largest batch."""
        return min(self.setup.batch_size, self.samples) * self.setup.dataset.images_per_sample

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """Outputs of the pipeline, one for each view, including sizes that follow from a common size of all images."""
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
        """f64[N, 2]: sizes of decoded images; ``None`` if nothing is decoded, or no size is known."""
        sizes = self.setup.dataset.sizes
        if sizes is None or not len(sizes) or self.setup.dataset.kind == "pixels":
            return None
        # Read only some rows of a large index: each may be on another page of a file on a slow disk.
        return np.asarray(sizes[np.unique(np.linspace(0, len(sizes) - 1, 1024).astype(np.int64))], np.float64)

    @cached_property
    def pixels(self) -> float:
        """Average number of pixels of a decoded image or frame; 0 if unknown."""
        return 0.0 if self._some_sizes is None else float(self._some_sizes.prod(axis=1).mean())

    def batches(self, what: str, place: MemoryKind, count: int, of: str, out: Output) -> list[MemoryUse]:
        """Return ``count`` batches like ``out``, described by ``of``; nothing if their size is unknown before
        reading."""
        if out.shape is None:
            return []
        shape = [self.batch_size, pictures_per_sample(self.setup.dataset, self.setup.pipeline), *out.shape]
        if shape[1] == 1:
            del shape[1]
        # An epoch may have fewer batches than the queues hold.
        count, item = min(count, -(-self.samples // self.batch_size)), _ITEMSIZE[out.dtype]
        formula = f"{' × '.join(f'{n:,}' for n in shape)} × {item} byte{'s' * (item > 1)} × {count} {of}"
        return [MemoryUse(what, place, math.prod(shape) * item * count, formula)]

    def output(self, count: int, of: str) -> list[MemoryUse]:
        """Return the delivered batches of every view."""
        found: list[MemoryUse] = []
        for number, out in enumerate(self.outputs, 1):
            what = f"output batches of view {number}" if len(self.outputs) > 1 else "output batches"
            found += self.batches(what, "device" if self.setup.cuda else "host", count, of, out)
        return found

    def encoded(self, place: MemoryKind, samples: int) -> list[MemoryUse]:
        """Return the bytes of this many stored samples, or of a whole epoch if that is less; an average."""
        sizes = self.setup.dataset.file_sizes
        if sizes is None or not len(sizes):
            return []
        samples, mean = min(samples, self.samples), float(sizes.mean())
        formula = f"{samples:,} × {mean / 1e3:.3g} kB"
        return [MemoryUse("encoded images", place, int(samples * mean), formula, certain=False)]

    def decoded(self, place: MemoryKind, samples: int, *, at_once: bool = False) -> list[MemoryUse]:
        """Return the decoded images of this many samples, or of a whole epoch if that is less.

        The result is certain if they are held ``at_once`` and all images have one size, otherwise an average.
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
