"""The plans that one run of an engine takes: those of an epoch, and after them the first of the epochs that follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..planning.epoch import EpochPlan
from ..reading.versions import versions_of
from ..types import Plan

__all__ = ["EpochStream", "PlanStream"]


class EpochStream:
    """The plans of one epoch: those that are to be done again first, then the others."""

    def __init__(self, plans: EpochPlan, *, ahead: bool = False):
        self.plans = plans
        self.ahead = ahead
        """Whether the epoch has not begun."""
        self.empty: deque[Plan] = deque()
        """Without any good sample, so that no engine sees them."""
        self.repaired: deque[Plan] = deque()
        self.taken: deque[Plan] = deque()
        """Taken by the engine and not answered yet, in order."""
        self.due: deque[int] = deque()
        """Steps to be handed out, in order."""
        self._made: Plan | None = None
        self._step = 0
        self._versions: dict[int, Any] = {}
        """Of plans that were taken ahead, by step: what their files and targets were then."""

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to be taken."""
        while self._made is None and not self.repaired and self.plans.batches.has(self._step):
            plan = self.plans[self._step]
            self._step += 1
            if len(plan):
                self._made = plan
            else:
                self.empty.append(plan)
        return self._made is None and not self.repaired

    @property
    def next_size(self) -> int:
        """Samples of the next plan; not to be called if it has ended."""
        plan = self.repaired[0] if self.repaired else self._made
        assert plan is not None
        return len(plan)

    def take(self) -> Plan:
        """The next plan; not to be called if it has ended."""
        if self.repaired:
            plan = self.repaired.popleft()
        else:
            assert self._made is not None
            plan, self._made = self._made, None
            self.due.append(plan.step)
            if self.ahead:
                self._versions[plan.step] = versions_of(self.plans.dataset, plan)
        self.taken.append(plan)
        return plan

    def begin(self, plans: EpochPlan) -> bool:
        """The epoch begins, with these plans: whether everything that was made ahead is what would be made now."""
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
        """What was taken and not answered is to be taken once more."""
        self.repaired.extendleft(reversed(self.taken))
        self.taken.clear()


class PlanStream:
    """What a run of an engine takes. It refers to no iterator, which would be a cycle through the run.

    An engine asks for plans before it is asked for their batches. When the epoch has no more of them it is given those
    of the next one, so that it has something to work on while the last batches are handed out. What is made ahead like
    this is kept only if the epoch that then begins has the very same plans, of files that have not changed.

    Args:
        plans: of the epoch that has begun.
        following: the plans of the epoch that would come next, or of the one so many epochs later; ``None`` if nothing
            may be done for it before it begins.
    """

    def __init__(self, plans: EpochPlan, following: Callable[[int], EpochPlan | None]):
        self._epochs = deque([EpochStream(plans)])
        self._following = following
        self.most: int | None = None
        """Samples of a batch that the engine can make at most. It ends before a larger one."""

    @property
    def too_large(self) -> int:
        """Samples of the plan that comes next in this epoch, if the engine is too small for it; otherwise 0."""
        size = 0 if self.now.ended else self.now.next_size
        return size if self.most is not None and size > self.most else 0

    @property
    def now(self) -> EpochStream:
        """The epoch that has begun."""
        return self._epochs[0]

    @property
    def is_ahead(self) -> bool:
        """Whether a plan of another epoch was taken."""
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
        stream = self._epochs[-1]
        if self.most is not None and stream.next_size > self.most:
            raise StopIteration
        return stream.take()

    def go_on(self, plans: EpochPlan) -> bool:
        """The next epoch begins, with these plans: whether they are what was worked on. If not, nothing here is of use
        any more."""
        if not self._epochs[1].begin(plans):
            return False
        self._epochs.popleft()
        return True

    def back(self) -> None:
        """The run was given up: what it left of the present epoch is to be taken once more, and nothing else."""
        self._epochs = deque([self.now])
        self.now.again()


def _equal(a: Plan, b: Plan) -> bool:
    """Of two plans with the same pipeline: whether they are of the same samples with the same numbers."""
    numbers = "seed", "epoch", "step", "valid", "consumed", "bad", "by_hand"
    arrays = "indices", "keys", "frames", "sizes"
    return all(getattr(a, name) == getattr(b, name) for name in numbers) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays
    )
