"""Clips on the CPU whose pipeline needs nothing of DALI: PyAV decodes, and torch does the rest in the same threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...errors import SampleError
from ...memory import system
from ...reading.base import Loaded
from ...reading.clips import ClipReader
from ...reading.setup import Setup
from ...types import Batch, Plan
from ..base import Engine, Run
from ..delivery import to_device
from ..forms.clip_frames import ClipBatches

__all__ = ["CpuClips"]


class CpuClips(Engine):
    """See the module. Starts nothing before the first :meth:`run`.

    Measured (``benchmarks/video_clips.py``): DALI's graph takes more CPU time for crop, resize and normalise than torch
    on a frame that the decoder just wrote, and resizes further from Pillow at the borders.
    """

    def __init__(self, setup: Setup, batches: ClipBatches):
        self.setup = setup
        self.batches = batches
        self.reader = ClipReader(setup, batches)

    def run(self, plans: Iterator[Plan]) -> Run:
        return _Run(self, self.reader.run(plans))

    def close(self) -> None:
        self.reader.close()
        self.batches.close()
        system.trim()

    def facts(self) -> dict[str, Any]:
        return {
            "backend": "CPU",
            "threads": self.setup.threads,
            "frames": f"cropped, resized and normalised by torch {torch.__version__} where they are decoded",
            **self.reader.facts(),
        }


class _Run(Run):
    def __init__(self, engine: CpuClips, loaded: Iterator[Loaded]):
        self._engine, self._loaded = engine, loaded

    def __next__(self) -> Batch:
        ready = next(self._loaded)
        if ready.bad:
            raise SampleError(ready.bad)
        return Batch(ready.media, to_device(ready.target, self._engine.setup), ready.plan)

    def close(self) -> None:
        self._loaded = iter(())
        self._engine.reader.stop()
