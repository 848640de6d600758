"""Runs a :class:`~gpupipe.datasets.Mixture`: each dataset has its own engine, and their rows become one batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from ..copy_stream import upload
from ..datasets.mixture import Mixture
from ..errors import BadSample, EngineError, GpupipeError, SampleError
from ..planning.epoch import resolve_plan, with_boxes, with_frames
from ..planning.mixtures import blend_of
from ..reading.buffers import BatchPool
from ..reading.setup import Setup
from ..types import Batch, Plan
from .base import Engine, EngineConfig, Run
from .delivery import target_to_device, to_device
from .following import with_targets


def setups_of(setup: Setup) -> list[Setup]:
    """Return the setup of each dataset of a mixture. They share the workers by their weights."""
    mixture = cast(Mixture, setup.dataset)
    weights = np.array(mixture.weights[0][1])
    # Every part gets at least one worker, unless there are none at all.
    workers = np.maximum(np.round(setup.num_workers * weights / weights.sum()), 1).astype(int).tolist()
    return [
        replace(setup, dataset=part, pipeline=part.transform, num_workers=min(count, setup.num_workers))
        for part, count in zip(mixture.parts, workers, strict=True)
    ]


@dataclass(frozen=True)
class PartEngines(EngineConfig):
    """Options of the engine of each dataset of a mixture."""

    configs: tuple[EngineConfig, ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        return " + ".join(dict.fromkeys(config.name for config in self.configs))

    def check(self, setup: Setup) -> None:
        for config, part in zip(self.configs, setups_of(setup), strict=True):
            config.check(part)

    def build(self, setup: Setup) -> Engine:
        return _PartEngines(
            setup, [with_targets(config.build(part), part) for config, part in self._with(setups_of(setup))]
        )

    def remarks(self, setup: Setup) -> list[str]:
        parts = [remark for config, part in self._with(setups_of(setup)) for remark in config.remarks(part)]
        mixture = cast(Mixture, setup.dataset)
        blend = blend_of(mixture)
        counts = zip(mixture.parts, blend.proportions(0).counts(blend.length).tolist(), strict=True)
        shares = ", ".join(f"{count:,} samples of {part!r}" for part, count in counts)
        return [f"mixture: the first epoch has {shares}", *dict.fromkeys(parts)]

    def _with(self, each: Sequence[Any]) -> Iterator[tuple[EngineConfig, Any]]:
        return zip(self.configs, each, strict=True)


class _PartEngines(Engine):
    def __init__(self, setup: Setup, engines: list[Engine]):
        self._setup = setup
        self._engines = engines
        self._memory = BatchPool(keep=2 * len(setup.dataset.parts[0].transform.outputs))

    def run(self, plans: Iterator[Plan]) -> Run:
        return _PartsRun(self._setup, self._engines, plans, self._memory)

    def close(self) -> None:
        _each(Engine.close, self._engines)

    def rest(self) -> None:
        _each(Engine.rest, self._engines)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the first engine, and in what others differ from it."""
        first, *others = [engine.facts() for engine in self._engines]
        for fact in first:
            values = dict.fromkeys(str(each.get(fact)) for each in (first, *others))
            if len(values) > 1:
                first[fact] = " / ".join(values)
        return first

    def remarks(self) -> list[str]:
        return [remark for engine in self._engines for remark in engine.remarks()]


def _each(do: Callable[[Any], None], parts: Sequence[Any]) -> None:
    """Call ``do`` for each part, and raise its first error afterwards."""
    errors = []
    for part in parts:
        try:
            do(part)
        except Exception as e:
            errors.append(e)
    if errors:
        raise errors[0]


@dataclass(frozen=True)
class _Share:
    """Rows of a batch that belong to one part."""

    part: int
    rows: torch.Tensor
    """i64[R]"""
    plan: Plan
    """Plan of these rows, with indices in the part."""


