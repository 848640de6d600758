"""Makes targets move with their images, for every engine: in threads, ahead of the training loop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ..codecs.patience import Pool
from ..errors import SampleError
from ..reading.setup import Setup
from ..reading.targets import collated, follow, following, unreadable
from ..reading.torch_threads import torch_threads
from ..targets import Target
from ..types import Batch, Plan
from .base import Engine, Run
from .delivery import target_to_device


def with_targets(engine: Engine, setup: Setup) -> Engine:
    """Return an engine whose batches have the targets that move with images; the same engine if there are none."""
    columns = following(setup.dataset)
    return _Following(engine, setup, columns) if columns else engine


class _Following(Engine):
    """Another engine, beside which threads make the targets of every plan that it takes."""

    def __init__(self, engine: Engine, setup: Setup, columns: Mapping[str, Target]):
        self._engine = engine
        self._setup = setup
        self._columns = columns
        self._pool: Pool | None = None

    def run(self, plans: Iterator[Plan]) -> Run:
        if self._pool is None:
            self._pool = torch_threads(self._setup.threads, "gpupipe-targets")
        return _FollowingRun(self._engine, plans, self._setup, self._columns, self._pool)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        try:
            self._engine.close()
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def rest(self) -> None:
        self._engine.rest()

    def facts(self) -> dict[str, Any]:
        return {**self._engine.facts(), "targets": ", ".join(self._columns)}

    def remarks(self) -> list[str]:
        return self._engine.remarks()


_Part = dict[str, Any]


class _FollowingRun(Run):
    def __init__(self, engine: Engine, plans: Iterator[Plan], setup: Setup, columns: Mapping[str, Target], pool: Pool):
        self._setup = setup
        self._columns = columns
        self._pool = pool
        self._waiting: deque[list[Future[_Part]]] = deque()
        """Parts of the targets of every plan that the engine took and has not answered, in order."""
        self._run = engine.run(map(self._begin, plans))

    def _begin(self, plan: Plan) -> Plan:
        # Plans of a dataset without an index have no sizes yet; see _made.
        self._waiting.append([] if plan.ops is None else self._parts(plan))
        return plan

    def _parts(self, plan: Plan) -> list[Future[_Part]]:
        step = max(1, math.ceil(len(plan) / self._setup.threads))
        rows = [slice(start, min(start + step, len(plan))) for start in range(0, len(plan), step)]
        return [self._pool.submit(follow, self._columns, self._setup.pipeline, plan, part) for part in rows]

    def __next__(self) -> Batch:
        try:
            batch = next(self._run)
        except StopIteration:
            raise
        except BaseException:
            # An error answers the oldest plan.
            for part in self._waiting.popleft() if self._waiting else ():
                part.cancel()
            raise
        parts = self._waiting.popleft()
        target = {**batch.target, **self._made(batch.plan, parts or self._parts(batch.plan))}
        return replace(batch, target=target)

    def _made(self, plan: Plan, parts: list[Future[_Part]]) -> dict[str, Any]:
        """Return the columns on the device. Raises :class:`SampleError` for values that cannot be read."""
        found = [part.result() for part in parts]
        made = {name: [value for part in found for value in part[name]] for name in self._columns}
        bad = unreadable(self._setup.dataset, plan, made)
        if bad:
            raise SampleError(bad)
        values = {name: collated(target, made[name]) for name, target in self._columns.items()}
        moved: dict[str, Any] = target_to_device(values, self._setup)
        return moved

    def close(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for part in (part for parts in waiting for part in parts):
            part.cancel()
        self._run.close()
