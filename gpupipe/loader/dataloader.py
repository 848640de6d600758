"""``DataLoader``: torch's DataLoader shape around dataset, pipeline and engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..engines.base import EngineConfig
from ..planning.bad_samples import OnError
from ..types import Shard
from .arguments import Arguments, Device, EngineName
from .bad_sample_report import BadSampleReport
from .epoch import EpochIterator
from .samplers import EpochSampler, OwnBatches
from .session import Session
from .state import State

__all__ = ["DataLoader"]


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
        pin_memory: pin batches that stay on the CPU, if there is CUDA. What goes to a GPU is always pinned.
        drop_last: drop the last batch if it is short.
        timeout, worker_init_fn, multiprocessing_context: for worker processes, if there are any.
        generator: gives the seed if ``seed`` is not given; it is not advanced.
        prefetch_factor: batches in flight at most, of each worker process if there are any; 2 by default.
        persistent_workers: ``False`` stops all threads and processes at the end of every epoch; else they are kept.
        pin_memory_device, in_order: as in torch, at their defaults only.
        device: where batches are handed out: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, an index or a torch.device. By
            default a GPU if there is one.
        engine: ``"auto"``, ``"dali"``, ``"torch"``, ``"null"``, or an engine with its options, such as
            ``engines.Dali(roi=False)``.
        seed: of order and augmentation.
        shard: this rank's part; :meth:`Shard.from_env` under torchrun. Every rank needs the same ``seed``.
        on_error: what happens to a sample that cannot be read. ``"raise"``: its batch raises :class:`SampleError`, and
            the loader goes on after it. ``"skip"``: its batch is shorter. ``"replace"``: another sample of the same
            global batch takes its place, the same one at every replay.
        max_bad: how many bad samples ``"skip"`` and ``"replace"`` allow: a share of the dataset (float) or a count
            (int). With more, :class:`SampleError` is raised after all.

    Iterating gives ``[images, target]`` as torch's DataLoader does: ``dtype[B, 3, H, W]`` and ``i64[B]``, on the
    device; or the images alone if the dataset has no labels. Clips are ``dtype[B, 3, T, H, W]``, or ``[B, T, 3, H, W]``
    if the dataset has ``layout="TCHW"``. Every ``iter()`` ends the one before it and is a new epoch, which begins with
    its first batch: one that gives no batch does not count.

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
        self._session = Session(
            Arguments(
                dataset=dataset,
                batch_size=batch_size,
                shuffle=shuffle,
                sampler=sampler,
                batch_sampler=batch_sampler,
                num_workers=num_workers,
                collate_fn=collate_fn,
                pin_memory=pin_memory,
                drop_last=drop_last,
                timeout=timeout,
                worker_init_fn=worker_init_fn,
                multiprocessing_context=multiprocessing_context,
                generator=generator,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                pin_memory_device=pin_memory_device,
                in_order=in_order,
                device=device,
                engine=engine,
                seed=seed,
                shard=shard,
                on_error=on_error,
                max_bad=max_bad,
            )
        )
        self.dataset = dataset
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.prefetch_factor = self._session.resolved.setup.prefetch_factor
        self.on_error = on_error
        own = EpochSampler(self._session.position)
        self.sampler = own if sampler is None else sampler
        self.batch_sampler = OwnBatches(own)
        # Not called _iterator as in torch: Lightning sets that to None in every loader that has it.
        self._latest: weakref.ref[EpochIterator] | None = None

    @property
    def batch_size(self) -> int:
        """Samples per batch on this rank."""
        return self._session.resolved.batching.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a short last batch is dropped."""
        return self._session.resolved.batching.drop_last

    @property
    def shard(self) -> Shard:
        """This rank's part."""
        return self._session.resolved.batching.shard

    @property
    def seed(self) -> int:
        """Of order and augmentation; a loaded state brings its own."""
        return self._session.position.seed

    @property
    def device(self) -> torch.device:
        """Of the batches. A GPU has its number from the first ``iter()`` on."""
        return self._session.device

    @property
    def valid(self) -> int:
        """How many samples of the batch just handed out are real; the others pad it to the size of other ranks'."""
        return self._session.valid

    # ---- iterating

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank, the same on every rank."""
        return len(self._session.resolved.batching.slices())

    def __iter__(self) -> Iterator[Any]:
        self._session.running.check(self._session.device)
        self._end_iteration()
        self._session.open()
        iterator = EpochIterator(self._session)
        self._latest = weakref.ref(iterator)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """The epoch that begins next. Optional: without it every one is the next one."""
        self._session.position.set_epoch(epoch)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: a dict of integers and short texts, small and independent of the number of ranks.

        Counts what was handed out, not what was read ahead. See :class:`gpupipe.loader.state.State` for the ends of an
        epoch.
        """
        return self._session.state().to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved loader stood; costs nothing but the next batch.

        The next ``iter()`` gives the rest of the saved epoch, with the same images. Calling ``set_epoch`` with that
        epoch before changes nothing; with another epoch it starts that one from its beginning.

        Raises :class:`StateError` if the state is of another dataset, pipeline, order or batch; prints both.
        """
        self._session.load(State.from_dict(state))
        self._end_iteration()

    # ---- what happened

    def report(self) -> BadSampleReport:
        """What was bad so far; ``.samples`` is a list of (index, path, kind, reason)."""
        return self._session.report

    def stats(self) -> dict[str, Any]:
        """Counts since the loader was made: epochs, batches, samples, and the seconds that the consumer waited in
        ``next()`` and worked outside of it. ``stall`` is the waiting's share of both."""
        return self._session.stats.to_dict()

    def __repr__(self) -> str:
        resolved, shard = self._session.resolved, self.shard
        dataset, order = resolved.setup.dataset, resolved.batching.sampler.name
        part = "" if shard.world_size == 1 else f", rank {shard.rank} of {shard.world_size}"
        engine = self._session.running.engine
        facts = ", ".join(f"{k} {v}" for k, v in engine.facts().items()) if engine is not None else "not started"
        pipeline = "\n    ".join(repr(resolved.setup.pipeline).splitlines())
        return (
            f"DataLoader(\n  {len(self):,} batches of {self.batch_size} from {dataset!r}{part}\n"
            f"  order: {order}, seed {self.seed}; last batch {'dropped' if self.drop_last else 'kept'}\n"
            f"  engine: {resolved.config.name} ({resolved.why}) on {self.device}, {facts}\n"
            f"  pipeline: {pipeline}\n)"
        )

    # ---- ends

    def _end_iteration(self) -> None:
        if not self._session.running.ours:
            return
        iterator = self._latest() if self._latest is not None else None
        if iterator is not None:
            iterator.end()
        self._session.running.stop()

    def close(self) -> None:
        """Stop every thread and process and free the memory. A later ``iter()`` starts them again."""
        self._end_iteration()
        self._session.running.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
