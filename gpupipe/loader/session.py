"""What the iterators of a loader share: all that they may know of it."""

from __future__ import annotations

import weakref
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ..memory.limits import Estimate, check_device, estimate
from ..planning.bad_samples import BadSamples
from ..planning.epoch import EpochPlan
from .arguments import Arguments
from .bad_sample_report import BadSampleReport
from .resolve import Resolved, resolve
from .running import Running
from .state import Cursor, Position, State

__all__ = ["Session", "Stats"]


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


class Session:
    """What follows from a loader's arguments, where it stands, what it has started, and what has happened.

    It knows neither the loader nor its iterators, and both keep it alive: when the last of them goes, what was started
    ends.
    """

    def __init__(self, arguments: Arguments):
        self.arguments = arguments
        self.resolved: Resolved = resolve(arguments)
        self.device = torch.device(self.resolved.setup.device)
        self.bad_samples = BadSamples(arguments.on_error, arguments.max_bad, self.resolved.setup.dataset)
        self.position = Position(self.resolved.batching, self.resolved.seed)
        self.running = Running()
        self.report = BadSampleReport()
        self.stats = Stats()
        self.valid = 0
        """How many samples of the batch just handed out are real; the others pad it to the size of other ranks'."""
        weakref.finalize(self, self.running.close)

    # ---- an epoch

    def open(self) -> None:
        """Be ready to begin an epoch: build the engine, if there is none yet.

        Raises :class:`MemoryBudgetError` if the GPU is too small.
        """
        resolved, running = self.resolved, self.running
        if running.engine is None:
            with torch.inference_mode(False):
                if self.device.type == "cuda":
                    if self.device.index is None:  # asking for it earlier would have started CUDA
                        self.device = torch.device("cuda", torch.cuda.current_device())
                    check_device(resolved.config, resolved.workload, torch.cuda.mem_get_info(self.device)[1])
                running.engine = resolved.config.build(replace(resolved.setup, device=str(self.device)))
        self.position.rest()

    def begin(self) -> tuple[EpochPlan, Cursor]:
        """The next epoch: its plans, and where its iterator notes how far it has come."""
        order, cursor = self.position.begin()
        setup, batching = self.resolved.setup, self.resolved.batching
        slices = batching.slices(len(order), cursor.delivered)
        seed = self.position.seed
        plans = EpochPlan(setup.dataset, setup.pipeline, order, slices, seed, cursor.epoch, self.bad_samples)
        return plans, cursor

    # ---- where it stands

    def state(self) -> State:
        """To be saved."""
        setup = self.resolved.setup
        return self.position.state(dataset=setup.dataset.fingerprint, pipeline=setup.pipeline.fingerprint)

    def load(self, state: State) -> None:
        """Go on from there. Raises :class:`StateError` if it is of another dataset, pipeline, order or batch."""
        state.check(self.state(), len(self.resolved.batching.order(state.seed, state.epoch)))
        self.position.load(state)

    def estimate(self) -> Estimate:
        """The memory that it will take."""
        return estimate(self.resolved.config, self.resolved.workload)
