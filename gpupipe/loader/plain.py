"""A session on torch's DataLoader, which runs what gpupipe cannot translate."""

from __future__ import annotations

import base64
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DistributedSampler, IterableDataset

from ..datasets.stream import Stream
from ..engines.staging import map_tensors
from ..errors import ConfigError, StateError
from ..interop.classes import exact_name, shown
from ..interop.rows import Rows
from ..interop.samplers import length_of
from ..planning.blocks import BlockShuffle
from ..reasons import Reason
from ..script_warnings import warn
from ..types import Shard
from .agreement import Agreement, RankSetting
from .arguments import Arguments, Replaced
from .bottleneck import Meter, Work
from .resolve import device_of
from .row_batches import RowBatches
from .session import Session
from .state import checked_integer, short_repr
from .torch_loader import Loader, Remembered

_VERSION = 2
_DRAW = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
"""Samplers of torch that draw from the global generator unless they are given another one."""


@dataclass(frozen=True)
class _EpochPosition:
    """Position in an epoch of torch's DataLoader, and what is needed to repeat its order."""

    epoch: int = 0
    delivered: int = 0
    """Batches delivered."""
    seed: int = -1
    """Seed of the permutation; -1 if there is none, or if the loader's generator made it."""
    rng: str = ""
    """State of the order's generator before the epoch, in base 64; empty if only the global one is used."""
    global_batch: int = 0
    """Samples in a batch of all ranks; 0 if batch sizes vary."""


class _Raising:
    """Iterator over batches, some of which may be exceptions. It continues after them, as torch's does."""

    def __init__(self, results: Iterator[tuple[Any, Exception | None]], batches: Any):
        self._results = results
        self._batches = batches

    def __iter__(self) -> _Raising:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        batch, error = next(self._results)
        if error is not None:
            raise error
        return batch


