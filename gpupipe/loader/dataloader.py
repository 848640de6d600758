"""``DataLoader``: torch's DataLoader shape around dataset, pipeline and engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader, IterableDataset, default_collate
from torch.utils.data.dataloader import _DatasetKind

from ..types import Shard
from .accelerate import Announced, stays_as_it_is
from .arguments import NAMES, Arguments, taken_as
from .bad_sample_report import BadSampleReport
from .epoch import EpochIterator
from .samplers import blocks_within
from .session import Session
from .start import refreshed, session_of, with_arguments

__all__ = ["DataLoader"]

_SETTABLE = ("collate_fn", "generator", "num_workers", "pin_memory", "timeout", "worker_init_fn")
"""Attributes that torch's loader reads when an epoch begins, and does not forbid to set."""
_NOT_SHOWN = ("shuffle", "multiprocessing_context")
"""Arguments that torch's loader has no attribute of, or a property that checks what it is given."""


class DataLoader(TorchLoader[Any]):
    """Batches of a dataset, decoded and augmented, on the device.

    Takes torch's own arguments. What gpupipe's engines cannot run goes to torch's own loader as it is, with one warning
    that has every reason; an engine that is named refuses it instead.

    >>> import numpy as np
    >>> from gpupipe import datasets
    >>> photos = datasets.Arrays(np.zeros((5, 8, 8, 3), np.uint8), [3, 1, 4, 1, 5])
    >>> [target.tolist() for images, target in DataLoader(photos, batch_size=2, device="cpu")]
    [[3, 1], [4, 1], [5]]

    Args:
        dataset: a gpupipe dataset; torchvision's image datasets and ``torch.utils.data.Subset``, whose transforms are
            translated; a Hugging Face dataset with images in format ``"torch"``, or with a transform that only arranges
            others; or a dataset of user code that opens images with Pillow and hands them to transforms that it holds.
            Any other one is torch's own loader's.
        batch_size: samples per batch on this rank.
        shuffle: a full permutation of the whole dataset, another one in every epoch. ``"blocks"`` or a
            :class:`gpupipe.BlockShuffle`, for files on slow storage: blocks of neighbouring samples in random order, of
            which so many are mixed at a time; ``repr`` says how well.
        sampler: a torch sampler or any iterable of indices. A ``DistributedSampler`` also sets the shard.
        batch_sampler: any iterable of lists of indices. torch's own ``BatchSampler`` is taken apart into sampler,
            batch_size and drop_last; the batches of any other are taken as they are. With ``num_workers=0`` and no
            ``prefetch_factor`` each batch is read when it is asked for, as in torch; otherwise a few are read ahead.
            A resumed epoch skips the batches that were delivered, so the batch sampler has to give them again.
        num_workers: threads of the DALI engine; worker processes of the torch engine, and for datasets of user code.
        collate_fn: gets a list of samples as the dataset returns them, but with the images transformed and on the
            device, and makes the batch of them; in this process, with global generators that are seeded for each batch.
        pin_memory: pin batches that stay on the CPU, if there is CUDA. What goes to a GPU is always pinned.
        drop_last: drop the last batch if it is short.
        timeout, worker_init_fn, multiprocessing_context: for worker processes. With a dataset that needs none, torch's
            own loader does the work.
        generator: the seed is drawn from it, once, if ``seed`` is not given; one that was just seeded gives that seed.
        prefetch_factor: batches in flight at most, of each worker process if there are any; 2 by default.
        persistent_workers: ``None``: threads stay, and worker processes that run user code begin anew in every epoch,
            with that code as it is then, as torch's do by default. ``True``: all stay. ``False``: none does. While the
            last batches of an epoch are handed out, the first of the next one are under way, unless it is ``False``,
            user code takes part, or images are pixels in memory. What has changed by then, such as the epoch that is
            set, the transforms or a file, throws them away.
        pin_memory_device, in_order: with others than torch's defaults torch's own loader does the work.
        device: where batches are handed out: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, an index or a torch.device. By
            default a GPU if there is one.
        engine: ``"auto"``, ``"dali"``, ``"torch"``, ``"null"``, or an engine with its options, such as
            ``engines.Dali(roi=False)``.
        seed: of order and augmentation. Drawn when it is first needed if it is not given, from ``generator``, the
            sampler's or torch's global one, so that ``torch.manual_seed`` reproduces a run.
        shard: this rank's part; :meth:`Shard.from_env` under torchrun. If ``torch.distributed`` runs, the first batch
            compares the ranks' seeds, batch sizes, orders, datasets and transforms, and every rank raises
            :class:`ConfigError` with both sides of what is not the same.
        on_error: what happens to a sample that cannot be read. ``"raise"``: its batch raises :class:`SampleError`, and
            the loader goes on after it. ``"skip"``: its batch is shorter, and left out if nothing remains. Ranks have
            equally many batches, so on several ranks one of which nothing remains is filled with other samples, and
            ``loader.valid`` is 0. ``"replace"``: another sample of the same global batch takes its place, or, if all of
            that are bad, one of the same epoch; the same one at every replay. If none of the epoch's samples is good
            (1,024 are tried), its batch raises :class:`SampleError`.
        cache: keep decoded images for the epochs to come: ``"ram"``, in memory (``/dev/shm``) until the last process
            that uses it ends, or ``"disk"``, in gpupipe's cache folder, where later runs find it. All processes and
            ranks of this machine share it. Images are kept whole, as Pillow decodes them (also for a GPU), 0.6 MB each
            at 500 x 375, and only those of a file as it is now are believed. For images in files. With ``scaled``,
            every size at which an image was decoded is kept.
        cache_bytes: of all that is kept, with ``cache``; with ``cache="ram"`` half of the free memory by default, which
            ``repr`` shows. If it is full, further images are decoded each time; entries unused for a day are evicted.
        scaled: decode JPEG files at 1/2, 1/4 or 1/8 if a crop or a resize, with which the transforms begin, takes at
            least two pixels of the smaller image for each one that it makes. That takes less memory, and less time for
            photographs of some ten megapixels, or of three in the reference engine. Pixels differ from those of a full
            decode: docs/promises.md says by how much. Both engines give the same, on the CPU. For images in files;
            others than JPEG, small ones and small crops are decoded as ever, and so is ``dataset[i]``. ``repr`` says
            how many are decoded smaller.
        max_bad: how many bad samples ``"skip"`` and ``"replace"`` allow: a share of the dataset (float) or a count
            (int). With more, :class:`SampleError` is raised after all.

    Iterating gives ``[images, target]`` as torch's DataLoader does: ``dtype[B, 3, H, W]`` and ``i64[B]``, on the
    device; or the images alone if the dataset has no labels; further columns come after the target, or all of it in a
    dictionary, as the dataset says; a dataset of user code gives what torch makes of its samples. Clips are
    ``dtype[B, 3, T, H, W]``, or ``[B, T, 3, H, W]`` if the dataset has ``layout="TCHW"``. Every ``iter()`` is a new
    epoch, which begins with its first batch: one that gives no batch does not count. Iterators of earlier epochs go on
    if they are asked for more.

    Frameworks take it for a loader of torch's, of which it is a subclass, and iterate over it as it is; tried were
    Lightning with Fabric, Accelerate, torchdata and timm. With ``shard=`` its sampler is a ``DistributedSampler``, so
    Lightning does not cut it once more; a loader without one Lightning makes anew for each rank, with all its
    arguments. Accelerate cuts none of its batches: on several processes it needs ``shard=``, or ``prepare()`` refuses
    it. What builds a loader of torch's own from ``dataset`` and ``batch_sampler`` (Accelerate's
    ``skip_first_batches``) goes without gpupipe, and a warning says so: use ``load_state_dict``.

    Raises:
        ConfigError: an argument is wrong; or torch's own loader has to do the work, and there is no such option.
        TranslationError: something of torchvision or user code has no gpupipe form, and an engine other than ``"auto"``
            and ``"torch"`` was asked for.
        PipelineError: the engine cannot run the pipeline.
        MemoryBudgetError: what would be held at the least is more than there is. For a GPU the first ``iter()`` raises
            it, because nothing here may touch the GPU. See :func:`gpupipe.memory.estimate`.
    """

    dataset: Any
    """As it was given."""
    sampler: Any
    """As it was given, or the loader's own, which has the same order."""
    batch_sampler: Any
    engine: Any
    on_error: Any
    max_bad: Any
    cache: Any
    cache_bytes: Any
    scaled: Any
    _set_before: dict[str, Any]

    @taken_as(Arguments)
    def __init__(self, arguments: Arguments):
        kept = None if arguments.shuffle else blocks_within(arguments.sampler)
        if kept is not None:
            arguments = arguments.changed(sampler=None, shuffle=kept[0], shard=kept[1])
        self._show(arguments, session_of(arguments))

    def _show(self, a: Arguments, session: Session) -> None:
        """The attributes of torch's loader, whose ``__init__`` is not called: it would make samplers of its own."""
        # To give a loader another sampler, Lightning makes it anew from vars(), by the names of arguments. So the given
        # values stand there, also those that properties of the same name hide.
        given = {name: getattr(a, name) for name in NAMES if name not in _NOT_SHOWN}
        vars(self).update(given)
        self._session = session
        self._DataLoader__multiprocessing_context = a.multiprocessing_context
        self.collate_fn = default_collate if a.collate_fn is None else a.collate_fn
        self.prefetch_factor = session.prefetch_factor if a.num_workers else a.prefetch_factor  # as in torch
        self.batch_size, self.drop_last = session.batch_size, session.drop_last
        self.sampler, self.batch_sampler = session.sampler, session.batch_sampler
        vars(self)["_set_before"] = {name: getattr(self, name) for name in _SETTABLE}
        self._dataset_kind = _DatasetKind.Iterable if isinstance(a.dataset, IterableDataset) else _DatasetKind.Map
        self._IterableDataset_len_called = None
        self._DataLoader__initialized = True

    @property
    def shard(self) -> Shard:
        """This rank's part."""
        return self._session.shard

    @property
    def seed(self) -> int:
        """Of order and augmentation; drawn at the first batch, or when it is asked for. A state brings its own."""
        return self._session.seed

    @property
    def device(self) -> torch.device:
        """Of the batches. A GPU has its number from the first ``iter()`` on."""
        return self._session.device

    @property
    def valid(self) -> int:
        """How many samples of the batch just handed out are real; the others pad it to the size of other ranks'."""
        return self._session.valid

    @property
    def persistent_workers(self) -> bool:  # type: ignore[override]
        """As torch has it; see the argument."""
        return bool(self._session.arguments.persistent_workers)

    # ---- iterating

    @property
    def _followed(self) -> Session:
        """The session, told if a subclass has put another ``batch_sampler`` in the place of its own, against torch's
        guard, as those of timm and YOLO do."""
        if self.batch_sampler is not self._session.batch_sampler:
            self._session.take_batches(self.batch_sampler)
        return self._session

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank. Raises TypeError if the sampler has no length."""
        return len(self._followed)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        session = self._followed
        changed = {name: getattr(self, name) for name in _SETTABLE if getattr(self, name) is not self._set_before[name]}
        session = with_arguments(session, **changed) if changed else refreshed(session)
        if session is not self._session:  # else nothing is set, which Lightning would repeat on a copy
            object.__setattr__(self, "_DataLoader__initialized", False)
            self._show(session.arguments, session)
        batches = self._session.iterate()
        return Announced(batches) if self._announced and isinstance(batches, EpochIterator) else batches

    def set_epoch(self, epoch: int) -> None:
        """The epoch that begins next. Optional: without it every one is the next one."""
        self._session.set_epoch(epoch)

    _announced = False

    @property
    def _is_accelerate_prepared(self) -> bool:
        """What Accelerate's ``prepare()`` asks before it builds a loader of torch's. It iterates over this one instead,
        and is told which batch is the last one."""
        stays = stays_as_it_is(self._session)
        if stays != self._announced:
            self._announced = stays
        return stays

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """It also says so."""

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: a dict of integers and short texts, small and independent of the number of ranks.

        Counts what was handed out, not what was read ahead. See :class:`gpupipe.loader.state.State` for the ends of an
        epoch.
        """
        return self._followed.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved loader stood; costs nothing but the next batch.

        The next ``iter()`` gives the rest of the saved epoch, with the same images. Calling ``set_epoch`` with that
        epoch before changes nothing; with another epoch it starts that one from its beginning.

        It may be of another number of ranks and another batch: the epoch goes on after the samples that were delivered,
        and a warning says so if the global batch is another one. All ranks load the same state; any rank's will do.

        Raises :class:`StateError` if the state is of another dataset, pipeline or order; prints both.
        """
        self._followed.load(state)

    def __getstate__(self) -> dict[str, Any]:
        """Where it stands and how it was made: a copy starts its own engine."""
        session = self._followed
        own = {k: v for k, v in self.__dict__.items() if k not in ("_session", "sampler", "batch_sampler")}
        # What has drawn no seed yet has no place either: a copy draws its own.
        position = session.state() if session.has_begun else None
        return {"arguments": session.arguments, "position": position, "attributes": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["attributes"])
        self.__dict__["_DataLoader__initialized"] = False
        self.__dict__.pop("_dataset_kind")
        self._show(state["arguments"], session_of(state["arguments"]))
        if state["position"] is not None:
            self._session.load(state["position"])

    # ---- what happened

    def report(self) -> BadSampleReport:
        """What was bad so far; ``.samples`` is a list of (index, path, kind, reason). ``.remarks`` are sentences about
        how the work was done: what Pillow decoded in DALI's place, and how fast."""
        report = self._session.report
        report.remarks = self._session.remarks()
        return report

    def stats(self) -> dict[str, Any]:
        """Counts since the loader was made: epochs, batches, samples, and the seconds that the consumer waited in
        ``next()`` and worked outside of it. ``stall`` is the waiting's share of both."""
        return self._session.stats.to_dict()

    def __repr__(self) -> str:
        session, shard = self._followed, self.shard
        part = "" if shard.world_size == 1 else f", rank {shard.rank} of {shard.world_size}"
        try:
            count = f"{len(session):,} batches"
        except TypeError:
            count = "batches"
        lines = "".join(f"  {line}\n".replace("\n    ", "\n      ") for line in session.describe())
        return f"{type(self).__name__}(\n  {count} of {self.batch_size} from {session.source}{part}\n{lines})"

    # ---- ends

    def close(self) -> None:
        """Stop every thread and process and free the memory; iterators end. A later ``iter()`` starts them again."""
        self._session.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
