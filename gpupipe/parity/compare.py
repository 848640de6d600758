"""Comparison of DALI with the reference for equal plans, transform by transform, in gray levels of 0 to 255."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from .. import engines
from ..datasets.dataset import Dataset
from ..datasets.sample_form import form_of
from ..datasets.subset import Subset
from ..errors import BadSample, ConfigError, SampleError
from ..kernels.batches import repeat_rows
from ..loader.dataloader import DataLoader
from ..planning.order import Shuffle
from ..printable import printable
from ..transforms.compose import Compose
from ..transforms.ops import Op, by_view
from ..types import Plan
from .difference import Difference, difference, to_pixels
from .targets import Targets, moved_columns, targets_of
from .tolerances import Tolerance, broken, tolerance, widest

Pixels = npt.NDArray[np.uint8]
Views = tuple[Tensor, ...]
"""Images of a batch, one [B, C, H, W] per view, or clips in the dataset's layout."""
_Pair = tuple[Plan, Views, Views, list[Targets], list[Targets]]
"""A plan, DALI's and the reference's images, and the targets of every sample of both."""


_WORST = 6
"""Number of images that differ most to keep."""


@dataclass(frozen=True)
class Step:
    """Result for the pipeline up to one of its transforms."""

    name: str
    pipeline: Compose
    difference: Difference
    promised: Tolerance | None
    """``None`` if it was not measured on this device."""
    broken: tuple[str, ...]
    """Descriptions of broken promises."""
    worst: str = ""
    """Image with the largest difference; empty if all are equal."""

    @property
    def verdict(self) -> Literal["ok", "not ok", "not measured"]:
        return "not measured" if self.promised is None else "not ok" if self.broken else "ok"


@dataclass(frozen=True)
class Worst:
    """One image as each engine produced it."""

    path: str
    dali: Pixels
    reference: Pixels
    max: float
    mean: float
    dali_targets: Targets = field(default_factory=Targets)
    """Masks and boxes that belong to the image."""
    reference_targets: Targets = field(default_factory=Targets)


