"""``DataLoader``: gpupipe's dataset, pipeline and engine with the interface of torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Any, Unpack, overload

import torch
from torch.utils.data import IterableDataset, default_collate
from torch.utils.data.dataloader import DataLoader as TorchLoader, _DatasetKind

from .. import provided
from ..datasets.dataset import Batches, Dataset
from ..html import described
from ..types import Plan, Shard
from .accelerate import AnnouncedEpoch, stays_as_it_is
from .agreement import gathered
from .arguments import NAMES, Arguments, Options, Shuffling, taken_as
from .bad_sample_report import BadSampleReport
from .epoch import EpochIterator
from .live_session import LiveEpoch
from .samplers import arguments_within
from .session import Counts, Session
from .start import refreshed, session_of, with_arguments, with_batches
from .stats import Stats

_SETTABLE = ("collate_fn", "generator", "num_workers", "pin_memory", "timeout", "worker_init_fn")
"""Attributes that torch's loader allows to be set and reads when an epoch begins."""
_NOT_SHOWN = ("shuffle", "multiprocessing_context")
"""Arguments that torch's loader has no attribute for, or only a property that checks the assigned value."""


class DataLoader(TorchLoader[Batches]):
    """Load batches of a dataset, decoded, augmented and on the device.

    Takes torch's arguments. Datasets that gpupipe knows exactly are planned: numbers first, without code of the script.
    For everything else torch's DataLoader runs the script's code, and only the pixels of images wait for an engine.

    >>> import numpy as np
    >>> from gpupipe import datasets
    >>> photos = datasets.Arrays(np.zeros((5, 8, 8, 3), np.uint8), [3, 1, 4, 1, 5])
    >>> [target.tolist() for images, target in DataLoader(photos, batch_size=2, device="cpu")]
    [[3, 1], [4, 1], [5]]

    Args:
        dataset: a gpupipe dataset, or any dataset of torch. torchvision's ``ImageFolder``, CIFAR and MNIST datasets,
            and ``Subset`` and ``ConcatDataset`` of these, are planned if gpupipe has all of their transforms and the
            other arguments are torch's own objects; all others are live. ``repr`` shows which.
        batch_size: samples per batch on this rank.
        shuffle: ``True`` for a new permutation of the whole dataset in every epoch. ``"blocks"`` or a
            :class:`gpupipe.BlockShuffle`, for files on slow storage, reads blocks of neighboring samples in random
            order and mixes several blocks at a time; ``repr`` shows how well they are mixed.
        sampler: a torch sampler or any iterable of indices. A ``DistributedSampler`` also sets the shard. With a
            gpupipe dataset or ``seed=``, a sampler or batch sampler of the script is read whole when its epoch begins,
            so it needs a length and must end. A resumed epoch skips what was delivered, so it must give the same again.
        batch_sampler: any iterable of lists of indices. torch's own ``BatchSampler`` is split into sampler, batch_size
            and drop_last; the batches of any other are used as they are.
        num_workers: threads of the DALI engine; worker processes of the torch engine, and of live loaders.
        collate_fn: receives a list of samples as the dataset returns them, but with transformed images on the device,
            and returns a batch, whose tensors are moved to the device. With a gpupipe dataset it runs in this process,
            with global generators that are seeded for each batch; in a live loader it runs where torch runs it.
        pin_memory: pin batches that stay on the CPU, if CUDA is available. Batches that go to a GPU are always pinned.
        drop_last: drop the last batch if it is short.
        timeout: seconds to wait for a batch of worker processes. Then an error shows where in its code the worker is.
            0 waits for ever, as is torch's default.
        worker_init_fn, multiprocessing_context: options of worker processes, which only live loaders and the torch
            engine have.
        generator: the seed is drawn from it if ``seed`` is not given: at first use, and when an epoch begins after the
            script has seeded it again. A generator that was just seeded gives that seed.
        prefetch_factor: number of batches that are made ahead, per worker process if there are any; 2 by default. One
            more is read.
        persistent_workers: ``None``: threads stay, and worker processes that run code of the script restart in every
            epoch with its current state, as torch's do by default. ``True``: all stay. ``False``: none stays. While the
            last batches of an epoch are delivered, the first ones of the next epoch are prepared, unless this is
            ``False``, code of the script takes part, or images are pixels in memory. They are discarded if anything has
            changed when that epoch begins, such as the epoch number, the transforms or a file.
        pin_memory_device, in_order: as in torch; a gpupipe dataset takes the default values only.
        device: device of the batches: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, an index or a torch.device. By default a GPU
            if there is one.
        engine: ``"auto"``, ``"dali"``, ``"torch"``, ``"null"``, or an engine with its options, such as
            ``engines.Dali(hw_decoder_load=0.5)``.
        seed: seed of order and augmentation. By default it is drawn at first use from ``generator``, the sampler's
            generator or torch's global one, so that ``torch.manual_seed`` reproduces a run, or before an epoch that
            epoch.
        shard: this rank's part; :meth:`Shard.from_env` under torchrun. If ``torch.distributed`` runs, the first batch
            compares the ranks' seeds, batch sizes, orders, datasets and transforms, and every rank raises
            :class:`ConfigError` with both sides of each difference.
        on_error: how to handle a sample that cannot be read. ``"raise"``: its batch raises :class:`SampleError`, and
            the loader continues after it. ``"skip"``: its batch is shorter, or left out if no sample remains. Ranks
            have equally many batches, so on several ranks an empty batch is filled with other samples, and
            ``loader.valid`` is 0. ``"replace"``: another sample of the same global batch takes its place or, if all of
            these are bad, one of the same epoch; every replay takes the same one. If no sample of the epoch is good
            (1,024 are tried), its batch raises :class:`SampleError`.
        cache: keep decoded images for later epochs: ``"ram"``, in memory (``/dev/shm``) until the last process that
            uses it ends, or ``"disk"``, in gpupipe's cache folder, where later runs find them. All processes and ranks
            of this machine share it. Images are kept whole, as Pillow decodes them (also for a GPU), 0.6 MB each at 500
            x 375. Images whose files have changed are not used. Only for images in files. With ``scaled``,
            every size at which an image was decoded is kept.
        cache_bytes: maximum size of the cache. With ``cache="ram"`` the default is half of the free memory, which
            ``repr`` shows. If it is full, further images are decoded each time; entries unused for a day are evicted.
        scaled: decode JPEG files at 1/2, 1/4 or 1/8 if the transforms begin with a crop or a resize that takes at least
            two pixels of the smaller image for each output pixel. This takes less memory, and less time for photographs
            of some ten megapixels, or of three in the reference engine. Pixels differ from those of a full decode;
            docs/promises.md says by how much. Both engines give the same pixels on the CPU. Only for images in files.
            Other formats, small images and small crops are decoded in full, and so is ``dataset[i]``. If no
            image can be decoded smaller, ``repr`` says why.
        epoch_length: batches in an epoch, whatever the length of the dataset is. Epochs are consecutive parts of an
            endless sequence of passes over the dataset, each with every sample once and an order of its own, so no
            sample is left out or preferred. A sample that comes twice in an epoch draws other numbers each time.
        infinite: the epoch has no end, and the loader has no ``len()``. Passes follow one another as with
            ``epoch_length``, and ``state_dict()`` resumes at any step.
        exclude: indices of samples that are left out of every epoch. They are part of the order, so a state with other
            ones does not load. :meth:`plan_at` finds the samples of a step.
        global_batch_size: samples per batch over all ranks, in place of ``batch_size``. Every rank takes its share, so
            batches and steps stay as they are when a run continues on another number of ranks. If it is no multiple of
            that number, shares differ by one sample, and a warning says so; ``batch_size`` is the largest.
        live: run the code of datasets that gpupipe knows, too: torch's DataLoader calls it, and only pixels of images
            wait for an engine. Batches then equal those of torch's DataLoader from the same seed, so a run can be
            compared with torch's. Datasets of gpupipe have no such code.
        max_bad: how many bad samples ``"skip"`` and ``"replace"`` allow: a share of the dataset (float) or a count
            (int). If there are more, :class:`SampleError` is raised.

    Iterating yields ``[images, target]`` as torch's DataLoader does, ``dtype[B, 3, H, W]`` and ``i64[B]`` on the
    device, or the images alone if the dataset has no labels. Further columns follow the target, or everything is in a
    dictionary, as the dataset specifies. A live loader yields what torch makes of its samples. Clips are
    ``dtype[B, 3, T, H, W]``, or ``[B, T, 3, H, W]`` if the dataset has ``layout="TCHW"``. Every ``iter()`` is a new
    epoch, which begins with its first batch: an iterator that yields no batch does not count. Iterators of earlier
    epochs continue if they are asked for more.

    Frameworks treat it as a torch DataLoader, which is its base class, and iterate over it directly; tested with
    Lightning, Fabric, Accelerate, torchdata and timm. With ``shard=`` its sampler is a ``DistributedSampler``, so
    Lightning does not divide it again; without it, Lightning recreates the loader for each rank, with all its
    arguments. Accelerate divides none of its batches: on several processes it needs ``shard=``, otherwise ``prepare()``
    raises an error. Code that builds a torch DataLoader from attributes of a loader (Accelerate's
    ``skip_first_batches``, Ray Train's ``prepare_data_loader``) bypasses gpupipe: pass ``shard=``, and use
    ``load_state_dict``.

    Raises:
        ConfigError: an argument is wrong, or only planned loaders have it.
        PipelineError: the engine cannot run the pipeline.
        MemoryBudgetError: a batch of a worker process does not fit into /dev/shm. The iterator raises it.
    """

    dataset: Any
    """The dataset, as given."""
    sampler: Any
    """The sampler as given, or the loader's own, which has the same order."""
    batch_sampler: Any
    engine: Any
    on_error: Any
    max_bad: Any
    cache: Any
    cache_bytes: Any
    scaled: Any
    epoch_length: Any
    infinite: Any
    exclude: Any
    _set_before: dict[str, Any]

    @overload
    def __init__(
        self: DataLoader[Batches],
        dataset: Dataset[Any, Batches],
        batch_size: int = ...,
        shuffle: Shuffling = ...,
        sampler: Any = ...,
        batch_sampler: Any = ...,
        num_workers: int = ...,
        collate_fn: None = ...,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = ...,
        shuffle: Shuffling = ...,
        sampler: Any = ...,
        batch_sampler: Any = ...,
        num_workers: int = ...,
        collate_fn: Callable[[list[Any]], Batches] | None = ...,
        **options: Unpack[Options],
    ) -> None: ...
    @taken_as(Arguments)  # type: ignore[misc]  # a test compares its signature with those above
    def __init__(self, arguments: Arguments):
        if not arguments.shuffle and (within := arguments_within(arguments.sampler)):
            arguments = arguments.changed(**within)
        self._show(arguments, session_of(arguments))

    def _show(self, a: Arguments, session: Session) -> None:
        """Set the attributes of torch's loader. Its ``__init__`` is not called, since it would make its own
        samplers."""
        # To replace a loader's sampler, Lightning recreates the loader from vars(), by argument name. So the given
        # values are stored there, even where a property of the same name hides them.
        given = {name: getattr(a, name) for name in NAMES if name not in _NOT_SHOWN}
        vars(self).update(given)
        self._session = session
        self._DataLoader__multiprocessing_context = a.multiprocessing_context
        self.prefetch_factor = session.prefetch_factor if a.num_workers else a.prefetch_factor  # as in torch
        self.batch_size, self.drop_last = session.batch_size, session.drop_last
        self.sampler, self.batch_sampler = session.sampler, session.batch_sampler
        self.collate_fn = default_collate if a.collate_fn is None else a.collate_fn
        vars(self)["_set_before"] = {name: getattr(self, name) for name in _SETTABLE}
        self._dataset_kind = _DatasetKind.Iterable if isinstance(a.dataset, IterableDataset) else _DatasetKind.Map
        self._IterableDataset_len_called = None
        # From now on torch rejects assignments to some of these attributes.
        self._DataLoader__initialized = True

    @property
    def shard(self) -> Shard:
        """This rank's part."""
        return self._session.shard

    @property
    def seed(self) -> int:
        """Seed of order and augmentation. Drawn at the first batch or when read; a loaded state has its own."""
        return self._session.seed

    @property
    def device(self) -> torch.device:
        """Device of the batches. A GPU has its number from the first ``iter()`` on."""
        return self._session.device

    @property
    def valid(self) -> int:
        """Number of real samples in the batch just delivered. The others pad it to the size of other ranks' batches."""
        return self._session.valid

    @property
    def persistent_workers(self) -> bool:  # type: ignore[override]
        """Value of the argument, as in torch's loader."""
        return bool(self._session.arguments.persistent_workers)

    # ---- iterating

    @property
    def _followed(self) -> Session:
        """The session, another one if the script has replaced or changed ``batch_sampler``."""
        if not self._session.has_batches(self.batch_sampler):
            self._session = with_batches(self._session, self.batch_sampler)
        return self._session

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on every rank. Raises TypeError if the sampler has no length."""
        return len(self._followed)

    def __iter__(self) -> Iterator[Batches]:  # type: ignore[override]
        session = self._current()
        batches = session.iterate()
        if self._announced and isinstance(batches, (EpochIterator, LiveEpoch)):
            return AnnouncedEpoch(batches, session)
        return batches

    def _current(self) -> Session:
        """Return the session, updated to what the script has changed since the last epoch."""
        session = self._followed
        changed = {name: getattr(self, name) for name in _SETTABLE if getattr(self, name) is not self._set_before[name]}
        session = with_arguments(session, **changed) if changed else refreshed(session)
        if session is not self._session:  # set nothing otherwise: Lightning would repeat it on a copy
            # Until _show() has finished, torch must not reject its assignments.
            object.__setattr__(self, "_DataLoader__initialized", False)
            self._show(session.arguments, session)
        return self._session

    def at(self, epoch: int, step: int) -> Batches:
        """Return the batch of any step of any epoch, as the training loop gets it.

        No earlier step is run, and the loader stays where it is: a loop in progress, ``state_dict()``, ``stats()`` and
        ``report()`` do not change. Use it to look at the samples behind a spike of the loss.

        Args:
            epoch: number of the epoch, as for :meth:`set_epoch`.
            step: number of the global batch, counted from the start of the epoch. If the epoch was resumed with another
                global batch size, it counts batches of the present size.

        Raises:
            ConfigError: the loader is live, or only a sampler of user code knows the order.
            IndexError: the epoch has fewer steps, or no good sample in this one.
            SampleError: a sample cannot be read, and ``on_error="raise"``.
        """
        batch: Batches = self._current().batch_at(epoch, step)
        return batch

    def show(self, path: str | Path, *, epoch: int = 0, step: int = 0, most: int = 32) -> Path:
        """Write a page that shows a step of any epoch as the network sees it, and return its path, which a notebook
        displays as the page.

        Each sample has its name, its image as decoded and after the transforms, with masks and boxes drawn, its
        targets, and the numbers that its ops drew. Colors are shown without normalization. The loader stays where it
        is, as with :meth:`at`.

        Args:
            path: ends in ``.html`` for a page, or in ``.png`` for a sheet of images and names.
            most: number of samples to show, from the front of this rank's batch.

        Raises:
            ConfigError: another kind of path, its folder cannot be created, or what :meth:`at` raises.
        """
        return provided.show(self, lambda: self._current().step_at(epoch, step), path, most)

    def plan_at(self, epoch: int, step: int) -> Plan:
        """Return the plan of any step of any epoch: its samples, their random numbers, and the ops with their numbers.

        No file is read. Takes the arguments of :meth:`at` and raises its errors, except :class:`SampleError`.
        """
        return self._followed.plan_at(epoch, step)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins next. Optional: by default epochs follow each other."""
        self._session.set_epoch(epoch)

    _announced = False

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Read by Accelerate's ``prepare()`` before it builds a torch loader. It then iterates over this one instead.

        Accelerate is told which batch is the last one.
        """
        stays = stays_as_it_is(self._session)
        if stays != self._announced:
            self._announced = stays
        return stays

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """Set by Accelerate, too."""

    @property
    def total_batch_size(self) -> int | None:
        """Samples in a batch of all ranks, as scripts ask a loader that Accelerate has prepared."""
        arguments = self._session.arguments
        batch_size = self.batch_size or getattr(self.batch_sampler, "batch_size", None)
        return arguments.global_batch_size or (batch_size and batch_size * self.shard.world_size)

    @property
    def total_dataset_length(self) -> int:
        """Samples of all ranks, as Accelerate's loaders have it."""
        return len(self.dataset)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader: a small dict of integers and short texts, independent of the number of
        ranks.

        Counts delivered samples, not those read ahead. See :class:`gpupipe.loader.state.State` for the ends of an
        epoch.
        """
        return self._followed.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the saved loader stood. Costs nothing but the next batch.

        The next ``iter()`` yields the rest of the saved epoch, with the same images. A prior ``set_epoch`` with that
        epoch changes nothing; with another epoch it starts that one from its beginning.

        The state may come from another number of ranks or batch size: the epoch continues after the samples that were
        delivered, and a warning is issued if the global batch size differs. All ranks load the same state, saved by any
        rank.

        Raises :class:`StateError` with both values if the state belongs to another dataset, pipeline or order.
        """
        self._followed.load(state)

    def reshard(self, shard: Shard) -> None:
        """Continue as another part of the global batches, because processes have joined or left.

        Call it between steps, on every process and at the same sample; ``load_state_dict`` brings new processes there.
        Iterators that have begun end: the next ``iter()`` yields the rest of the epoch. With ``global_batch_size`` the
        batches stay the same; otherwise a warning says that they change.

        Raises :class:`ConfigError` if a sampler of the script divides the samples.
        """
        session = with_arguments(self._current(), shard=shard)
        object.__setattr__(self, "_DataLoader__initialized", False)
        self._show(session.arguments, session)

    def __getstate__(self) -> dict[str, Any]:
        """State and arguments of the loader. A copy starts its own engine, and its first epoch is the one that would
        begin here next."""
        session = self._followed
        own = {k: v for k, v in self.__dict__.items() if k not in ("_session", "sampler", "batch_sampler")}
        # A loader that has drawn no seed has no position either: a copy draws its own.
        position = session.state(next_epoch=True) if session.has_begun else None
        return {"arguments": session.arguments, "position": position, "attributes": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["attributes"])
        self.__dict__["_DataLoader__initialized"] = False
        self.__dict__.pop("_dataset_kind")
        self._show(state["arguments"], session_of(state["arguments"]))
        if state["position"] is not None:
            self._session.load(state["position"])

    # ---- report

    def report(self, *, all_ranks: bool = False) -> BadSampleReport:
        """Return the bad samples so far. ``.samples`` is a list of (index, path, kind, reason).

        ``.remarks`` are notes on how the work was done: what DALI failed on.

        Args:
            all_ranks: with the bad samples of all ranks of the default process group. All ranks must call it.
        """
        report = self._session.report
        report.remarks = self._session.remarks()
        return BadSampleReport.merged(gathered(report, self.shard)) if all_ranks else report

    def stats(self, *, all_ranks: bool = False) -> Stats:
        """Return counts since the loader was made, the speed, the share of waiting, and the bottleneck.

        :class:`~gpupipe.loader.stats.Stats` prints in three lines, and is a dictionary of JSON values whose items are
        attributes too. ``bottleneck`` is ``None`` at first, and then names the ``stage`` that limits the
        speed (``"storage"``, ``"decoding"``, ``"transforms"``, ``"user code"``, ``"hand-over"``, ``"model"``, or
        ``"nothing"`` if none stands out), its ``share`` of the time, ``why``, and the ``next_step``. It is reliable
        after some seconds. ``images`` counts those that the script's own code opened, and names the lines that looked
        at them. Two loaders that are used in turns within one loop count each other's stages.

        Args:
            all_ranks: sums over all ranks of the default process group, except for ``epochs``. All ranks must call it.
        """
        stats = self._session.stats
        counts = Counts.total(gathered(stats, self.shard)) if all_ranks else stats
        return counts.shown(self._session.work, self._session.images)

    def __repr__(self) -> str:
        return "\n".join([f"{type(self).__name__}(", *(indent(line, "  ") for line in self._described()), ")"])

    def _repr_html_(self) -> str:
        what, *lines = self._described()
        return described(f"{type(self).__name__}: {what}", lines)

    def _described(self) -> list[str]:
        session, shard = self._session, self.shard
        part = "" if shard.world_size == 1 else f", rank {shard.rank} of {shard.world_size}"
        try:
            count = f"{len(session):,} batches"
        except TypeError:
            count = "batches"
        return [f"{count} of {self.batch_size} from {session.source}{part}", *session.describe()]

    # ---- end

    def close(self) -> None:
        """Stop every thread and process and free the memory; iterators end. A later ``iter()`` starts them again."""
        self._session.close()

    def __enter__(self) -> DataLoader[Batches]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
