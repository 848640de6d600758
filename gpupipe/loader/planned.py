"""A session in which numbers are planned, and engines make the batches. No code of the script makes samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch.utils.data import SequentialSampler

from ..datasets.dataset import Dataset
from ..datasets.sample_form import SampleForm
from ..engines.base import Engine
from ..engines.delivery import KeepAlive
from ..engines.following import with_targets
from ..planning.bad_samples import BadSamples
from ..planning.epoch import EpochPlan
from ..planning.order import Batched, Order
from ..reading.smaller import why_not
from ..reasons import Reason
from ..samplers import Sampler
from ..script_warnings import warn
from ..transforms.compose import Compose
from ..translate.datasets import fingerprint, translated
from ..types import Plan
from .agreement import RankSetting
from .any_step import FoundStep, batch_at, plan_at, step_at
from .arguments import Arguments
from .batching import Batching, batching_of
from .bottleneck import Work
from .collating import Collate
from .engine_choice import calls_of, has_calls
from .epoch import Ahead, EpochIterator
from .resolve import NotPlanned, Resolved, resolve
from .running import Running
from .samplers import own_batches, own_sampler
from .session import Session
from .state import Cursor, Position, State


class PlannedSession(Session):
    """Session on gpupipe's own engines; see :class:`~gpupipe.loader.session.Session`.

    Args:
        dataset: the loader's dataset, or its translation.

    Raises:
        NotPlanned: ``dataset`` is a translation, and engines cannot make its batches.
    """

    def __init__(self, arguments: Arguments, dataset: Dataset):
        super().__init__(arguments)
        self.batch_sampler = arguments.batch_sampler
        self._translated = dataset is not arguments.dataset
        self._fingerprint = fingerprint(arguments.dataset)
        resolved = resolve(arguments, dataset)
        self._resolve(resolved)
        self.position = Position(self.batching, arguments.seed, arguments.generator, workers=arguments.num_workers > 0)
        self.running = Running()
        self.ahead: Ahead | None = None
        """The next epoch, if the last one left an engine working on it."""
        self.generation = 0
        """Iterators of earlier generations have ended."""
        self._happened: list[str] = []
        """Remarks of the engine that was closed last."""
        a = arguments
        ours = a.sampler is None or isinstance(a.sampler, Sampler)
        self.sampler = own_sampler(self.position) if ours else a.sampler
        self.batch_sampler = own_batches(self.position) if a.batch_sampler is None else a.batch_sampler
        if self.batching.given is not None:
            self.sampler = SequentialSampler(a.dataset)  # as in torch, which does not use it
        self._parts = _parts(self.batch_sampler)
        self._lengths = self._lengths_now
        self.prefetch_factor = self.resolved.setup.prefetch_factor
        self.running.finalize(self)

    def _resolve(self, resolved: Resolved) -> None:
        self.resolved = resolved
        self.device = torch.device(resolved.setup.device)
        self._follow(resolved.batching)
        a, dataset = self.arguments, resolved.setup.dataset
        self.collate = Collate(a.collate_fn, dataset.form) if a.collates else None  # type: ignore[arg-type]
        self.bad_samples = BadSamples(a.on_error, a.max_bad, resolved.setup.dataset)

    def _follow(self, batching: Batching) -> None:
        self.batching = batching
        as_given = self.arguments.batch_sampler is not None and batching.given is not None
        self.batch_size = None if as_given else batching.batch_size  # as in torch
        self.drop_last, self.shard = batching.drop_last, batching.shard
        self._grow(batching.batch_size)
        self._lengths = self._lengths_now

    @property
    def has_begun(self) -> bool:
        return self.position.drawn is not None or self.position.next_epoch > 0

    # ---- what changes between epochs

    def refreshed(self) -> PlannedSession:
        """Return the session for the next epoch. Raises :class:`NotPlanned` if only the dataset's own code can go
        on."""
        a = self.arguments
        if self._translated and self.device.type == "cpu" and not self.running.ours:
            raise NotPlanned  # a forked child, such as a loader inside a dataset that workers read
        if fingerprint(a.dataset) != self._fingerprint:
            self._follow_dataset()
        else:
            self._follow(batching_of(a, self.dataset))
        self.position.batching = self.batching
        return self

    def _follow_dataset(self) -> None:
        """Translate and resolve again, because the script has changed its dataset since the last epoch."""
        a = self.arguments
        dataset = translated(a.dataset)
        if dataset is None:
            raise NotPlanned
        resolved = resolve(a, dataset)
        self._fingerprint = fingerprint(a.dataset)
        self.running.close()
        self._resolve(resolved)

    @property
    def _lengths_now(self) -> tuple[Any, ...]:
        """Values that determine the number of batches and that a script may change."""
        return self.arguments.lengths, *_parts(self.batch_sampler)

    def has_batches(self, batches: Any) -> bool:
        given = self.arguments.batch_sampler is not None  # its attributes are read in every epoch
        return super().has_batches(batches) and (given or _parts(batches) == self._parts)

    # ---- an epoch

    @property
    def seed(self) -> int:
        """Seed of order and augmentation, drawn when it is first read. A loaded state brings its own."""
        return self.position.seed

    def __len__(self) -> int:
        if self._lengths != self._lengths_now:
            with suppress(NotPlanned):  # the next epoch will be live
                self.refreshed()
        return len(self.batching)

    def iterate(self) -> Iterator[Any]:
        self.running.check(self.device)
        if self.device.type == "cuda" and self.device.index is None:  # an earlier query would have started CUDA
            self.device = torch.device("cuda", torch.cuda.current_device())
        with self.running.one_at_a_time:
            if not self.running.engines:
                with torch.inference_mode(False):
                    self.running.engines.append(self.build())
            self.position.rest()
            return EpochIterator(self, partial(len, self.batching))

    def build(self) -> Engine:
        """Build another engine."""
        resolved = self.resolved
        if resolved.setup.cache is not None:
            resolved.setup.cache.hold()
        setup = replace(resolved.setup, device=str(self.device))
        engine = with_targets(resolved.config.build(setup), setup)
        if self.device.type == "cuda":
            engine.kept = KeepAlive(self.device, setup.prefetch_factor + 2)
        return engine

    def begin(self) -> tuple[EpochPlan, Cursor]:
        """Begin the next epoch. Returns its plans, and the cursor in which its iterator records its progress."""
        if self.shard.world_size > 1:
            self.position.agreement.check(self._settings())
        self.bad_samples.begin()
        order, cursor = self.position.begin()
        if isinstance(order, Batched):
            self._grow(int(np.diff(order.ends).max(initial=0)))
        return self.plans(order, cursor), cursor

    def _grow(self, size: int) -> None:
        """Let engines make batches of up to ``size`` samples. Those that cannot end."""
        resolved = self.resolved
        if size > resolved.setup.batch_size:
            self.running.close()
            # With some margin, because the next epoch may have one a little larger.
            self.resolved = replace(resolved, setup=replace(resolved.setup, batch_size=size + size // 4))

    def plans(self, order: Order, cursor: Cursor) -> EpochPlan:
        """Return the plans of an epoch from a cursor on."""
        setup, batches = self.resolved.setup, self.batching.batches(order, cursor.delivered)
        return EpochPlan(setup.dataset, setup.pipeline, order, batches, self.seed, cursor.epoch, self.bad_samples)

    def following(self, later: int) -> EpochPlan | None:
        """Plans of the epoch that would come next, or of the one ``later`` epochs after it.

        Returns ``None`` if nothing may be prepared for it before it begins.
        """
        setup = self.resolved.setup
        # User code may look at state that has changed since; pixels in memory belong to the script, which may write to
        # them.
        unseen = setup.dataset.in_files and not has_calls(setup.pipeline)
        if self.arguments.persistent_workers is False or not unseen or not self.running.alone:
            return None
        try:
            found = self.position.ahead(later)
            return None if found is None else self.plans(*found)
        except Exception:  # raised again when that epoch begins
            return None

    def _settings(self) -> dict[str, RankSetting]:
        """Settings that must be equal on all ranks.

        Ranks divided by torch's DistributedSampler may process their samples differently, as with torch: augmentation
        seeds, batch sizes and transforms may differ.
        """
        setup, state = self.resolved.setup, self._state()
        settings = {
            "engine": RankSetting("gpupipe", "one of gpupipe's engines"),
            "order": RankSetting(f"{state.order} {crc32(repr(state.sampler).encode()):08x}", state.order),
            "dataset": RankSetting(state.dataset, f"{setup.dataset!r}, fingerprint {state.dataset}"),
        }
        if self.batching.sampler.shard is not None:
            return settings
        numbers = {name: getattr(state, name) for name in ("seed", "epoch", "delivered", "drop_last")}
        numbers["batch_size"] = self.batching.batch_size
        options = {name: getattr(self.arguments, name) for name in ("on_error", "max_bad", "scaled", "cache")}
        functions = ", ".join(call.name for call in calls_of(setup.dataset))
        return {
            **settings,
            "functions": RankSetting(functions, functions or "none"),
            "pipeline": RankSetting(state.pipeline, " ".join(repr(setup.pipeline).split())),
            **{name: RankSetting(value, repr(value)) for name, value in (numbers | options).items()},
        }

    @property
    def dataset(self) -> Dataset:
        return self.resolved.setup.dataset

    @property
    def pipeline(self) -> Compose:
        return self.resolved.setup.pipeline

    @property
    def form(self) -> SampleForm | None:
        return self.resolved.setup.dataset.form

    @property
    def stops(self) -> bool:
        """Whether the engine ends with the epoch. Worker processes get the present state of functions among the
        transforms only when they start."""
        setup, asked = self.resolved.setup, self.arguments.persistent_workers
        if asked is not None:
            return not asked
        in_processes = self.resolved.config.name == "torch" and setup.num_workers > 0
        return in_processes and any(has_calls(part.transform) for part in setup.dataset.parts)

    def plan_at(self, epoch: int, step: int) -> Plan:
        return plan_at(self, epoch, step)

    def batch_at(self, epoch: int, step: int) -> Any:
        self.running.check(self.device)
        with self.running.one_at_a_time:
            return batch_at(self, epoch, step)

    def step_at(self, epoch: int, step: int) -> FoundStep:
        self.running.check(self.device)
        with self.running.one_at_a_time:
            return step_at(self, epoch, step)

    # ---- where it stands

    def set_epoch(self, epoch: int) -> None:
        self.position.set_epoch(epoch)

    def state(self, *, next_epoch: bool = False) -> dict[str, Any]:
        return self._state(next_epoch).to_dict()

    def _state(self, next_epoch: bool = False) -> State:
        dataset, pipeline = self.resolved.setup.dataset, self.resolved.setup.pipeline
        return self.position.state(
            next_epoch, dataset=dataset.fingerprint, pipeline=pipeline.fingerprint, transforms=repr(pipeline)
        )

    def load(self, state: dict[str, Any]) -> None:
        found, now = State.from_dict(state), self._state()
        # The number of indices from a sampler of user code may differ from its length.
        found.check(now, None if self.batching.sampler.ahead is None else self.batching.sampler.length)
        changed = found.other_batch(now)
        if changed is not None and self.shard.rank == 0:
            warn("this state continues with other batches", [Reason(changed, "other-batch")])
        self.position.load(found)
        # Iterators that have begun belong to the old position, so they end.
        self.generation += 1

    def close(self) -> None:
        self.generation += 1
        if self.running.engine is not None:
            self._happened = self.running.engine.remarks()
        self.running.close()

    @property
    def work(self) -> Work:
        setup, engine = self.resolved.setup, self.resolved.config.name
        dataset, outputs = setup.dataset, setup.pipeline.outputs
        size = outputs[0].size if outputs else None
        # The first thousand images are enough for an average that only gives advice.
        pixels = None if dataset.sizes is None or not len(dataset) else dataset.sizes[:1000].prod(axis=1).mean()
        return Work(
            workers=setup.num_workers if engine == "torch" else setup.threads,
            batch_size=self.batching.batch_size or 1,
            remote=dataset.kind == "files" and dataset.source.storage.remote,
            shrink=1.0 if size is None or pixels is None else float(pixels) / (size[0] * size[1]),
            dali=engine == "dali",
            collates=setup.collates,
        )

    @property
    def engine(self) -> tuple[str, str]:
        return self.resolved.config.name, self.resolved.why

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return self.resolved.reasons

    @property
    def source(self) -> str:
        return repr(self.resolved.setup.dataset)

    def remarks(self) -> list[str]:
        resolved, engine = self.resolved, self.running.engine
        setup = resolved.setup
        cache = [] if setup.cache is None else [setup.cache.remark()]
        why = why_not(setup.dataset, setup.pipeline) if setup.scaled else ""
        scaled = [f"scaled: every image is decoded in full, because {why}"] if why else []
        happened = self._happened if engine is None else engine.remarks()
        return resolved.config.remarks(setup) + happened + cache + scaled

    def _pipelines(self) -> list[Compose]:
        """Return the pipeline, or those of the datasets of a mixture."""
        parts = self.resolved.setup.dataset.parts
        return [self.resolved.setup.pipeline] if len(parts) == 1 else [part.transform for part in parts]

    def describe(self) -> list[str]:
        engine, (name, why) = self.running.engine, self.engine
        facts = ", ".join(f"{k} {v}" for k, v in engine.facts().items()) if engine is not None else "not started"
        seed = "drawn at the first batch" if self.position.drawn is None else self.position.drawn
        return [
            f"order: {self.batching.sampler.name}, seed {seed}; last batch {'dropped' if self.drop_last else 'kept'}",
            f"engine: {name} ({why}) on {self.device}, {facts}",
            *(f"note: {remark}" for remark in self.remarks()),
            *(f"pipeline: {pipeline!r}" for pipeline in self._pipelines()),
        ]


def _parts(batches: Any) -> tuple[Any, ...]:
    """Return what a script may set of torch's ``BatchSampler``."""
    return tuple(getattr(batches, name, None) for name in ("batch_size", "drop_last", "sampler"))
