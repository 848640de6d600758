"""DALI against the reference with the same plans, transform by transform, in grey levels of 0 to 255."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from .. import engines
from ..datasets.base import Dataset
from ..datasets.subset import Subset
from ..errors import BadSample, ConfigError, SampleError
from ..loader import DataLoader
from ..order import Shuffle
from ..transforms.compose import Compose
from ..transforms.ops import Op
from ..types import Plan
from .difference import Difference, difference, to_pixels
from .tolerances import Tolerance, check, tolerance

__all__ = ["Comparison", "Step", "Worst", "compare"]

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Step:
    """The pipeline up to one of its transforms."""

    name: str
    pipeline: Compose
    difference: Difference
    promised: Tolerance | None
    """``None`` where it was never measured on this device."""
    broken: tuple[str, ...]
    """Promises that are not kept, in words."""
    worst: str = ""
    """The image with the largest difference; empty where all are equal."""

    @property
    def verdict(self) -> Literal["ok", "not ok", "not measured"]:
        return "not measured" if self.promised is None else "not ok" if self.broken else "ok"


@dataclass(frozen=True)
class Worst:
    """One image, as each engine made it."""

    path: str
    dali: Pixels
    reference: Pixels
    max: float
    mean: float


@dataclass(frozen=True)
class Comparison:
    """All steps, the last of which is the whole pipeline."""

    device: str
    steps: tuple[Step, ...]
    worst: tuple[Worst, ...]
    """Images of the whole pipeline that differ most, the worst first."""
    left_out: tuple[BadSample, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether no promise is broken. Where nothing was promised, nothing is broken."""
        return not any(step.broken for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without pictures."""
        return {
            "device": self.device,
            "ok": self.ok,
            "steps": [
                {
                    "name": s.name,
                    "verdict": s.verdict,
                    "promised": None if s.promised is None else str(s.promised),
                    "broken": list(s.broken),
                    **s.difference.to_dict(),
                }
                for s in self.steps
            ],
            "left_out": [s.kind for s in self.left_out],
        }


def compare(
    dataset: Dataset,
    pipeline: Compose,
    *,
    samples: int = 64,
    device: str = "cpu",
    seed: int = 0,
    num_workers: int = 2,
    keep: int = 6,
    progress: Callable[[str], None] = lambda step: None,
) -> Comparison:
    """Run the pipeline, cut off after each of its transforms in turn, in both engines with the same plans.

    Args:
        dataset: its own transform is not used.
        samples: how many, chosen by ``seed``; all where there are fewer. Samples that one of the engines cannot read
            are left out and listed.
        device: of both engines: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        num_workers: threads of DALI.
        keep: how many of the worst images to keep.
        progress: told the name of each step as it begins.

    Raises:
        ConfigError: no sample is left. MissingDependency: DALI is not installed. PipelineError: it cannot run the
        pipeline.
    """
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, not {samples}")
    chosen = Shuffle(len(dataset), seed, 0).at(np.arange(min(samples, len(dataset))))[0]
    kind: Literal["cpu", "cuda"] = "cpu" if device == "cpu" else "cuda"
    runner = _Runner(dataset, np.sort(chosen), device, seed, num_workers)
    runner.drop(dataset.bad(runner.indices))
    parts = [("decode", Compose([]))]
    for k, transform in enumerate(pipeline.transforms[:-1], 1):
        parts.append((type(transform).__name__, Compose(pipeline.transforms[:k])))
    parts.append((f"{type(pipeline[-1]).__name__}, the whole" if len(pipeline) else "the whole", pipeline))
    if len(pipeline) == 0:
        del parts[0]
    DataLoader(Subset(dataset, runner.indices[:1], transform=pipeline), engine="dali", device=device)  # refuse early
    steps, worst = [], _Keep(keep)
    for name, part in parts:
        progress(name)
        found, ops, largest, where = Difference(), part.skeleton, 0.0, ""
        for plan, dali, reference in runner.run(part):
            assert plan.ops is not None and plan.sizes is not None
            ops = plan.ops
            for i in range(len(plan)):
                one = difference(dali[i : i + 1], reference[i : i + 1], _row(ops, i), plan.sizes[i : i + 1])
                found += one
                if one.max > largest:
                    largest, where = one.max, runner.describe(plan, i)
                if part is pipeline:
                    worst.offer(one, runner.describe(plan, i), dali[i], reference[i], ops)
        broken = tuple(check("dali/torch", ops, found, kind))
        steps.append(Step(name, part, found, tolerance("dali/torch", ops, kind), broken, where))
    return Comparison(device, tuple(steps), worst.best(), tuple(runner.left_out))


def _row(ops: Sequence[Op], i: int) -> tuple[Op, ...]:
    """The ops of one sample of a batch."""
    return tuple(replace(op, **{k: v[i : i + 1] for k, v in op.numbers().items()}) for op in ops)


class _Keep:
    """The images that differ most."""

    def __init__(self, count: int):
        self._count = count
        self._found: list[Worst] = []

    def offer(self, found: Difference, path: str, dali: Tensor, reference: Tensor, ops: Sequence[Op]) -> None:
        lowest = self._found[-1] if len(self._found) >= self._count else None
        if lowest is not None and (found.max, found.mean) <= (lowest.max, lowest.mean):
            return
        self._found.append(Worst(path, to_pixels(dali, ops), to_pixels(reference, ops), found.max, found.mean))
        self._found.sort(key=lambda w: (-w.max, -w.mean))
        del self._found[self._count :]

    def best(self) -> tuple[Worst, ...]:
        return tuple(self._found)


class _Runner:
    """Feeds both engines the same plans, and leaves out what one of them cannot read."""

    def __init__(self, dataset: Dataset, indices: npt.NDArray[np.int64], device: str, seed: int, workers: int):
        self.dataset = dataset
        self.indices = indices
        self.device = device
        self.seed = seed
        self.workers = workers
        self.left_out: list[BadSample] = []
        self._start = 0  # where in the indices the running pass began

    def drop(self, bad: list[BadSample]) -> None:
        """``bad`` with positions in the dataset."""
        self.left_out += bad
        self.indices = np.setdiff1d(self.indices, [s.index for s in bad])
        if not len(self.indices):
            raise ConfigError(f"none of the chosen samples can be read; the first is {self.left_out[0]}")

    def describe(self, plan: Plan, i: int) -> str:
        """Path of sample ``i`` of a plan."""
        return self.dataset.describe(int(self.indices[self._start + int(plan.indices[i])]))

    def run(self, pipeline: Compose) -> Iterator[tuple[Plan, Tensor, Tensor]]:
        """(plan, DALI's batch, the reference's batch), in batches of 1 where images come out in several sizes."""
        size = 16 if pipeline.output.size is not None else 1
        at = 0
        while at < len(self.indices):
            subset = Subset(self.dataset, self.indices[at:], transform=pipeline)
            self._start = at
            try:
                for plan, a, b in self._pass(subset, size):
                    yield plan, a, b
                    at += len(plan)
            except SampleError as e:
                self.drop([s._replace(index=int(subset.indices[s.index])) for s in e.samples])
            else:
                return

    def _pass(self, subset: Subset, size: int) -> Iterator[tuple[Plan, Tensor, Tensor]]:
        common: dict[str, Any] = {"batch_size": size, "device": self.device, "seed": self.seed}
        with (
            DataLoader(subset, engine="null", **common) as plans,
            DataLoader(subset, engine="dali", num_workers=self.workers, **common) as dali,
            DataLoader(subset, engine=engines.Torch(), **common) as torch_,
        ):
            for plan, a, b in zip(plans, dali, torch_, strict=True):
                yield _first(plan), _first(a), _first(b)


def _first(batch: Any) -> Any:
    return batch[0] if isinstance(batch, (list, tuple)) else batch
