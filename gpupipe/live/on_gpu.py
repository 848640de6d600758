"""Makes the tensors of recipes on a GPU: DALI decodes and resizes, and torch does the rest on whole batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ..engines.dali.options import Options
from ..imports import uncollected
from ..kernels.apply import apply_batch
from ..kernels.registry import has_batch_form
from ..reading.windows import window_of
from ..signal_handlers import deferred
from ..transforms.ops import Op
from .making import FailedImages, Maker, Making, media_of, windows_of
from .on_cpu import OnCpu
from .recipe import Job, Recipe

if TYPE_CHECKING:
    from ..engines.dali.decoding import View
    from ..engines.dali.runner import Piece, Runner

_AHEAD = 3
"""Batches that DALI works on at a time."""


class OnGpu(Maker):
    """See :class:`Maker`. There is a graph for each form of jobs: a few in a training.

    Args:
        host: makes the jobs whose ops have no form for batches, and all if it has a cache or reduces images.
    """

    def __init__(self, device: torch.device, options: Options, host: OnCpu):
        self.device, self.host, self._options = device, host, options
        self._runners: dict[tuple[View, ...], tuple[int, Runner]] = {}
        """Number of images and runner, by the views of a decoded image."""

    def start(self, recipe: Recipe) -> Making:
        return _OnDevice(recipe, self)

    def runner_for(self, views: tuple[View, ...], count: int) -> Runner:
        """Return the runner for up to ``count`` images."""
        from ..engines.dali.decoding import decoding_runner
        from ..engines.dali.graph import DecoderOptions

        most, runner = self._runners.get(views, (0, None))
        if runner is None or most < count:
            decoder = DecoderOptions.of(self._options)
            most = count + count // 4
            runner = decoding_runner(views, self.device, decoder, most=most, threads=self.host.threads, ahead=_AHEAD)
            self._runners[views] = most, runner
        return runner

    def rest(self) -> None:
        self.host.rest()

    def close(self) -> None:
        for _, runner in self._runners.values():
            runner.reset()
        self._runners.clear()
        self.host.close()


@dataclass(eq=False)
class _Decoded:
    """Jobs with the same encoded images, which DALI decodes once.

    Attributes:
        jobs: numbers of the jobs.
        sources: i64[M], the encoded images.
        done: the number of ops of each job that DALI does.
    """

    jobs: list[int]
    sources: npt.NDArray[np.int64]
    piece: Piece
    runner: Runner
    done: list[int]


class _OnDevice(Making):
    """A recipe that DALI and torch make on a GPU."""

    def __init__(self, recipe: Recipe, maker: OnGpu):
        with deferred(), uncollected():
            from ..engines.dali.decoding import View
            from ..engines.dali.runner import Piece

        self._recipe, self._device, media = recipe, maker.device, media_of(recipe)
        all_by_host = maker.host.cache is not None or maker.host.scaled
        self._by_host = [n for n, job in enumerate(recipe.jobs) if all_by_host or not _has_batch_form(job)]
        self._part, self._part_sources = recipe.only(self._by_host)
        self._host = maker.host.start(self._part) if self._by_host else None
        together: dict[bytes, list[int]] = {}
        for number, job in enumerate(recipe.jobs):
            if number not in self._by_host:
                together.setdefault(job.sources.tobytes(), []).append(number)
        self._decoded: list[_Decoded] = []
        for numbers in together.values():
            jobs = [recipe.jobs[number] for number in numbers]
            sources = jobs[0].sources
            after = [_first(job) for job in jobs]
            views = [View.of(job.ops[n:]) for job, n in zip(jobs, after, strict=True)]
            fed: dict[str, Any] = {"media": [media[source] for source in sources.tolist()]}
            for k, (job, n, view) in enumerate(zip(jobs, after, views, strict=True)):
                fed |= view.fed(k, windows_of(job, recipe.sizes), job.ops[n:])
            piece = Piece(recipe, slice(0, len(sources)), fed)
            runner = maker.runner_for(tuple(views), len(sources))
            runner.add([piece])
            runner.begin()
            done = [n + bool(view.interpolation) for n, view in zip(after, views, strict=True)]
            self._decoded.append(_Decoded(numbers, sources, piece, runner, done))

    def result(self) -> list[Tensor]:
        from ..engines.dali.runner import Failed

        made: list[Any] = [None] * len(self._recipe.jobs)
        problems: dict[int, Exception] = {}
        kept = []
        for decoded in self._decoded:
            try:
                images, _ = decoded.runner.get(decoded.piece)
            except Failed:
                problems |= self._problems(decoded.sources)
                if not problems:
                    for number in decoded.jobs:
                        made[number] = self._recipe.by_reference(number).to(self._device)
                continue
            kept.append(images)
            for one_view, number, done in zip(images, decoded.jobs, decoded.done, strict=True):
                made[number] = _finished(one_view, self._recipe.jobs[number].ops[done:])
        if self._host is not None:
            try:
                for number, batch in zip(self._by_host, self._host.result(), strict=True):
                    made[number] = batch.to(self._device)
            except FailedImages as e:
                problems |= {int(self._part_sources[number]): error for number, error in e.problems.items()}
        if problems:
            raise FailedImages(problems)
        self.keep = kept, self._recipe
        return made

    def _problems(self, sources: npt.NDArray[np.int64]) -> dict[int, Exception]:
        found: dict[int, Exception] = {}
        for number in dict.fromkeys(sources.tolist()):
            try:
                self._recipe.picture(number)
            except Exception as e:
                found[number] = e
        return found

    def give_up(self) -> None:
        for decoded in self._decoded:
            decoded.piece.wanted = False
        if self._host is not None:
            self._host.give_up()


def _first(job: Job) -> int:
    """Return the number of ops that decoding does."""
    return int(window_of(job.ops) is not None)


def _has_batch_form(job: Job) -> bool:
    """Return whether torch can do all ops on a batch that DALI does not do."""
    from ..engines.dali.decoding import View

    first = _first(job)
    return all(map(has_batch_form, job.ops[first + bool(View.of(job.ops[first:]).interpolation) :]))


def _finished(images: Any, ops: Sequence[Op]) -> Tensor:
    """Return [B, C, H, W] of images u8[H, W, 3] on the device, after the rest of their ops."""
    shapes = np.asarray(images.shape() if callable(images.shape) else images.shape)
    if (shapes == shapes[:1]).all():
        return apply_batch(from_dlpack(images.as_tensor()).permute(0, 3, 1, 2), ops, "contiguous_format")
    each = [from_dlpack(images[k]).permute(2, 0, 1)[None] for k in range(len(shapes))]
    return torch.cat(
        [apply_batch(x, [op.take(slice(k, k + 1)) if op.rows else op for op in ops]) for k, x in enumerate(each)]
    )
