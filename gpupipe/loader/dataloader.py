"""``DataLoader``: torch's DataLoader shape around dataset, pipeline and engine."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ..engines.base import Engine, EngineConfig, Run
from ..engines.delivery import KeepAlive
from ..errors import ConfigError, EngineError
from ..memory.limits import Budget
from ..planning.bad_samples import OnError, Policy
from ..planning.epoch import EpochPlan
from ..planning.order import Slices
from ..reading.setup import Setup
from ..types import Batch, Shard
from .arguments import Arguments, Device, EngineName, Sampling, resolve
from .bad_sample_report import Report
from .epoch import Cursor, EpochIterator, Stats
from .state import VERSION, State

__all__ = ["DataLoader"]


class _Running:
    """The engine and its run. Apart from the loader, so that a finaliser can hold it without keeping the loader
    alive."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.run: Run | None = None
        self._lease: KeepAlive | None = None
        self._forked_from = 0
        """The process whose threads and processes these are, where it is not this one."""
        _RUNNING.add(self)

    def forked(self) -> None:
        """Called in a forked child. What was started belongs to the parent, and here nothing may end it: a destructor
        would wait for threads that the child does not have."""
        if self.engine is not None and not self._forked_from:
            self._forked_from = os.getppid()
            self.engine.forked()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    @property
    def ours(self) -> bool:
        return not self._forked_from

    def check(self, device: torch.device) -> None:
        """Refuse what cannot work in a forked child."""
        if self._forked_from:
            raise EngineError(
                f"this loader was started in process {self._forked_from}, and process {os.getpid()} is a fork of it: "
                "threads, worker processes and CUDA do not survive a fork. Make a loader in the child, or close() this "
                "one before forking"
            )
        if device.type == "cuda" and torch.cuda._is_in_bad_fork():
            raise EngineError(
                f"device={str(device)!r}: CUDA was initialised in the parent before this process ({os.getpid()}) was "
                "forked, and does not work here. Start the process with multiprocessing.get_context('spawn'), or touch "
                "no GPU before forking"
            )

    def lease(self, batch: Batch, device: torch.device) -> None:
        """Keep what a batch points into until the consumer's stream has passed."""
        if batch.keep is not None:
            if self._lease is None:
                self._lease = KeepAlive(device)
            self._lease.take(batch.keep)

    def renew_lease(self) -> None:
        if self._lease is not None:
            self._lease.renew()

    def stop(self) -> None:
        run, self.run = self.run, None
        if run is not None:
            run.close()

    def close(self) -> None:
        if not self.ours:
            return
        self.stop()
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.end()
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()


_RUNNING: weakref.WeakSet[_Running] = weakref.WeakSet()


def _in_forked_child() -> None:
    for running in list(_RUNNING):
        running.forked()


os.register_at_fork(after_in_child=_in_forked_child)


