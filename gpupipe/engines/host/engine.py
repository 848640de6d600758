"""Executor on the host: the thread that read or decoded an image makes its row of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ... import system
from ...errors import SampleError
from ...reading.clips import ClipReader
from ...reading.kept_images import KeptImageReader
from ...reading.reader import Loaded, Reader
from ...reading.setup import Setup
from ...types import Batch, Plan
from ..base import Engine, Run, names_of
from ..delivery import target_to_device, to_device
from .clip_frames import ClipBatches
from .kept_images import KeptImages
from .pixel_images import PixelImages


class HostEngine(Engine):
    """Delivers the batches that its reader makes. Starts nothing before the first :meth:`run`.

    Clips (``benchmarks/video_clips.py``): DALI's graph takes more CPU time for crop, resize and normalize than torch on
    a frame that the decoder just wrote, and its resize differs more from Pillow at the borders. Cached decoded images
    (``benchmarks/decoded_cache.py``) and images in memory (``benchmarks/small_loaders.py``): a graph would only copy
    them from thread to thread.

    Args:
        reader: reader whose media are finished batches.
        batches: makes the batches for the reader, if it does not do so itself.
        facts: facts about the work.
    """

    def __init__(self, setup: Setup, reader: Reader, batches: ClipBatches | KeptImages | None, facts: dict[str, str]):
        self.setup = setup
        self.reader = reader
        self._batches, self._facts = batches, facts

    @classmethod
    def of_clips(cls, setup: Setup, clips: ClipBatches) -> HostEngine:
        done = f"cropped, resized and normalized by torch {torch.__version__} where they are decoded"
        return cls(setup, ClipReader(setup, clips), clips, {"frames": done})

    @classmethod
    def of_pixels(cls, setup: Setup, images: PixelImages) -> HostEngine:
        facts = {"on the host": " + ".join(dict.fromkeys(names_of(setup.pipeline.skeleton))), "decoder": "none"}
        return cls(setup, images, None, facts)

    @classmethod
    def of_images(cls, setup: Setup, images: KeptImages, ops: Sequence[str]) -> HostEngine:
        facts = {"on the host": " + ".join(ops), "decoder": "none"}
        return cls(setup, KeptImageReader(setup, images), images, facts)

    def run(self, plans: Iterator[Plan]) -> Run:
        return _Run(self, self.reader.run(plans))

    def close(self) -> None:
        self.reader.close()
        if self._batches is not None:
            self._batches.close()
        system.trim()

    def facts(self) -> dict[str, Any]:
        return {"backend": "CPU", "threads": self.setup.threads, **self._facts, **self.reader.facts()}


class _Run(Run):
    def __init__(self, engine: HostEngine, loaded: Iterator[Loaded]):
        self._engine, self._loaded = engine, loaded

    def __next__(self) -> Batch:
        ready = next(self._loaded)
        if ready.bad:
            raise SampleError(ready.bad)
        setup = self._engine.setup
        return Batch(to_device(ready.media, setup), target_to_device(ready.target, setup), ready.plan)

    def close(self) -> None:
        self._loaded = iter(())
        self._engine.reader.stop()
