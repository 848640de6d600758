"""One epoch of a loader: plans in, batches out, and in between the samples that could not be read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from ..engines.base import Run
from ..engines.mixing import mix
from ..errors import BadSample, SampleError
from ..planning.epoch import EpochPlan
from ..transforms.ops import split_off_mixing
from ..types import Batch, Plan
from .session import Session
from .state import Cursor

__all__ = ["EpochIterator"]


class _Stream:
    """The plans that an engine takes: repaired ones first, then the epoch's. It refers to no iterator, which would be a
    cycle through the run."""

    def __init__(self, plans: EpochPlan):
        self._plans = iter(plans)
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
            self.due.append(plan.step)
        self.taken.append(plan)
        return plan


class EpochIterator:
    """``iter(loader)``: one epoch, which begins with the first ``next()``."""

    def __init__(self, session: Session):
        self._session: Session | None = session
        self._plans: EpochPlan
        self._cursor: Cursor
        self._stream: _Stream
        self._run: Run | None = None  # until the first next()
        self._ready: dict[int, Batch] = {}
        self._missed: list[BadSample] = []  # of batches that became empty
        self._left = time.perf_counter()

    def _start(self, session: Session) -> None:
        # iter() cannot: frameworks call it to see whether it works, and set the epoch afterwards.
        self._plans, self._cursor = session.begin()
        self._stream = _Stream(self._plans)
        self._run = session.running.run(self._stream)

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        session = self._session
        if session is None:
            raise StopIteration
        session.running.check(session.device)
        entered = time.perf_counter()
        session.stats.work_seconds += entered - self._left
        session.running.renew()
        try:
            # Evaluation may run in inference mode, whose tensors nobody can write to outside of it: neither we, to what
            # the engine keeps, nor the script, to its batch.
            with torch.inference_mode(False):
                if self._run is None:
                    self._start(session)
                return self._deliver(self._next(session), session)
        except StopIteration:
            self._cursor.running = False
            session.stats.epochs += 1
            self.end()
            if session.arguments.persistent_workers is False:
                session.running.close()
            raise
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

    def _next(self, session: Session) -> Batch:
        """The batch that is due. Those that overtake a repaired one wait."""
        stream, bad_samples = self._stream, session.bad_samples
        while True:
            if stream.due and stream.due[0] in self._ready:
                return self._ready.pop(stream.due.popleft())
            try:
                assert self._run is not None
                batch = next(self._run)
            except StopIteration:
                if not stream.repaired:
                    raise
                # The engine had taken its last plan before the repair was asked for.
                self._run = session.running.run(stream)
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

    def _repair(self, step: int, session: Session) -> bool:
        """Ask for a batch again without its bad samples; ``False`` if that is impossible."""
        session.stats.repaired += 1
        plan = self._plans[step]
        if session.bad_samples.known(plan.indices):
            self._stream.due.remove(step)
            self._cursor.delivered = plan.consumed
            return False
        if len(plan):
            self._stream.repaired.append(plan)
        else:
            self._stream.due.remove(step)
            self._missed.extend(plan.bad)
        return True

    def _deliver(self, batch: Batch, session: Session) -> Any:
        plan = batch.plan
        self._cursor.delivered = plan.consumed
        session.valid = plan.valid
        session.stats.batches += 1
        session.stats.samples += plan.valid
        session.running.keep(batch, session.device)
        missed, self._missed = [*self._missed, *plan.bad], []
        if missed:
            session.report.add(missed)
            session.bad_samples.count(missed)
        images, target = batch.images, batch.target
        changes = () if plan.ops is None or images is plan else split_off_mixing(plan.ops)[1]
        if changes:
            images, target = mix(images, target, changes)
        return images if target is None else [images, target]

    def end(self) -> None:
        """Nothing more comes out of this iterator."""
        if self._session is not None:
            self._session = None
            self._ready.clear()
            if self._run is not None:
                self._run.close()
