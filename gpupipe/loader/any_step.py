"""Plans and batches of any step, without the steps before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from ..datasets.dataset import Dataset
from ..errors import ConfigError, StepError
from ..planning.batches import I64, Batches
from ..planning.epoch import EpochPlan
from ..planning.order import Order
from ..types import Plan, check_integer
from .bad_sample_report import BadSampleReport
from .batching import Batching
from .epoch import Ahead, EpochIterator, Source
from .session import Counts
from .state import Cursor


class Planned(Source, Protocol):
    """A session whose epochs are functions of their number."""

    batching: Batching

    @property
    def seed(self) -> int: ...
    def plans(self, order: Order, cursor: Cursor) -> EpochPlan: ...


def plan_at(session: Planned, epoch: int, step: int) -> Plan:
    """Return the plan of a step; see :meth:`gpupipe.DataLoader.plan_at`."""
    plans, _ = _plans_from(session, epoch, step)
    # These plans begin at the step and count from 0.
    return replace(plans[0], step=step)


def batch_at(session: Planned, epoch: int, step: int) -> Any:
    """Return the batch of a step; see :meth:`gpupipe.DataLoader.at`."""
    return _first_of(_Elsewhere(session, *_plans_from(session, epoch, step)), epoch, step)


def _first_of(elsewhere: Any, epoch: int, step: int) -> Any:
    batches = EpochIterator(elsewhere)
    try:
        return next(batches)
    except StopIteration:
        raise IndexError(f"step {step} of epoch {epoch} has no batch, because all of its samples are bad") from None
    finally:
        batches.end()


class FoundStep(NamedTuple):
    """A batch before it takes the form of the dataset's samples, or goes to a collate function."""

    dataset: Dataset
    plan: Plan
    images: Any
    """[B, ...], or a tuple of these for several views."""
    target: Any
    """Labels [B], a dictionary of labels and further columns, or ``None``. With a collate function, numbers are in
    lists."""


def step_at(session: Planned, epoch: int, step: int) -> FoundStep:
    """Return a step with its plan. Raises what :func:`batch_at` raises."""
    plans, cursor = _plans_from(session, epoch, step)
    elsewhere = _Elsewhere(session, plans, cursor)
    elsewhere.form = elsewhere.collate = None
    batch = _first_of(elsewhere, epoch, step)
    images, target = batch if isinstance(batch, list) else (batch, None)
    return FoundStep(plans.dataset, replace(plans[0], step=step), images, target)


def _plans_from(session: Planned, epoch: int, step: int) -> tuple[EpochPlan, Cursor]:
    """Return the plans of an epoch from ``step`` on, and the position at which they begin.

    Raises:
        ConfigError: no epoch or step has this number, or only a sampler of user code knows the order.
        IndexError: the epoch has fewer steps.
    """
    epoch, step = check_integer(epoch, "epoch", 0), check_integer(step, "step", 0)
    sampler = session.batching.sampler
    if sampler.ahead is None:
        raise ConfigError(
            f"only {sampler.name} knows the order of its samples, and asking it for another epoch could change the one "
            "that runs; pass shuffle=, or a sampler of torch"
        )
    # A sampler with an epoch of its own counts from the present one.
    now = sampler.epoch_of()
    order = sampler.ahead(session.seed, epoch, 0 if now is None else epoch - now)
    batches = session.batching.countable(order)
    if step >= len(batches):
        raise StepError(f"there is no step {step}: epochs have {len(batches)} steps, counted from 0")
    cursor = Cursor(epoch, batches.delivered(step))
    return session.plans(order, cursor), cursor


@dataclass(frozen=True)
class _First:
    """The first of some batches."""

    batches: Batches

    @property
    def ranks(self) -> int:
        return self.batches.ranks

    def has(self, step: int) -> bool:
        return step == 0

    def window(self, step: int) -> I64:
        return self.batches.window(step)

    def take(self, step: int) -> tuple[I64, int, int]:
        return self.batches.take(step)

    def rest(self, start: int) -> Batches:
        return self  # the iterator goes on at the same batch, because none was delivered

    def shape(self, step: int) -> tuple[int, int] | None:
        return self.batches.shape(step)

    def tail(self, step: int) -> int | None:
        return self.batches.tail(step)


class _Nowhere:
    """A position that does not move."""

    def at(self, cursor: Cursor) -> None:
        pass


class _Elsewhere:
    """A session that begins with one batch of any epoch. The session that it is made from stays where it is."""

    def __init__(self, session: Planned, plans: EpochPlan, cursor: Cursor):
        self._session = session
        self._begins = replace(plans, batches=_First(plans.batches)), cursor
        self.stats, self.report, self.position = Counts(), BadSampleReport(), _Nowhere()
        self.valid = 0
        self.ahead: Ahead | None = None
        self.form, self.collate = session.form, session.collate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def begin(self) -> tuple[EpochPlan, Cursor]:
        return self._begins

    def following(self, later: int) -> EpochPlan | None:
        return None
