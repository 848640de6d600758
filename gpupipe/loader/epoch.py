"""One epoch of a loader: plans in, batches out, and in between the samples that could not be read."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from ..datasets.sample_form import SampleForm
from ..engines.base import Engine, Run
from ..engines.mixing import mix
from ..errors import SampleError
from ..planning.bad_samples import BadSamples
from ..planning.batches import Slices
from ..planning.epoch import EpochPlan
from ..types import Batch, Plan
from .arguments import Arguments
from .bad_sample_report import BadSampleReport
from .collating import Collate
from .running import Lease, Running
from .session import Stats
from .state import Cursor, Position

__all__ = ["EpochIterator"]


class _Stream:
    """The plans that an engine takes: repaired ones first, then the epoch's. It refers to no iterator, which would be a
    cycle through the run."""

    def __init__(self, plans: EpochPlan):
        self._plans = iter(plans)
        self.empty: deque[Plan] = deque()
        """Without any good sample, so that no engine sees them."""
        self.repaired: deque[Plan] = deque()
        self.taken: deque[Plan] = deque()
        """Taken by the engine and not answered yet, in order."""
        self.due: deque[int] = deque()
        """Steps to be handed out, in order."""

    def __iter__(self) -> Iterator[Plan]:
        return self

    def __next__(self) -> Plan:
        if self.repaired:
            plan = self.repaired.popleft()
        else:
            plan = next(self._plans)
            while not len(plan):
                self.empty.append(plan)
                plan = next(self._plans)
            self.due.append(plan.step)
        self.taken.append(plan)
        return plan


class Source(Protocol):
    """What an iterator asks of the session that made it, and writes into it."""

    arguments: Arguments
    device: torch.device
    stats: Stats
    report: BadSampleReport
    valid: int
    position: Position
    running: Running
    generation: int
    """Iterators of an earlier one have ended."""
    bad_samples: BadSamples

    collate: Collate | None
    """The script's own."""

    @property
    def form(self) -> SampleForm | None:
        """Of a batch."""

    def begin(self) -> tuple[EpochPlan, Cursor]:
        """The next epoch: its plans, and where its iterator notes how far it has come."""

    def rest_of(self, plans: EpochPlan, cursor: Cursor) -> EpochPlan:
        """What is left of an epoch that was interrupted."""

    def build(self) -> Engine:
        """Another engine."""

    @property
    def user_code_is_sent(self) -> bool:
        """Whether worker processes run user code, and should have it as it is when an epoch begins."""