class _Divided:
    """Plans of a mixture, divided into those of its parts."""

    def __init__(self, setup: Setup, plans: Iterator[Plan]):
        self._mixture = cast(Mixture, setup.dataset)
        self._plans = plans
        self.taken: deque[tuple[Plan, list[_Share]]] = deque()
        """Plans that any part has taken and that are not answered."""
        self._ended = False
        self._waiting: list[deque[Plan]] = [deque() for _ in self._mixture.parts]

    def of(self, part: int) -> Iterator[Plan]:
        """Yield the plans of a part."""
        while True:
            while not self._waiting[part]:
                if not self.more():
                    return
            yield self._waiting[part].popleft()

    def more(self) -> bool:
        """Take another plan. Return ``False`` after the last one, also if others follow later: an engine that has seen
        the end does not ask again."""
        plan = None if self._ended else next(self._plans, None)
        if plan is None:
            self._ended = True
            return False
        shares = self._shares(plan)
        self.taken.append((plan, shares))
        for share in shares:
            self._waiting[share.part].append(share.plan)
        return True

    def _shares(self, plan: Plan) -> list[_Share]:
        numbers, offsets = self._mixture.part_of(plan.indices), self._mixture.offsets
        found = []
        # A part without rows in this batch gets no plan.
        for number in np.unique(numbers).tolist():
            dataset, rows = self._mixture.parts[number], np.flatnonzero(numbers == number)
            indices, keys = plan.indices[rows] - offsets[number], plan.keys[rows]
            part = Plan(plan.seed, plan.epoch, plan.step, indices, keys, len(rows), plan.consumed)
            part = with_frames(dataset, with_boxes(dataset, dataset.transform, part))
            if dataset.sizes is not None:
                part = resolve_plan(part, dataset.transform, dataset.sizes[indices])
            found.append(_Share(number, torch.from_numpy(rows), part))
        return found


class _PartsRun(Run):
    def __init__(self, setup: Setup, engines: Sequence[Engine], plans: Iterator[Plan], memory: BatchPool):
        self._setup = setup
        self._mixture = cast(Mixture, setup.dataset)
        self._memory = memory
        self._divided = _Divided(setup, plans)
        self._runs = [engine.run(self._divided.of(part)) for part, engine in enumerate(engines)]

    def __next__(self) -> Batch:
        if not self._divided.taken and not self._divided.more():
            raise StopIteration
        plan, shares = self._divided.taken.popleft()
        batches: list[Batch] = []
        bad: list[BadSample] = []
        errors: list[Exception] = []
        for share in shares:
            # Every part goes on to its next plan, even if another one failed.
            try:
                batches.append(next(self._runs[share.part]))
            except StopIteration:
                raise EngineError(f"the engine of {self._mixture.parts[share.part]!r} ended before its plans") from None
            except SampleError as e:
                offset = int(self._mixture.offsets[share.part])
                bad += [sample._replace(index=sample.index + offset) for sample in e.samples]
            except GpupipeError as e:
                errors.append(e)
        if errors:
            raise errors[0]
        if bad:
            raise SampleError(bad)
        if self._mixture.transform.mixing:
            # Only mixing is taken from it. That depends on the size of the output, so any large input will do.
            any_size = np.full((len(plan), 2), 4096, np.int32)
            plan = replace(plan, mixing=resolve_plan(plan, self._mixture.transform, any_size).mixing)
        rows, keep = [share.rows for share in shares], [batch.keep for batch in batches if batch.keep is not None]
        join = _Join(rows, len(plan), self._memory)
        target = target_to_device(join([batch.target for batch in batches]), self._setup)
        if isinstance(batches[0].images, Plan):
            return Batch(plan, target, plan)
        images = to_device(join([batch.images for batch in batches]), self._setup)
        return Batch(images, target, plan, keep=keep or None)

    def close(self) -> None:
        self._divided.taken.clear()
        _each(Run.close, self._runs)


@dataclass(frozen=True)
class _Join:
    """Joins the rows of parts to a batch of ``count`` rows."""

    rows: Sequence[torch.Tensor]
    """For each part, its rows i64[R] in the batch."""
    count: int
    memory: BatchPool

    def __call__(self, values: Sequence[Any]) -> Any:
        """Join tensors, lists, or tuples and dictionaries of these."""
        first = values[0]
        # All rows came from one part, or there are no values.
        if len(values) == 1 or first is None:
            return first
        if isinstance(first, dict):
            return {name: self([value[name] for value in values]) for name in first}
        if isinstance(first, tuple):
            return tuple(map(self, zip(*values, strict=True)))
        if isinstance(first, torch.Tensor) and all(
            value.shape[1:] == first.shape[1:] and value.dtype == first.dtype for value in values
        ):
            made = self._like(first)
            for value, rows in zip(values, self.rows, strict=True):
                made[upload([rows], first.device)[0] if first.is_cuda else rows] = value
            return made
        out: list[Any] = [None] * self.count
        for value, rows in zip(values, self.rows, strict=True):
            for row, one in zip(rows.tolist(), value, strict=True):
                out[row] = one
        return out

    def _like(self, part: torch.Tensor) -> torch.Tensor:
        """Return an uninitialized tensor for the batch, in the memory format of a part."""
        # Dimensions by stride, the batch first: channels-last formats have the channels at the end.
        order = [0, *sorted(range(1, part.ndim), key=part.stride, reverse=True)]
        shape = [self.count, *(part.shape[i] for i in order[1:])]
        if part.is_cuda:
            made = torch.empty(shape, dtype=part.dtype, device=part.device)
        else:
            made = self.memory.empty(tuple(shape), part.dtype)
        return made.permute([order.index(i) for i in range(part.ndim)])
