"""Iterator of one epoch: submits plans to an engine, delivers batches and repairs those with samples that
cannot be read."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ..datasets.sample_form import SampleForm
from ..engines.base import Engine, Run
from ..engines.delivery import delivered
from ..engines.mixing import mix
from ..errors import BadSample, PipelineError, SampleError
from ..planning.bad_samples import FROM_EPOCH, PASSING, BadSamples
from ..planning.epoch import EpochPlan
from ..stages import USER_CODE
from ..types import Batch, Plan
from .arguments import Arguments
from .bad_sample_report import BadSampleReport
from .bottleneck import Meter
from .collating import Collate, stacked, without_padding
from .plan_stream import PlanStream
from .running import Lease, Running, one_thread_in_forks
from .session import Counts
from .state import Cursor

_ALL_GONE = (
    f"no other sample can replace these: all samples of the epoch, or {FROM_EPOCH:,} of them, were tried, and none is "
    "good. Check that the storage of the files is available:"
)

_GO_ON = (
    'on_error="skip" or on_error="replace" goes on without bad samples; for a folder, gpupipe index lists all of them'
)

_NOTHING_LEFT = "this epoch has no batch, because all of its samples are bad. "
_CHECK_STORAGE = "Check that the storage of the files is available:"
_CHECK_FILES = "The files can be read, and what is in them cannot be used:"


@dataclass(frozen=True)
class Ahead:
    """The next epoch, which an engine already works on."""

    lease: Lease
    stream: PlanStream


class Source(Protocol):
    """What an iterator uses of the session that made it, :class:`~gpupipe.loader.planned.PlannedSession`."""

    arguments: Arguments
    device: torch.device
    stats: Counts
    report: BadSampleReport
    valid: int
    running: Running
    generation: int
    bad_samples: BadSamples
    collate: Collate | None
    ahead: Ahead | None

    @property
    def position(self) -> Any: ...
    @property
    def form(self) -> SampleForm | None: ...
    @property
    def stops(self) -> bool: ...
    def begin(self) -> tuple[EpochPlan, Cursor]: ...
    def following(self, later: int) -> EpochPlan | None: ...
    def build(self) -> Engine: ...


class EpochIterator:
    """``iter(loader)``: one epoch, which begins with the first ``next()``.

    If another iterator takes its engine, it continues where it stood as soon as it is asked for more.
    """

    def __init__(self, session: Source, length: Callable[[], int] | None = None):
        self._session: Source | None = session
        self._length = length
        self._generation = session.generation
        self._lease = Lease()
        self._plans: EpochPlan | None = None  # until the first next()
        self._cursor: Cursor
        self._stream: PlanStream
        self._ready: dict[int, Batch] = {}
        self._step = -1  # of the batch just handed out
        self._whole = True
        """Whether the epoch began with its first batch."""
        self._goes_on = False
        """Whether the epoch continues after an exception."""
        self._left = time.perf_counter()
        self._meter = Meter(session.stats.measured)
        self._finalizer = session.running.finalize(self, self._lease)

    def _start(self, session: Source) -> None:
        begins = self._plans is None
        if self._plans is None:
            # Not in iter(): frameworks call it to see whether it works, and set the epoch afterwards.
            self._plans, self._cursor = session.begin()
            self._whole = self._cursor.delivered == 0
        else:
            # Another iterator took the engine: go on where this one stood.
            self._plans = replace(self._plans, batches=self._plans.batches.rest(self._cursor.delivered))
        self._ready.clear()
        ahead = session.ahead
        if ahead is not None:
            # Only an epoch that begins can be the one that was prepared.
            goes_on = begins and ahead.lease.run is not None and ahead.stream.go_on(self._plans)
            session.ahead = None
            if goes_on:
                self._stream = ahead.stream
                session.running.hand_on(ahead.lease, self._lease)
                return
            session.running.release(ahead.lease)
        self._stream = PlanStream(self._plans, _following(session))
        self._run(session)

    def _run(self, session: Source) -> Run:
        return session.running.run(self._lease, self._stream, session.build)

    def __repr__(self) -> str:
        if self._plans is None:
            return "EpochIterator(begins with the first next())"
        if self._session is None:
            return f"EpochIterator(epoch {self._cursor.epoch}, ended after batch {self._step})"
        return f"EpochIterator(epoch {self._cursor.epoch}, after batch {self._step})"

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        """Batches of the whole epoch, as torch's iterator counts them. Raises TypeError if it has no end."""
        if self._length is None:
            raise TypeError("this epoch has no length")
        return self._length()

    def __next__(self) -> Any:
        session = self._session
        if session is None:
            raise StopIteration
        session.running.check(session.device)
        with session.running.one_at_a_time, one_thread_in_forks():
            try:
                return self._next_of(session)
            except Exception:
                raise
            except BaseException:
                # Interrupted at any point: threads and processes end with the epoch, and the next epoch gets new ones.
                self.end()
                session.running.close()
                raise

    def _next_of(self, session: Source) -> Any:
        if self._plans is None:
            self._generation = session.generation  # a state that was loaded before the first batch is where it begins
        if self._session is None or session.generation != self._generation:
            self.end()
            raise StopIteration
        entered = time.perf_counter()
        session.stats.work_seconds += entered - self._left
        self._meter.enter()
        self._lease.renew()
        # inference_mode(False) would also turn gradients on, which user code can see.
        self._goes_on, grad = False, torch.is_grad_enabled()
        try:
            # Evaluation may run in inference mode. Tensors made there cannot be written to outside of it: neither the
            # buffers that the engine keeps, by us, nor the batch, by the script.
            with torch.inference_mode(False), torch.set_grad_enabled(grad):
                if self._lease.run is None:
                    self._start(session)
                batch = self._next(session)
                if batch is not None:
                    self._goes_on = True  # if the script's collate_fn raises
                    return self._deliver(batch, session)
                self._finish(session)
        except SampleError:
            raise
        except Exception:
            # If the script's code raises, torch's iterator continues with the next batch as well.
            if not self._goes_on:
                self.end()  # the state does not move; a new iter() starts afresh
            raise
        finally:
            self._meter.leave()
            self._left = time.perf_counter()
            session.stats.wait_seconds += self._left - entered
        raise StopIteration

    def _finish(self, session: Source) -> None:
        """End the epoch. Raises :class:`SampleError` if its last batches became empty and exceed the allowed number."""
        self._cursor.running = False
        session.stats.epochs += 1
        engine = self._lease.engine
        # The first engine stays and continues with the next epoch; further engines end with their iterators.
        if self._stream.is_ahead and engine is session.running.engine and session.ahead is None:
            lease = Lease()
            session.running.hand_on(self._lease, lease)
            session.ahead = Ahead(lease, self._stream)
        self.end(stop=session.stops)
        if engine is not None:
            engine.rest()
        missed = self._count(None, session)
        # No batch was delivered, although the epoch began with its first one.
        if missed and self._step < 0 and self._whole:
            of_storage = any(bad.kind in ("missing", *PASSING) for bad in missed)
            raise SampleError(missed, _NOTHING_LEFT + (_CHECK_STORAGE if of_storage else _CHECK_FILES))

    def _next(self, session: Source) -> Batch | None:
        """Return the batch that is due, or ``None`` at the end. Batches that overtake a repaired one wait."""
        stream, bad_samples = self._stream.now, session.bad_samples
        while True:
            if stream.due:
                if stream.due[0] in self._ready:
                    return self._ready.pop(stream.due.popleft())
            elif stream.ended:
                return None
            try:
                assert self._lease.run is not None
                batch = next(self._lease.run)
            except StopIteration:
                if not stream.repaired:
                    return None
                self._again(session)
                continue
            except PipelineError:
                self._pass_over(session)
                raise
            except SampleError as e:
                # A run answers plans in order, so this is the oldest one.
                plan = stream.taken.popleft()
                if self._asked_past_caches(e.samples, plan, session):
                    continue
                if bad_samples.on_error == "raise":
                    stream.due.popleft()
                    self._cursor.delivered = plan.consumed
                    session.report.add(e.samples)
                    e.args = (f"{e}\n{_GO_ON}",)
                    raise
                bad_samples.learn(e.samples)
                lost = self._repair(plan.step, session)
                if lost:
                    session.report.add(lost)
                    raise SampleError(lost, _ALL_GONE) from None
                # The engine already has plans of the next epoch, and would make the repaired batch after them.
                if stream.repaired and self._stream.is_ahead:
                    self._again(session)
                continue
            plan = stream.taken.popleft()
            self._ready[plan.step] = batch

    def _asked_past_caches(self, bad: Sequence[BadSample], plan: Plan, session: Source) -> bool:
        """Ask for a batch again if its bad samples were read from cached copies, which may be damaged. The copies are
        deleted.

        Returns ``False`` if there were no copies, or the samples were read again already.
        """
        assert self._plans is not None
        dataset = self._plans.dataset
        if not sum(map(dataset.forget, session.bad_samples.unproven(bad))):
            return False
        self._ask_again(plan, session)
        return True

    def _ask_again(self, plan: Plan, session: Source) -> None:
        assert self._plans is not None
        session.stats.repaired += 1
        self._stream.now.repaired.append(self._plans[plan.step])
        if self._stream.is_ahead:
            self._again(session)

    def _pass_over(self, session: Source) -> None:
        """Continue with the next batch after a function of the script failed on one, if no other batch is due
        before."""
        stream = self._stream.now
        if stream.taken and stream.due and stream.taken[0].step == stream.due[0]:
            self._cursor.delivered = stream.taken.popleft().consumed
            stream.due.popleft()
            self._again(session)
            self._goes_on = True

    def _again(self, session: Source) -> None:
        """Restart the engine, which had taken the last plan of the epoch before a repair was requested."""
        self._lease.stop()
        self._stream.back()
        self._run(session)

    def _repair(self, step: int, session: Source) -> tuple[BadSample, ...]:
        """Ask for a batch again without its bad samples. Returns them if no other sample can replace them."""
        session.stats.repaired += 1
        assert self._plans is not None
        plan, stream = self._plans[step], self._stream.now
        # The repaired plan still has samples that are bad: there are no others to replace them.
        if session.bad_samples.known(plan.indices):
            stream.due.remove(step)
            self._cursor.delivered = plan.consumed
            return plan.bad
        if len(plan):
            stream.repaired.append(plan)
        else:
            stream.due.remove(step)
            stream.empty.append(plan)
        return ()

    def _deliver(self, batch: Batch, session: Source) -> Any:
        plan = batch.plan
        # Before the script's collate function runs: if that raises, the next batch follows.
        self._cursor.delivered, self._step = plan.consumed, plan.step
        session.position.at(self._cursor)
        session.valid = plan.valid
        session.stats.batches += 1
        session.stats.samples += plan.valid
        self._lease.keep(batch)
        self._count(plan, session)
        images, target = batch.images, batch.target
        # The null engine delivers the plan itself as images.
        if images is not plan:
            images = without_padding(images, plan)
        if session.collate is None:
            images = stacked(images)
        if plan.mixing and images is not plan:
            images, target = _mixed(images, target, plan)
        if session.collate is not None:
            return _collated(session.collate, session, images, target, plan)
        if session.form is not None:
            return session.form.batch(images, target)
        return images if target is None else [images, target]

    @property
    def last(self) -> int | None:
        """``None`` if another batch follows the one just delivered, or if that is unknown.

        Otherwise the number of samples that all ranks together have in it, in rank order: 0 if it is as large as the
        batches before it, -1 if these samples are not contiguous.
        """
        return None if self._plans is None else self._plans.batches.tail(self._step)

    def _count(self, plan: Plan | None, session: Source) -> list[BadSample]:
        """Count the samples missing from a batch, and the empty batches before it; ``None`` counts those after
        the last batch."""
        empty = self._stream.now.empty
        before = [it for it in empty if plan is None or it.step < plan.step]
        for it in before:
            empty.remove(it)
        missed = [bad for it in (*before, *([plan] if plan is not None else [])) for bad in it.bad]
        if missed:
            session.report.add(missed)
            session.bad_samples.count(missed)
        return missed

    def end(self, *, stop: bool = False) -> None:
        """End the iterator. With ``stop``, end its engine as well."""
        session, self._session = self._session, None
        if session is not None:
            self._ready.clear()
            session.running.release(self._lease, stop=stop)
            self._finalizer.detach()  # Python swallows what a signal handler raises in a finalizer


def _collated(collate: Collate, session: Source, *samples: Any) -> Any:
    """Return the batch that a collate function makes of samples, on the loader's device."""
    with USER_CODE:
        made = collate(*samples)
    return delivered(made, session.device, session.arguments.pin_memory)


def _mixed(images: Any, target: Any, plan: Plan) -> tuple[Any, Any]:
    """Mix the labels of a batch. Further columns keep the values of the original sample."""
    ours = plan.ops is not None and all(op.sendable for op in plan.ops)  # user code may hold a reference to its input
    if not isinstance(target, dict) or "label" not in target:
        return mix(images, target, plan.mixing, inplace=ours)
    images, labels = mix(images, target["label"], plan.mixing, inplace=ours)
    return images, {**target, "label": labels}


def _following(session: Source) -> Callable[[int], EpochPlan | None]:
    """Return the function by which an engine takes plans ahead. It does not keep the session alive."""
    found = weakref.ref(session)

    def following(later: int) -> EpochPlan | None:
        session = found()
        return None if session is None else session.following(later)

    return following