class EpochIterator:
    """``iter(loader)``: one epoch, which begins with the first ``next()``.

    Another iterator may take its engine. Then it goes on where it stood, as soon as it is asked for more.
    """

    def __init__(self, session: Source):
        self._session: Source | None = session
        self._generation = session.generation
        self._lease = Lease(session.device)
        self._plans: EpochPlan | None = None  # until the first next()
        self._cursor: Cursor
        self._stream: _Stream
        self._ready: dict[int, Batch] = {}
        self._step = -1  # of the batch just handed out
        self._left = time.perf_counter()
        weakref.finalize(self, session.running.release, self._lease)

    def _start(self, session: Source) -> None:
        if self._plans is None:
            # iter() cannot: frameworks call it to see whether it works, and set the epoch afterwards.
            self._plans, self._cursor = session.begin()
        else:
            self._plans = session.rest_of(self._plans, self._cursor)
        self._ready.clear()
        self._stream = _Stream(self._plans)
        self._run(session)

    def _run(self, session: Source) -> Run:
        return session.running.run(self._lease, self._stream, session.build)

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        session = self._session
        if session is None or session.generation != self._generation:
            self.end()
            raise StopIteration
        session.running.check(session.device)
        entered = time.perf_counter()
        session.stats.work_seconds += entered - self._left
        self._lease.renew()
        try:
            # Evaluation may run in inference mode, whose tensors nobody can write to outside of it: neither we, to what
            # the engine keeps, nor the script, to its batch.
            with torch.inference_mode(False):
                if self._lease.run is None:
                    self._start(session)
                batch = self._next(session)
                if batch is not None:
                    return self._deliver(batch, session)
                self._finish(session)
        except SampleError:
            raise
        except Exception:
            self.end()  # the state stays where it was; a new iter() starts cleanly
            raise
        except BaseException:
            # Interrupted, anywhere: threads and processes end with the epoch, and the next one gets new ones.
            self.end()
            session.running.close()
            raise
        finally:
            self._left = time.perf_counter()
            session.stats.wait_seconds += self._left - entered
        raise StopIteration

    def _finish(self, session: Source) -> None:
        """The epoch is over. Raises :class:`SampleError` if last batches became empty, and that makes one too many."""
        self._cursor.running = False
        session.stats.epochs += 1
        engine = self._lease.engine
        self.end(stop=session.arguments.persistent_workers is False)
        if engine is not None and session.user_code_is_sent:
            engine.renew()
        self._count(None, session)

    def _next(self, session: Source) -> Batch | None:
        """The batch that is due, or ``None`` if there are no more. Those that overtake a repaired one wait."""
        stream, bad_samples = self._stream, session.bad_samples
        while True:
            if stream.due and stream.due[0] in self._ready:
                return self._ready.pop(stream.due.popleft())
            try:
                assert self._lease.run is not None
                batch = next(self._lease.run)
            except StopIteration:
                if not stream.repaired:
                    return None
                # The engine had taken its last plan before the repair was asked for.
                self._lease.stop()
                self._run(session)
                continue
            except SampleError as e:
                plan = stream.taken.popleft()
                if bad_samples.on_error == "raise":
                    stream.due.popleft()
                    self._cursor.delivered = plan.consumed
                    session.report.add(e.samples)
                    raise
                bad_samples.learn(e.samples)
                if not self._repair(plan.step, session):
                    session.report.add(e.samples)
                    raise SampleError(e.samples, "no other sample of the batch can stand in for these:") from None
                continue
            plan = stream.taken.popleft()
            self._ready[plan.step] = batch

    def _repair(self, step: int, session: Source) -> bool:
        """Ask for a batch again without its bad samples; ``False`` if that is impossible."""
        session.stats.repaired += 1
        assert self._plans is not None
        plan = self._plans[step]
        if session.bad_samples.known(plan.indices):
            self._stream.due.remove(step)
            self._cursor.delivered = plan.consumed
            return False
        if len(plan):
            self._stream.repaired.append(plan)
        else:
            self._stream.due.remove(step)
            self._stream.empty.append(plan)
        return True

    def _deliver(self, batch: Batch, session: Source) -> Any:
        plan = batch.plan
        self._cursor.delivered, self._step = plan.consumed, plan.step
        session.position.at(self._cursor)
        session.valid = plan.valid
        session.stats.batches += 1
        session.stats.samples += plan.valid
        self._lease.keep(batch)
        self._count(plan, session)
        images, target = batch.images, batch.target
        if plan.mixing and images is not plan:
            images, target = _mixed(images, target, plan)
        if session.collate is not None:
            return session.collate(images, target, plan)
        if session.form is not None:
            return session.form.batch(images, target)
        return images if target is None else [images, target]

    @property
    def last(self) -> int | None:
        """``None`` if another batch follows the one just handed out, or that is not known yet. Otherwise how many
        samples all ranks together have in it, one rank after the other: 0 if it is as large as those before it, -1 if
        they are not next to each other."""
        batches = self._plans.batches if self._plans is not None else None
        if not isinstance(batches, Slices) or batches.has(self._step + 1):
            return None
        return -1 if batches.strided else int(batches.window(self._step)[1]) % batches.global_batch

    def _count(self, plan: Plan | None, session: Source) -> None:
        """Count what a batch went without, and the empty ones before it; ``None``: those after the last."""
        empty = self._stream.empty
        before = [it for it in empty if plan is None or it.step < plan.step]
        for it in before:
            empty.remove(it)
        missed = [bad for it in (*before, *([plan] if plan is not None else [])) for bad in it.bad]
        if missed:
            session.report.add(missed)
            session.bad_samples.count(missed)

    def end(self, *, stop: bool = False) -> None:
        """Nothing more comes out of this iterator. ``stop``: nor out of its engine."""
        session, self._session = self._session, None
        if session is not None:
            self._ready.clear()
            session.running.release(self._lease, stop=stop)


def _mixed(images: Any, target: Any, plan: Plan) -> tuple[Any, Any]:
    """The batch with its labels mixed. Further columns stay those of the sample whose place it is."""
    ours = plan.ops is not None and all(op.sendable for op in plan.ops)  # user code may have kept what it was given
    if not isinstance(target, dict) or "label" not in target:
        return mix(images, target, plan.mixing, inplace=ours)
    images, labels = mix(images, target["label"], plan.mixing, inplace=ours)
    return images, {**target, "label": labels}