@dataclass(frozen=True)
class Comparison:
    """Results of all steps, the last of which is the whole pipeline."""

    device: str
    steps: tuple[Step, ...]
    worst: tuple[Worst, ...]
    """Images that differ most after the whole pipeline, the worst first. Equal ones are left out."""
    left_out: tuple[BadSample, ...] = field(default=())
    columns: tuple[str, ...] = ()
    """Masks, boxes and other columns that move with the images."""
    unlike_targets: tuple[str, ...] = ()
    """Samples for which the engines have different values in these columns, after the whole pipeline."""

    @property
    def ok(self) -> bool:
        """Whether no promise is broken, and all masks and boxes are equal. Steps without a promise count as kept."""
        return not self.unlike_targets and not any(step.broken for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values, without pictures."""
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
            "columns": list(self.columns),
            "unlike_targets": list(self.unlike_targets),
        }


def compare(
    dataset: Dataset,
    pipeline: Compose,
    *,
    samples: int = 64,
    device: str = "cpu",
    seed: int = 0,
    num_workers: int = 2,
    progress: Callable[[str], None] = lambda step: None,
) -> Comparison:
    """Run the pipeline up to each of its transforms in both engines, with equal plans.

    Args:
        dataset: its own transform is ignored.
        pipeline: transforms of whole batches (MixUp, CutMix) are skipped, because engines share their code. Each of
            several views is a separate step.
        samples: number of samples, chosen by ``seed``; all if there are fewer. Samples that an engine cannot read are
            skipped and listed.
        device: of both engines: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        num_workers: threads of DALI.
        progress: called with the name of each step.

    Raises:
        ConfigError: no sample is left.
        MissingDependency: DALI is not installed.
        PipelineError: DALI cannot run the pipeline.
    """
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, not {samples}")
    if any(t.on_batch for t in pipeline):
        single = [t for t in pipeline if not t.on_batch]
        pipeline = Compose(single, memory_format=pipeline.memory_format)
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
    steps, worst, unlike = [], _Keep(), list[str]()
    for name, part in parts:
        progress(name)
        views = [_View(name, kind) for _ in by_view(part.skeleton)]
        if len(views) > 1:
            views = [_View(f"{name}, view {k}", kind) for k in range(1, len(views) + 1)]
        for plan, dali, reference, *targets in runner.run(part):
            assert plan.ops is not None
            if part is pipeline:
                unlike += [runner.describe(plan, i) for i in range(len(plan)) if targets[0][i] != targets[1][i]]
            for view, ops, a, b in zip(views, by_view(plan.ops), dali, reference, strict=True):
                view.add(plan, ops, (a, b), targets, runner, worst if part is pipeline else None)
        for view in views:
            steps.append(view.step(part))
    columns = tuple(moved_columns(dataset))
    return Comparison(device, tuple(steps), worst.best(), tuple(runner.left_out), columns, tuple(unlike))


@dataclass
class _View:
    """Differences found in one view after one step."""

    name: str
    device: Literal["cpu", "cuda"]
    found: Difference = field(default_factory=Difference)
    where: str = ""
    _promises: list[Tolerance | None] = field(default_factory=list)
    """Promise of each batch: images may draw different ops."""
    _largest: float = 0.0

    def step(self, pipeline: Compose) -> Step:
        promises = [p for p in self._promises if p is not None]
        # A batch without a promise leaves the whole view without one.
        promised = reduce(widest, promises) if len(promises) == len(self._promises) and promises else None
        kept = tuple(broken(promised, self.found)) if promised else ()
        return Step(self.name, pipeline, self.found, promised, kept, self.where)

    def add(
        self,
        plan: Plan,
        ops: Sequence[Op],
        engines: tuple[Tensor, Tensor],
        targets: Sequence[Sequence[Targets]],
        runner: _Runner,
        worst: _Keep | None,
    ) -> None:
        """Add a batch [B, C, H, W] of this view, or clips in the dataset's layout, of DALI and of the reference.

        ``ops`` are the plan's for this view, and ``targets`` those of every sample, by engine.
        """
        assert plan.sizes is not None
        self._promises.append(tolerance("dali/torch", ops, self.device))
        for i in range(len(plan)):
            row = slice(i, i + 1)
            # The frames of a clip are pictures with the same numbers.
            own = repeat_rows([op.take(row) for op in ops], plan.pictures)
            a, b = (runner.dataset.medium.flatten(batch[row]) for batch in engines)
            one = difference(a, b, own, np.repeat(plan.sizes[row], plan.pictures, axis=0))
            self.found += one
            if one.max > self._largest:
                self._largest, self.where = one.max, runner.describe(plan, i)
            if worst is not None:
                # Show the frame of a clip that differs most.
                t = int((a.double() - b.double()).abs().flatten(1).amax(1).argmax())
                path = f"{runner.describe(plan, i)}{plan.picture(i, t)}"
                worst.offer(one, path, a[t], b[t], ops, (targets[0][i], targets[1][i]))


class _Keep:
    """Keeps the images that differ most."""

    def __init__(self) -> None:
        self._found: list[Worst] = []

    def offer(
        self,
        found: Difference,
        path: str,
        dali: Tensor,
        reference: Tensor,
        ops: Sequence[Op],
        targets: tuple[Targets, Targets],
    ) -> None:
        if not found.max and targets[0] == targets[1]:
            return
        lowest = self._found[-1] if len(self._found) >= _WORST else None
        if lowest is not None and (found.max, found.mean) <= (lowest.max, lowest.mean):
            return
        pixels = to_pixels(dali, ops), to_pixels(reference, ops)
        self._found.append(Worst(path, *pixels, found.max, found.mean, *targets))
        self._found.sort(key=lambda w: (-w.max, -w.mean))
        del self._found[_WORST:]

    def best(self) -> tuple[Worst, ...]:
        return tuple(self._found)


class _Runner:
    """Feeds equal plans to both engines, and skips samples that one of them cannot read."""

    def __init__(self, dataset: Dataset, indices: npt.NDArray[np.int64], device: str, seed: int, workers: int):
        self.dataset = dataset
        self.indices = indices
        self.device = device
        self.seed = seed
        self.workers = workers
        self.left_out: list[BadSample] = []
        self._start = 0  # start of the current pass within the indices

    def drop(self, bad: list[BadSample]) -> None:
        """Skip the samples ``bad``, which have indices in the dataset."""
        self.left_out += bad
        self.indices = np.setdiff1d(self.indices, [s.index for s in bad])
        if not len(self.indices):
            first = self.left_out[0]
            why = f"{printable(first.path)}: {first.kind}: {printable(first.reason)}"
            raise ConfigError(f"none of the chosen samples can be read; {why}; gpupipe index FOLDER lists them")

    def describe(self, plan: Plan, i: int) -> str:
        """Return the path of sample ``i`` of a plan."""
        return self.dataset.describe(int(self.indices[self._start + int(plan.indices[i])]))

    def run(self, pipeline: Compose) -> Iterator[_Pair]:
        """Yield a plan and what both engines make of it, in batches of 1 if images differ in size."""
        at_once = max(16 // self.dataset.pictures_per_sample, 2)
        size = at_once if all(output.size is not None for output in pipeline.outputs) else 1
        at = 0
        # A bad sample ends a pass. The next one begins with the batch that failed, without that sample.
        while at < len(self.indices):
            subset = Subset(self.dataset, self.indices[at:], transform=pipeline)
            subset.form = form_of([*subset.columns], labeled=subset.labels is not None, return_dict=True)
            self._start = at
            try:
                for pair in self._pass(subset, size):
                    yield pair
                    at += len(pair[0])
            except SampleError as e:
                self.drop([s._replace(index=int(subset.indices[s.index])) for s in e.samples])
            else:
                return

    def _pass(self, subset: Subset, size: int) -> Iterator[_Pair]:
        common: dict[str, Any] = {"batch_size": size, "device": self.device, "seed": self.seed}
        with (
            DataLoader(subset, engine="null", **common) as plans,
            DataLoader(subset, engine="dali", num_workers=self.workers, **common) as dali,
            DataLoader(subset, engine=engines.Torch(), **common) as torch_,
        ):
            for planned, a, b in zip(plans, dali, torch_, strict=True):
                plan = planned["image"]
                targets = (targets_of(self.dataset, batch, len(plan)) for batch in (a, b))
                yield plan, _views(a["image"]), _views(b["image"]), *targets


def _views(images: Any) -> Views:
    return images if isinstance(images, tuple) else (images,)
