"""Plans for one run of an engine: those of an epoch, followed by the first plans of the next epochs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..planning.epoch import EpochPlan
from ..reading.versions import versions_of
from ..types import Plan


class EpochStream:
    """Plans of one epoch, starting with those to be repeated."""

    def __init__(self, plans: EpochPlan, *, ahead: bool = False):
        self.plans = plans
        self.ahead = ahead
        """Whether the epoch has not begun yet."""
        self.empty: deque[Plan] = deque()
        """Plans without any good sample, which no engine sees."""
        self.repaired: deque[Plan] = deque()
        self.taken: deque[Plan] = deque()
        """Plans that the engine took and has not answered yet, in order."""
        self.due: deque[int] = deque()
        """Steps to be delivered, in order."""
        self._made: Plan | None = None
        self._step = 0
        self._versions: dict[int, Any] = {}
        """Versions of files and targets, by step, when plans were taken ahead."""

    @property
    def ended(self) -> bool:
        """Return whether no plan is left."""
        while self._made is None and not self.repaired and self.plans.batches.has(self._step):
            plan = self.plans[self._step]
            self._step += 1
            if len(plan):
                self._made = plan
            else:
                self.empty.append(plan)
        return self._made is None and not self.repaired

    def take(self) -> Plan:
        """Return the next plan. Must not be called after the end."""
        if self.repaired:
            plan = self.repaired.popleft()
        else:
            assert self._made is not None
            plan, self._made = self._made, None
            # A repaired batch is due already.
            self.due.append(plan.step)
            if self.ahead:
                self._versions[plan.step] = versions_of(self.plans.dataset, plan)
        self.taken.append(plan)
        return plan

    def begin(self, plans: EpochPlan) -> bool:
        """Begin the epoch with these plans. Returns whether everything that was made ahead is still valid."""
        old, made = self.plans, [*self.taken, *self.empty, *([] if self._made is None else [self._made])]
        if old.dataset is not plans.dataset or old.pipeline is not plans.pipeline or old.batches != plans.batches:
            return False
        if not all(_equal(plan, plans[plan.step]) for plan in made):
            return False
        if any(self._versions[plan.step] != versions_of(plans.dataset, plan) for plan in self.taken):
            return False
        self.plans, self.ahead = plans, False
        self._versions.clear()
        return True

    def again(self) -> None:
        """Return plans that were taken and not answered to the queue."""
        # extendleft() reverses what it is given, so the plans keep their order.
        self.repaired.extendleft(reversed(self.taken))
        self.taken.clear()


class PlanStream:
    """Plans that a run of an engine takes. Refers to no iterator, which would be a cycle through the run.

    An engine takes plans before their batches are requested. When the epoch has no more plans, the engine gets those of
    the next epoch, so that it has work while the last batches are delivered. What is made ahead like this is kept only
    if the next epoch has exactly these plans, of unchanged files.

    Args:
        plans: those of the current epoch.
        following: returns the plans of the epoch that would come next, or of the one so many epochs later; ``None`` if
            nothing may be prepared for it before it begins.
    """

    def __init__(self, plans: EpochPlan, following: Callable[[int], EpochPlan | None]):
        self._epochs = deque([EpochStream(plans)])
        self._following = following

    @property
    def now(self) -> EpochStream:
        """The current epoch."""
        return self._epochs[0]

    @property
    def is_ahead(self) -> bool:
        """Return whether a plan of another epoch was taken."""
        return len(self._epochs) > 1

    def __iter__(self) -> Iterator[Plan]:
        return self

    def __next__(self) -> Plan:
        if self._epochs[-1].ended:
            plans = self._following(len(self._epochs) - 1)
            following = None if plans is None else EpochStream(plans, ahead=True)
            if following is None or following.ended:
                raise StopIteration
            self._epochs.append(following)
        return self._epochs[-1].take()

    def go_on(self, plans: EpochPlan) -> bool:
        """Begin the next epoch with these plans. Returns whether they are those that were worked on. If not,
        this stream is no longer usable."""
        if not self._epochs[1].begin(plans):
            return False
        self._epochs.popleft()
        return True

    def back(self) -> None:
        """Reset after a run was given up: only the unanswered plans of the current epoch are taken again."""
        self._epochs = deque([self.now])
        self.now.again()


def _equal(a: Plan, b: Plan) -> bool:
    """Return whether two plans of one pipeline have equal samples and numbers."""
    numbers = "seed", "epoch", "step", "valid", "consumed", "bad", "batch_shape"
    arrays = "indices", "keys", "frames", "sizes"
    return all(getattr(a, name) == getattr(b, name) for name in numbers) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays
    )