class DataLoader:
    """Batches of a dataset, decoded and augmented, on the device.

    Takes torch's own arguments. Each is honoured, or refused with what to do instead.

    Args:
        dataset: a gpupipe dataset; or a torchvision dataset or ``torch.utils.data.Subset``, whose transforms are then
        translated.
        batch_size: samples per batch on this rank.
        shuffle: a full permutation of the whole dataset, another one in every epoch.
        sampler: a torch sampler or any iterable of indices. A ``DistributedSampler`` also sets the shard.
        batch_sampler: torch's own ``BatchSampler`` only; it is taken apart into sampler, batch_size and drop_last.
        num_workers: threads of the DALI engine, worker processes of the torch engine.
        collate_fn: torch's default only, except with ``engine="torch"``, which then runs the dataset object as it is.
        pin_memory: pin batches that stay on the CPU, where there is CUDA. What goes to a GPU is always pinned.
        drop_last: drop the last batch if it is short.
        timeout, worker_init_fn, multiprocessing_context: for worker processes, where there are any.
        generator: gives the seed where ``seed`` is not given; it is not advanced.
        prefetch_factor: batches in flight at most, of each worker process where there are any; 2 by default.
        persistent_workers: ``False`` stops all threads and processes at the end of every epoch; else they are kept.
        pin_memory_device, in_order: as in torch, at their defaults only.
        device: where batches are handed out: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, an index or a torch.device. By
            default a GPU where there is one.
        engine: ``"auto"``, ``"dali"``, ``"torch"``, ``"null"``, or an engine with its options, such as
            ``engines.Dali(roi=False)``.
        seed: of order and augmentation.
        shard: this rank's part; :meth:`Shard.from_env` under torchrun. Every rank needs the same ``seed``.
        on_error: what happens to a sample that cannot be read. ``"raise"``: its batch raises :class:`SampleError`, and
            the loader goes on after it. ``"skip"``: its batch is shorter. ``"replace"``: another sample of the same
            global batch takes its place, the same one at every replay.
        max_bad: how many bad samples ``"skip"`` and ``"replace"`` bear: a share of the dataset (float) or a count
            (int). With more, :class:`SampleError` is raised after all.

    Iterating gives ``[images, target]`` as torch's DataLoader does: ``dtype[B, 3, H, W]`` and ``i64[B]``, on the
    device; or the images alone where the dataset has no labels. Clips are ``dtype[B, 3, T, H, W]``, or ``[B, T, 3, H,
    W]`` where the dataset has ``layout="TCHW"``. Every ``iter()`` ends the one before it and is a new
    epoch, which begins with its first batch: one that gives no batch does not count.

    Raises:
        ConfigError: an argument is wrong. TranslationError: something of torchvision has no gpupipe form.
        PipelineError: the engine cannot run the pipeline.
        MemoryBudgetError: what would be held at the least is more than there is. For a GPU the first ``iter()`` raises
            it, because nothing here may touch the GPU. See :func:`gpupipe.memory.estimate`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: Device = None,
        engine: EngineName | EngineConfig = "auto",
        seed: int | None = None,
        shard: Shard | None = None,
        on_error: OnError = "raise",
        max_bad: float | int | None = None,
    ):
        self.dataset = dataset
        a = resolve(
            Arguments(
                dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory,
                drop_last, timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor,
                persistent_workers, pin_memory_device, in_order, device, engine, seed, shard,
            )
        )  # fmt: skip
        self.device: torch.device = a.device
        self.num_workers = num_workers
        self.drop_last = a.sampling.drop_last
        self.batch_size = a.sampling.batch_size
        self.pin_memory = pin_memory
        self.prefetch_factor = a.setup.prefetch_factor
        self.shard = a.sampling.shard
        self.seed = a.seed
        self.on_error = on_error
        self._policy = Policy(on_error, max_bad, a.setup.dataset)
        self.valid = 0
        """How many samples of the batch just handed out are real; the others pad it to the size of the other ranks'."""
        self._sampling: Sampling = a.sampling
        self._setup: Setup = a.setup
        self._budget: Budget = a.budget
        self._config: EngineConfig = a.config
        self._why: str = a.why
        self._persistent = persistent_workers is not False
        own = EpochSampler(self)
        self.sampler = own if sampler is None else sampler
        self.batch_sampler = OwnBatches(own)
        self._cursor = Cursor()
        self._next_epoch = 0
        self._resume = 0  # samples to leave out at the start of _next_epoch
        self._sampler_epoch = a.sampling.epoch_of()
        # Not called _iterator as in torch: Lightning sets that to None in every loader that has it.
        self._latest: weakref.ref[EpochIterator] | None = None
        self._report = Report()
        self._stats = Stats()
        self._running = _Running()
        self._finalizer = weakref.finalize(self, self._running.close)

    # ---- iterating

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank, the same on every rank."""
        return len(self._slices(self._sampling.length, 0))

    def __iter__(self) -> Iterator[Any]:
        running = self._running
        running.check(self.device)
        self._end_iteration()
        if running.engine is None:
            with torch.inference_mode(False):
                setup = self._located_setup()
                if self.device.type == "cuda":
                    self._budget.check_device(torch.cuda.mem_get_info(self.device)[1])
                running.engine = self._config.build(setup)
        self._cursor = Cursor()
        iterator = EpochIterator(self, running.engine)
        self._latest = weakref.ref(iterator)
        return iterator

    def _begin(self) -> tuple[EpochPlan, Cursor]:
        """What the first ``next()`` of an iterator starts. ``iter()`` cannot: frameworks call it to see whether it
        works, and set the epoch afterwards."""
        self._follow_sampler()
        setup, epoch, start = self._setup, self._next_epoch, self._resume
        order = self._sampling.make(self.seed, epoch)
        slices = self._slices(len(order), start)
        plans = EpochPlan(setup.dataset, setup.pipeline, order, slices, self.seed, epoch, self._policy)
        self._cursor = Cursor(epoch, start, running=True)
        self._next_epoch, self._resume = epoch + 1, 0
        return plans, self._cursor

    def _slices(self, total: int, start: int) -> Slices:
        return Slices(total, self.batch_size, self.shard, self.drop_last, start)

    def _located_setup(self) -> Setup:
        """The setup with the GPU's number; asking for it before the first iter() would start CUDA."""
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        return replace(self._setup, device=str(self.device))

    def _follow_sampler(self) -> None:
        """``set_epoch`` called on the sampler that the script owns counts as called on the loader."""
        now = self._sampling.epoch_of()
        if now is not None and now != self._sampler_epoch:
            self._sampler_epoch = now
            self.set_epoch(now)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that begins next. Optional: without it every one is the next one."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ConfigError(f"set_epoch takes an integer that is not negative, not {epoch!r}")
        if epoch != self._next_epoch:
            self._next_epoch, self._resume = epoch, 0

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: a dict of integers and short texts, small and independent of the number of ranks.

        Counts what was handed out, not what was read ahead. See :class:`gpupipe.loader.state.State` for the ends of an
        epoch.
        """
        return self._state().to_dict()

    def _state(self) -> State:
        cursor = self._cursor if self._cursor.running else Cursor(self._next_epoch, self._resume)
        return State(
            version=VERSION,
            seed=self.seed,
            epoch=cursor.epoch,
            delivered=cursor.delivered,
            batch_size=self.batch_size,
            world_size=self.shard.world_size,
            drop_last=int(self.drop_last),
            dataset=self._setup.dataset.fingerprint,
            pipeline=self._setup.pipeline.fingerprint,
            order=self._sampling.name,
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved loader stood; costs nothing but the next batch.

        The next ``iter()`` gives the rest of the saved epoch, with the same images. Calling ``set_epoch`` with that
        epoch before changes nothing; with another epoch it starts that one from its beginning.

        Raises :class:`StateError` where the state is of another dataset, pipeline, order or batch; prints both.
        """
        loaded = State.from_dict(state)
        loaded.check(self._state(), len(self._sampling.make(loaded.seed, loaded.epoch)))
        self._end_iteration()
        self.seed = loaded.seed
        self._cursor = Cursor()
        self._next_epoch, self._resume = loaded.epoch, loaded.delivered

    # ---- what happened

    def report(self) -> Report:
        """What was bad so far; ``.samples`` is a list of (index, path, kind, reason)."""
        return self._report

    def stats(self) -> dict[str, Any]:
        """Counts since the loader was made: epochs, batches, samples, and the seconds that the consumer waited in
        ``next()`` and worked outside of it. ``stall`` is the waiting's share of both."""
        return self._stats.to_dict()

    def __repr__(self) -> str:
        a, shard = self._setup, self.shard
        part = "" if shard.world_size == 1 else f", rank {shard.rank} of {shard.world_size}"
        engine = self._running.engine
        facts = ", ".join(f"{k} {v}" for k, v in engine.facts().items()) if engine is not None else "not started"
        pipeline = "\n    ".join(repr(a.pipeline).splitlines())
        return (
            f"DataLoader(\n  {len(self):,} batches of {self.batch_size} from {a.dataset!r}{part}\n"
            f"  order: {self._sampling.name}, seed {self.seed}; last batch {'dropped' if self.drop_last else 'kept'}\n"
            f"  engine: {self._config.name} ({self._why}) on {self.device}, {facts}\n"
            f"  pipeline: {pipeline}\n)"
        )

    # ---- ends

    def _end_iteration(self) -> None:
        if not self._running.ours:
            return
        iterator = self._latest() if self._latest is not None else None
        if iterator is not None:
            iterator.end()
        self._running.stop()

    def close(self) -> None:
        """Stop every thread and process and free the memory. A later ``iter()`` starts them again."""
        self._end_iteration()
        self._running.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class EpochSampler:
    """``loader.sampler`` where the script gave none: this rank's indices of the next epoch."""

    def __init__(self, loader: DataLoader):
        self._loader = weakref.ref(loader)

    def _owner(self) -> DataLoader:
        loader = self._loader()
        if loader is None:
            raise ReferenceError("the loader of this sampler is gone")
        return loader

    def set_epoch(self, epoch: int) -> None:
        self._owner().set_epoch(epoch)

    def __len__(self) -> int:
        loader = self._owner()
        slices = loader._slices(loader._sampling.length, 0)
        last = len(slices) - 1
        return 0 if last < 0 else last * loader.batch_size + len(slices.take(last)[0])

    def __iter__(self) -> Iterator[int]:
        loader = self._owner()
        order = loader._sampling.make(loader.seed, loader._next_epoch)
        slices = loader._slices(len(order), 0)
        for step in range(len(slices)):
            yield from order.at(slices.take(step)[0])[0].tolist()


class OwnBatches:
    """``loader.batch_sampler``: Lightning wants one of whatever has a sampler, and sets the epoch of its ``sampler``,
    and so of the loader, also where the script's own sampler has none.

    It gives no indices, because a framework would build a loader of torch's from them: with another engine, with
    batches that are cut into ranks once more, and without a word.
    """

    def __init__(self, sampler: EpochSampler):
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        raise ConfigError(
            "a gpupipe loader makes its batches itself: iterate over the loader as it is, cut it into ranks with "
            "shard=, go on in the middle of an epoch with load_state_dict(), and ask loader.sampler for indices"
        )
