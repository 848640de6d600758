"""What is fed to DALI for a plan, and where it comes from: the index, or worker processes that run a user's code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...errors import BadSample
from ...planning.epoch import resolve_missing
from ...reading.plan_workers import WorkerRun, Workers
from ...reading.png_copies import PngCopies, Swap
from ...reading.setup import Setup
from ...types import Plan
from ..delivery import labels_of
from ..torch.worker_tasks import Pack, Packed

__all__ = ["Feeder", "Ready", "feeder_for", "padded"]

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Ready:
    """A plan with everything that DALI needs for it."""

    plan: Plan
    media: Any = None
    """u8[B, L] paths with zeros behind them, or a list of u8[L] encoded bytes or u8[H, W, 3] pixels."""
    target: Any = None
    bad: tuple[BadSample, ...] = ()
    """Samples that are known to be bad; then nothing else is there."""
    owner: Any = None
    """Pinned memory that ``media`` points into: it must live until the GPU has copied out of it."""


class Feeder(ABC):
    """Turns plans into what DALI is fed, in order."""

    @abstractmethod
    def run(self, plans: Iterator[Plan]) -> Iterator[Ready]:
        """Start on ``plans``; what an earlier run left is given up."""

    @abstractmethod
    def stop(self) -> None:
        """Give up the present run."""

    @abstractmethod
    def close(self) -> None:
        """Stop every process."""

    def facts(self) -> dict[str, Any]:
        """What a person wants to know, beside the engine's own facts."""
        return {}


def feeder_for(setup: Setup) -> Feeder:
    if setup.dataset.media == "clip":
        from .clips import ClipFeeder

        return ClipFeeder(setup)
    return WorkerFeeder(setup) if setup.dataset.runs_user_code else IndexFeeder(setup)


class IndexFeeder(Feeder):
    """From a dataset with an index. Files are not read here, DALI's own threads do that."""

    def __init__(self, setup: Setup):
        self._dataset = setup.dataset
        self._pinned = setup.cuda
        self._standins = PngCopies.of(setup.dataset, setup.threads)

    def run(self, plans: Iterator[Plan]) -> Iterator[Ready]:
        return map(self._ready, plans)

    def _ready(self, plan: Plan) -> Ready:
        dataset = self._dataset
        bad = dataset.bad(plan.indices)
        if bad:
            return Ready(plan, bad=tuple(bad))
        target = labels_of(dataset, plan)
        if dataset.media == "path":
            paths = dataset.encoded_paths(plan.indices)
            if self._standins is not None:
                bad = self._standins.exchange(plan.indices, paths)
                if bad:
                    return Ready(plan, bad=tuple(bad))
            return Ready(plan, padded(paths), target)
        arrays = [_rgb(dataset.fetch(i)[0]) for i in plan.indices.tolist()]
        owner = None
        if self._pinned:
            # On the CPU by name: somebody may have called torch.set_default_device().
            owner = torch.empty(sum(a.size for a in arrays), dtype=torch.uint8, device="cpu", pin_memory=True)
            views = _views(owner, np.cumsum([0, *(a.size for a in arrays[:-1])]).tolist(), [a.shape for a in arrays])
            for view, array in zip(views, arrays, strict=True):
                view[...] = array
            arrays = views
        return Ready(plan, arrays, target, owner=owner)

    def stop(self) -> None:
        pass

    def close(self) -> None:
        if self._standins is not None:
            self._standins.close()


class WorkerFeeder(Feeder):
    """From a dataset of somebody's Python code, which runs in worker processes."""

    def __init__(self, setup: Setup):
        self._media = setup.dataset.media
        self._pipeline = setup.pipeline
        self._workers: Workers[Packed] = Workers(
            Pack(setup.dataset, setup.pipeline, Swap(setup.dataset.exif, setup.dataset.max_pixels)),
            setup,
            pin_memory=setup.cuda and self._media == "array",
        )
        self._run: WorkerRun[Packed] | None = None

    def run(self, plans: Iterator[Plan]) -> Iterator[Ready]:
        self._run = self._workers.run(plans)
        return map(self._ready, self._run)

    def _ready(self, result: tuple[Plan, Packed]) -> Ready:
        plan, packed = result
        if packed.bad:
            return Ready(plan, bad=tuple(packed.bad))
        assert packed.blob is not None
        media = _views(packed.blob, packed.offsets, packed.shapes)
        return Ready(
            resolve_missing(packed.plan or plan, self._pipeline),
            padded(media) if self._media == "path" else media,
            packed.target,
            owner=packed.blob if packed.blob.is_pinned() else None,
        )

    def stop(self) -> None:
        if self._run is not None:
            self._run.close()

    def close(self) -> None:
        self._workers.close()


def _views(blob: torch.Tensor, offsets: list[int], shapes: list[Any]) -> list[U8]:
    """Arrays that point into one piece of memory."""
    flat = blob.numpy()
    return [flat[at : at + int(np.prod(shape))].reshape(shape) for at, shape in zip(offsets, shapes, strict=True)]


def padded(rows: list[U8]) -> U8:
    """u8[B, L] out of rows of different lengths, with at least one zero behind each.

    One array is fed much faster than many, and ``io.file.read`` takes a path up to its first zero, as C does.
    """
    out = np.zeros((len(rows), max(map(len, rows)) + 1), np.uint8)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def _rgb(media: Any) -> U8:
    """u8[H, W, 3] of u8[H, W, C]; a single channel is repeated, as decoding a grayscale file does."""
    array = np.asarray(media)
    return np.ascontiguousarray(np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array)