class PlainSession(Session):
    """Run dataset, transforms, samplers and collate function unchanged in torch's own DataLoader.

    Batches are bit-identical to torch's under the same ``torch.manual_seed``. Their tensors are then moved to the
    device.

    Args:
        reasons: why gpupipe's engines cannot run it.
        rows: arrays of the dataset, or of one that it reads, if its samples are rows of them.

    Raises:
        ConfigError: an option of gpupipe that torch's DataLoader does not have.
        ValueError: torch rejects an argument.
    """

    def __init__(self, arguments: Arguments, reasons: tuple[Reason, ...], rows: Rows | None = None):
        super().__init__(arguments)
        self._reasons = reasons
        for name, value in arguments.not_in_torch.items():
            raise ConfigError(
                f"{name}={short_repr(value)}: torch's own loader does not have this option, but has to run this "
                f"dataset, because {'; '.join(why.text for why in reasons)}. Leave it out, or give the files to "
                "gpupipe.datasets"
            )
        self.device = device_of(arguments.device)
        self.shard = arguments.shard or Shard()
        self._agreement = Agreement(self.shard, same_order=True)
        self._remembered: Remembered | None = None
        self.loader = self._make(self._per_rank(arguments), rows)
        self.batch_size, self.drop_last = self.loader.batch_size, self.loader.drop_last
        self.sampler, self.batch_sampler = self.loader.sampler, self.loader.batch_sampler
        if arguments.replaced is not None:
            self.take_batches(arguments.replaced.batches)
        self.prefetch_factor = self.loader.prefetch_factor
        self.next_epoch = 0
        self._place = _EpochPosition()
        self._resume: _EpochPosition | None = None
        """Start of the next epoch, if a state was loaded."""
        self._rng = ""
        """Generator state of the epoch that ``iter()`` began last, until it ends."""

    def _per_rank(self, a: Arguments) -> Arguments:
        """Return the arguments with this rank's batch size."""
        if a.global_batch_size is None:
            return a
        if a.batch_sampler is not None:
            raise ConfigError("batch_sampler and global_batch_size exclude each other; leave one of them out")
        ranks = a.sampler.num_replicas if isinstance(a.sampler, DistributedSampler) else self.shard.world_size
        share, rest = divmod(a.global_batch_size, ranks)
        if rest or not share:
            raise ConfigError(
                f"global_batch_size={a.global_batch_size} on {ranks} ranks: torch's own loader, which has to run this "
                "dataset, gives every rank equally many samples; use a multiple of the number of ranks"
            )
        return a.changed(batch_size=share, global_batch_size=None)

    def _make(self, a: Arguments, rows: Rows | None) -> Loader:
        assert not isinstance(a.shuffle, (str, BlockShuffle))
        sampler, shuffle, generator = a.sampler, a.shuffle, a.generator
        dataset, collate_fn = RowBatches.of(a, rows)
        if a.seed is not None:
            generator = torch.Generator()
            generator.manual_seed(a.seed)
        self._generator = generator
        if isinstance(dataset, IterableDataset):
            dataset = self._stream(dataset, shuffle)
        elif self.shard.world_size > 1:
            if sampler is not None or a.batch_sampler is not None:
                raise ConfigError(
                    f"shard={self.shard} cannot divide the samples of your own sampler: let the sampler divide "
                    "them among the ranks"
                )
            sampler = DistributedSampler(
                a.dataset, self.shard.world_size, self.shard.rank, bool(shuffle), a.seed or 0, a.drop_last
            )
            shuffle = None
        elif shuffle and generator is None and length_of(dataset):
            # A state contains any other generator, but of the global one only the seed that it gave the order.
            self._remembered = Remembered(a.dataset)
            sampler, shuffle = self._remembered, None
        return Loader(
            dataset,
            a.batch_size,
            shuffle,
            sampler,
            a.batch_sampler,
            a.num_workers,
            collate_fn,
            a.pin_memory or self.device.type == "cuda",
            a.drop_last,
            a.timeout,
            a.worker_init_fn,
            a.multiprocessing_context,
            generator,
            prefetch_factor=a.prefetch_factor,
            persistent_workers=bool(a.persistent_workers),
            pin_memory_device=a.pin_memory_device,
            in_order=a.in_order,
        )

    def _stream(self, dataset: IterableDataset[Any], shuffle: bool | None) -> IterableDataset[Any]:
        """Return this rank's part of a stream."""
        if shuffle and isinstance(dataset, Stream):
            raise ConfigError(
                "shuffle=True cannot shuffle a Stream: use Stream(samples, buffer_size=1000), and leave shuffle out"
            )
        if self.shard.world_size == 1:
            return dataset
        if not isinstance(dataset, Stream):
            raise ConfigError(
                f"shard={self.shard} with the stream {shown(dataset)}: use gpupipe.datasets.Stream(stream), which "
                "divides it among ranks and workers, or let the stream do that itself and leave shard out"
            )
        return dataset.part(self.shard)

    @property
    def seed(self) -> int:
        """Seed of the last order, or of the global generator, from which torch's loader draws."""
        known = self._remembered.seed if self._remembered is not None else None
        return torch.initial_seed() if known is None else known

    @property
    def has_begun(self) -> bool:
        return self.next_epoch > 0 or self._resume is not None

    def refreshed(self) -> PlainSession:
        return self  # torch's loader reads everything when an epoch begins

    def __len__(self) -> int:
        return len(self.loader)

    def take_batches(self, batches: Any) -> None:
        object.__setattr__(self.loader, "batch_sampler", batches)
        self.batch_sampler, self.arguments = batches, self.arguments.changed(replaced=Replaced(batches))

    # ---- an epoch

    def iterate(self) -> Iterator[Any]:
        place = self._resume or _EpochPosition(self.next_epoch)
        stream = isinstance(self.loader.dataset, IterableDataset)
        if isinstance(self.loader.dataset, Stream):
            self.loader.dataset.set_epoch(place.epoch)
        elif self.shard.world_size > 1:
            assert isinstance(self.sampler, DistributedSampler)
            self.sampler.set_epoch(place.epoch)
        if self._remembered is not None:
            self._remembered.again, self._remembered.passes = None if place.seed < 0 else place.seed, 0
        generator = self._draws_from
        if generator is not None and place.rng:
            generator.set_state(torch.frombuffer(bytearray(base64.b64decode(place.rng)), dtype=torch.uint8))
        self._rng = _state_of(generator)
        place = replace(place, rng=self._rng)
        # A stream has to be read from its start; elsewhere the indices of delivered batches are skipped.
        self.loader.skip = 0 if stream else place.delivered
        # As in torch, here and not at the first batch: workers start, and a seed is drawn for them.
        batches = iter(self.loader)
        return _Raising(self._batches(batches, place, place.delivered if stream else 0), batches)

    def _batches(
        self, batches: Iterator[Any], place: _EpochPosition, skip: int
    ) -> Iterator[tuple[Any, Exception | None]]:
        """Yield each batch, or the exception that user code raised instead."""
        if self.shard.world_size > 1:
            self._agreement.check(self._settings(place))
        deque(islice(batches, skip), maxlen=0)
        left, begun, meter = time.perf_counter(), False, Meter(self.stats.measured)
        while True:
            entered = time.perf_counter()
            self.stats.work_seconds += entered - left
            batch = error = None
            meter.enter()
            try:
                # No batch is this session, so it marks the end.
                batch = next(batches, self)
            except Exception as e:
                error = e
            finally:
                meter.leave()
            left = time.perf_counter()
            self.stats.wait_seconds += left - entered
            if batch is self:
                break
            if not begun:  # the epoch begins with its first batch
                begun, self._resume, self.next_epoch = True, None, place.epoch + 1
            # Not replace(), which is slow beside a small batch.
            place = _EpochPosition(place.epoch, place.delivered + 1, self._order_seed, place.rng, place.global_batch)
            self._place = place
            if error is not None:
                # A generator that raises has ended, but torch's iterator continues after an error.
                yield None, error
                continue
            self.valid = count_samples(batch)
            self.stats.batches += 1
            self.stats.samples += self.valid
            yield self._on_device(batch), None
        if not begun:  # no batch was left, or there is none at all
            self._resume, self.next_epoch = None, place.epoch + 1
        self.stats.epochs += 1
        self._place, self._rng = _EpochPosition(), ""

    def _settings(self, place: _EpochPosition) -> dict[str, RankSetting]:
        """Settings that must be equal on all ranks."""
        a = self.arguments
        order, samples = "shuffled" if a.shuffle else "sequential", length_of(a.dataset)
        numbers = {
            "seed": a.seed or 0,
            "epoch": place.epoch,
            "delivered": place.delivered,
            "batch_size": self.batch_size,
            "drop_last": int(a.drop_last),
        }
        return {
            "engine": RankSetting("torch", "torch's own loader"),
            "order": RankSetting(order, order),
            "dataset": RankSetting(samples, f"{shown(a.dataset)}, {samples} samples"),
            **{name: RankSetting(value, repr(value)) for name, value in numbers.items()},
        }

    @property
    def _order_seed(self) -> int:
        known = self._remembered
        # After several permutations, the last seed does not repeat the order of the whole epoch.
        return -1 if known is None or known.seed is None or known.passes > 1 else known.seed

    def _on_device(self, batch: Any) -> Any:
        if self.device.type == "cpu":
            return batch
        return map_tensors(lambda tensor: tensor.to(self.device, non_blocking=True), batch)

    # ---- where it stands

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.next_epoch:
            self._resume = None
        self.next_epoch = epoch
        owners: list[Any] = [self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None)]
        for owner in owners:
            if callable(getattr(owner, "set_epoch", None)):
                owner.set_epoch(epoch)
                return

    def state(self, *, next_epoch: bool = False) -> dict[str, Any]:
        """Return the number of delivered batches and what is needed to repeat the order.

        It does not contain the random draws of user code for later batches, nor the position in a stream, which is read
        again from its start.
        """
        next_one = self._resume or _EpochPosition(self.next_epoch, rng=self._rng or _state_of(self._draws_from))
        is_running = self._place.delivered and not next_epoch
        place = replace(self._place if is_running else next_one, global_batch=self._global_batch)
        return {"version": _VERSION, "loader": "torch", **asdict(place)}

    def load(self, state: dict[str, Any]) -> None:
        names = {"version", "loader", *asdict(_EpochPosition())}
        if not isinstance(state, Mapping) or set(state) != names or state["version"] != _VERSION:
            why = "; ".join(reason.text for reason in self.reasons)
            raise StateError(
                f"this is not a state of torch's own loader, which runs this dataset because {why}. "
                "A loader on another engine saved it: start a new epoch instead"
            )
        place = _EpochPosition(**{name: state[name] for name in asdict(_EpochPosition())})
        for name, least, bits in (("epoch", 0, 63), ("delivered", 0, 63), ("seed", -1, 64), ("global_batch", 0, 63)):
            checked_integer(name, getattr(place, name), least, bits)
        _check_rng(place.rng)
        batches = None if isinstance(self.loader.dataset, IterableDataset) else length_of(self.loader)
        if batches is not None and place.delivered > batches:
            raise StateError(f"this state is {place.delivered} batches into an epoch of {batches}; start a new epoch")
        was, now = place.global_batch, self._global_batch
        if place.delivered and was and now and was != now:
            raise StateError(
                f"this state is {place.delivered} batches of {was} samples over all ranks into an epoch, and this "
                f"loader has {now}: torch's own loader, which runs this dataset, can continue only with equal "
                "numbers; use "
                f"batch_size={max(was // self.shard.world_size, 1)} on {self.shard.world_size} rank(s), or start a new "
                "epoch"
            )
        self._resume, self._place, self.next_epoch, self._rng = place, _EpochPosition(), place.epoch, ""
        if place.delivered and (self._draws_globally or (self._remembered is not None and place.seed < 0)):
            text = (
                f"this state is {place.delivered} batches into an epoch whose order was drawn from torch's global "
                "generator, which is not in the state"
            )
            warn(
                "the rest of the epoch will have other samples than those that remained", [Reason(text, "global-order")]
            )

    @property
    def _inner(self) -> Any:
        """The sampler of single indices."""
        return getattr(self.batch_sampler, "sampler", self.sampler)

    @property
    def _draws_from(self) -> torch.Generator | None:
        """Generator of the order; ``None`` for the global one, or if there is none."""
        own = getattr(self._inner, "generator", None)
        if self._inner is self._remembered or self._draws_globally:
            return None
        return own if isinstance(own, torch.Generator) else self._generator

    @property
    def _draws_globally(self) -> bool:
        """Return whether the order is lost unless the state contains that of the global generator."""
        return exact_name(self._inner, "torch.utils.data") in _DRAW and self._inner.generator is None

    @property
    def _global_batch(self) -> int:
        sampler = getattr(self.batch_sampler, "sampler", None)
        ranks = sampler.num_replicas if isinstance(sampler, DistributedSampler) else 1
        return (self.batch_size or 0) * ranks

    def close(self) -> None:
        iterator, self.loader._iterator = self.loader._iterator, None
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()

    @property
    def source(self) -> str:
        return shown(self.loader.dataset)

    @property
    def work(self) -> Work:
        return Work(self.loader.num_workers, self.batch_size or 1, plain=True)

    @property
    def engine(self) -> tuple[str, str]:
        why = "; ".join(reason.text for reason in self.reasons)
        return "torch", f"torch's own loader as it is, because {why}"

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return self._reasons

    def describe(self) -> list[str]:
        name, why = self.engine
        return [
            f"order: {self._order()}; last batch {'dropped' if self.drop_last else 'kept'}",
            f"engine: {name} ({why}) on {self.device}",
        ]

    def _order(self) -> str:
        """Describe the guarantees on the order."""
        dataset, workers = self.loader.dataset, self.loader.num_workers
        if not isinstance(dataset, IterableDataset):
            return type(self.sampler).__name__.lstrip("_") if self._remembered is None else "shuffled"
        if isinstance(dataset, Stream):
            order = dataset.promise()
        else:
            copies = f"; each of {workers} workers reads a copy and must take its own part"
            order = "that of the stream" + (copies if workers > 1 else "")
        return f"{order}; a resumed epoch reads it again up to the saved position"


def count_samples(batch: Any) -> int:
    """Return the number of samples in a batch, as far as its structure shows it."""
    while isinstance(batch, (list, tuple, Mapping)) and batch:
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch) if isinstance(batch, (Tensor, np.ndarray)) and batch.ndim else 1


def _state_of(generator: torch.Generator | None) -> str:
    return "" if generator is None else base64.b64encode(generator.get_state().numpy().tobytes()).decode()


def _check_rng(rng: Any) -> None:
    """Raise :class:`StateError` unless a generator accepts the state."""
    try:
        if rng != "":
            torch.Generator().set_state(torch.frombuffer(bytearray(base64.b64decode(rng)), dtype=torch.uint8))
    except (TypeError, ValueError, RuntimeError) as e:
        raise StateError(
            f"a loader's state has rng={short_repr(rng)}, which no generator accepts ({e}); "
            "load what state_dict() returned"
        ) from None
