"""One epoch of a loader: plans in, batches out, and in between the samples that could not be read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..engines.base import Engine, Run
from ..engines.mixing import mix
from ..errors import BadSample, SampleError
from ..planning.epoch import EpochPlan
from ..transforms.ops import split_off_mixing
from ..types import Batch, Plan

if TYPE_CHECKING:
    from .dataloader import DataLoader

__all__ = ["Cursor", "EpochIterator", "Stats"]


@dataclass
class Cursor:
    """How far an epoch has come."""

    epoch: int = 0
    delivered: int = 0
    running: bool = False


@dataclass
class Stats:
    """What a loader counted since it was made."""

    epochs: int = 0
    batches: int = 0
    samples: int = 0
    repaired: int = 0
    """Batches that were read a second time, because a sample turned out to be bad."""
    wait_seconds: float = 0.0
    work_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        total = self.wait_seconds + self.work_seconds
        return {**asdict(self), "stall": self.wait_seconds / total if total else 0.0}


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
    """``iter(loader)``. It keeps the loader alive, and the loader does not keep it alive."""

    def __init__(self, loader: DataLoader, engine: Engine):
        self._loader: DataLoader | None = loader
        self._engine = engine
        self._plans: EpochPlan
        self._cursor: Cursor
        self._stream: _Stream
        self._run: Run | None = None  # until the first next()
        self._ready: dict[int, Batch] = {}
        self._missed: list[BadSample] = []  # of batches that became empty
        self._left = time.perf_counter()

    def _start(self, loader: DataLoader) -> None:
        self._plans, self._cursor = loader._begin()
        self._stream = _Stream(self._plans)
        self._run = loader._running.run = self._engine.run(self._stream)

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if loader is None:
            raise StopIteration
        loader._running.check(loader.device)
        entered = time.perf_counter()
        loader._stats.work_seconds += entered - self._left
        loader._running.renew_lease()
        try:
            # Evaluation may run in inference mode, whose tensors nobody can write to outside of it: neither we, to what
            # the engine keeps, nor the script, to its batch.
            with torch.inference_mode(False):
                if self._run is None:
                    self._start(loader)
                return self._deliver(self._next(), loader)
        except StopIteration:
            self._cursor.running = False
            loader._stats.epochs += 1
            self.end()
            if not loader._persistent:
                loader._running.close()
            raise
        except SampleError:
            raise
        except Exception:
            self.end()  # the state stays where it was; a new iter() starts cleanly
            raise
        except BaseException:
            # Interrupted, anywhere: threads and processes end with the epoch, and the next one gets new ones.
            self.end()
            loader._running.close()
            raise
        finally:
            self._left = time.perf_counter()
            loader._stats.wait_seconds += self._left - entered

    def _next(self) -> Batch:
        """The batch that is due. Those that overtake a repaired one wait."""
        assert self._loader is not None
        stream, policy = self._stream, self._loader._policy
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
                self._run = self._loader._running.run = self._engine.run(stream)
                continue
            except SampleError as e:
                plan = stream.taken.popleft()
                if policy.on_error == "raise":
                    stream.due.popleft()
                    self._cursor.delivered = plan.consumed
                    self._loader._report.add(e.samples)
                    raise
                policy.learn(e.samples)
                if not self._repair(plan.step):
                    self._loader._report.add(e.samples)
                    raise SampleError(e.samples, "no other sample of the batch can stand in for these:") from None
                continue
            plan = stream.taken.popleft()
            self._ready[plan.step] = batch

    def _repair(self, step: int) -> bool:
        """Ask for a batch again without its bad samples; ``False`` where that is impossible."""
        assert self._loader is not None
        self._loader._stats.repaired += 1
        plan = self._plans[step]
        if self._loader._policy.known(plan.indices):
            self._stream.due.remove(step)
            self._cursor.delivered = plan.consumed
            return False
        if len(plan):
            self._stream.repaired.append(plan)
        else:
            self._stream.due.remove(step)
            self._missed.extend(plan.bad)
        return True

    def _deliver(self, batch: Batch, loader: DataLoader) -> Any:
        plan = batch.plan
        self._cursor.delivered = plan.consumed
        loader.valid = plan.valid
        loader._stats.batches += 1
        loader._stats.samples += plan.valid
        loader._running.lease(batch, loader.device)
        missed, self._missed = [*self._missed, *plan.bad], []
        if missed:
            loader._report.add(missed)
            loader._policy.bear(missed)
        images, target = batch.images, batch.target
        changes = () if plan.ops is None or images is plan else split_off_mixing(plan.ops)[1]
        if changes:
            images, target = mix(images, target, changes)
        return images if target is None else [images, target]

    def end(self) -> None:
        """Nothing more comes out of this iterator."""
        if self._loader is not None:
            self._loader = None
            self._ready.clear()
            if self._run is not None:
                self._run.close()
