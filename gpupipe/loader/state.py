"""Position of a loader in its epochs, and its representation as a few numbers that can be saved and loaded anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

import torch

from ..errors import ConfigError, StateError
from ..planning.order import Batched, Order
from .agreement import Agreement, draw, is_fresh
from .batching import Batching

VERSION = 3


_LEAST = {"global_batch": 1, "world_size": 1, "sampler_epoch": -1}
_BITS = {"seed": 1024}
"""Bits of fields that may be large: every seed that DataLoader accepts."""
_SAVED = "load what state_dict() returned"
_OPTIONAL = {"sampler", "transforms"}
_SHOWN = 1024
"""Bytes of a pipeline that a state keeps, to say what differs."""


def short_repr(value: Any) -> str:
    """Short ``repr`` for an error message."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def checked_integer(name: str, value: Any, least: int = 0, bits: int = 63) -> None:
    """Raise :class:`StateError` unless a field can have this value."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise StateError(f"a loader's state has {name}={short_repr(value)}, which must be int; {_SAVED}")
    if value < least:
        rule = "must not be negative" if least == 0 else f"must be at least {least}"
        raise StateError(f"a loader's state has {name}={value}, which {rule}; {_SAVED}")
    if value >= 1 << bits:
        raise StateError(f"a loader's state has {name}={short_repr(value)}, which must be below 2**{bits}; {_SAVED}")


@dataclass(frozen=True)
class State:
    """The position of a loader and what it belongs to.

    ``epoch`` and ``delivered`` say what comes next: sample number ``delivered`` (over all ranks) of that epoch. After
    the last batch, and before the iterator has ended, ``delivered`` equals the length of the epoch. Once it has ended,
    the state is sample 0 of the next epoch. So a loader that loads it continues exactly as the saved one would have.
    """

    version: int
    seed: int
    epoch: int
    delivered: int
    global_batch: int
    """Samples in a batch of all ranks."""
    world_size: int
    drop_last: int
    dataset: str
    pipeline: str
    order: str
    sampler_epoch: int = -1
    """Epoch that was set on the script's own sampler; -1 if it has none."""
    sampler: Mapping[str, Any] = field(default_factory=dict)
    """What the script changed about the order, such as weights; only for orders that can change."""
    transforms: str = ""
    """The pipeline as it prints, to say what differs; cut to 1 kB."""

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value or name not in _OPTIONAL}

    @classmethod
    def from_dict(cls, values: Any) -> State:
        """Return a checked state. Raises :class:`StateError` that says what is wrong with ``values``."""
        if not isinstance(values, Mapping):
            raise StateError(f"a loader's state is a dict as state_dict() returns it, not {type(values).__name__}")
        if "version" not in values:
            within = [key for key, value in values.items() if isinstance(value, Mapping) and "sampler_epoch" in value]
            hint = f"; pass its {within[0]!r}, which is one" if within else f"; {_SAVED}"
            raise StateError(f"this is no loader's state, but a dict with the keys {short_repr([*values])}{hint}")
        version = values.get("version")
        if type(version) is not int or version != VERSION:
            raise StateError(
                f"this state has version {short_repr(version)}; this gpupipe reads version {VERSION}; {_SAVED}"
            )
        names = {f.name for f in fields(cls)} - _OPTIONAL
        if set(values) - _OPTIONAL != names:
            missing, extra = sorted(names - set(values)), sorted(str(k) for k in set(values) - names - _OPTIONAL)
            raise StateError(f"this is not a loader's state: it lacks {missing} and has {extra} more; {_SAVED}")
        sampler = values.get("sampler", {})
        if not isinstance(sampler, Mapping):
            raise StateError(f"a loader's state has sampler={short_repr(sampler)}, which must be a dict; {_SAVED}")
        for f in fields(cls):
            if f.name == "sampler":
                continue
            value = values.get(f.name, f.default)
            if f.type != "str":
                checked_integer(f.name, value, _LEAST.get(f.name, 0), _BITS.get(f.name, 63))
            elif not isinstance(value, str):
                raise StateError(f"a loader's state has {f.name}={short_repr(value)}, which must be str; {_SAVED}")
        return cls(**values)

    def check(self, now: State, total: int | None) -> None:
        """Raise :class:`StateError` if a loader at ``now`` cannot continue from this state.

        ``total`` is the number of samples in its epochs, if known.
        """
        for name, what, advice in (
            ("dataset", "dataset", "use the same files, or start a new epoch with set_epoch()"),
            ("pipeline", "pipeline", "use the same transforms, or start a new epoch with set_epoch()"),
            ("order", "order of samples", "use the same shuffle and sampler"),
            ("drop_last", "drop_last", "use the same value"),
        ):
            was, has = getattr(self, name), getattr(now, name)
            if was != has:
                was, has = short_repr(was), short_repr(has)
                if name == "pipeline":
                    was, has = _difference(self.transforms, now.transforms) or (was, has)
                raise StateError(f"this state belongs to another {what}: saved {was}, this loader has {has}; {advice}")
        if self.sampler_epoch >= 0 > now.sampler_epoch:
            raise StateError(
                f"this state has epoch {self.sampler_epoch} of a sampler with set_epoch(), which this loader's sampler "
                "lacks; use the same sampler"
            )
        # The samples that a DistributedSampler drops at the end depend on the number of ranks.
        if total is not None and self.delivered > total + max(self.world_size, now.world_size) - 1:
            raise StateError(f"this state is {self.delivered} samples into an epoch of {total}; {_SAVED}")

    def other_batch(self, now: State) -> str | None:
        """Return a note if the state continues with another global batch size.

        Samples then come in the same order, once each, in other batches.
        """
        if self.global_batch == now.global_batch:
            return None
        return (
            f"this state was saved with batches of {self.global_batch} samples on {self.world_size} rank(s) together, "
            f"and the loader has {now.global_batch} on {now.world_size}: the epoch continues after its first "
            f"{self.delivered} samples with batches of another size, which changes the number of steps and everything "
            f"that depends on it; global_batch_size={self.global_batch} would keep it"
        )


def _difference(was: str, has: str) -> tuple[str, str] | None:
    """Return the first transforms in which two pipelines differ, or ``None`` if what is known of them is the same."""
    pairs = zip_longest(was.splitlines(), has.splitlines(), fillvalue="")
    differing = next(((a, b) for a, b in pairs if a != b), None)
    if not was or differing is None:
        return None
    first, second = (line.strip().removesuffix(",").strip(")") and line.strip().removesuffix(",") for line in differing)
    return first or "no more transforms", second or "no more transforms"


@dataclass
class Cursor:
    """Progress of an epoch."""

    epoch: int = 0
    delivered: int = 0
    """Delivered samples, over all ranks."""
    running: bool = False


class Position:
    """The next epoch of a loader, the position in it, and the progress of the epoch that gave the last batch."""

    def __init__(self, batching: Batching, seed: int | None, generator: Any = None, *, workers: bool = False):
        self.batching = batching
        self.drawn = seed
        """The seed, if it was drawn already."""
        self._draws = seed is None
        self._generator = generator
        self._workers = workers
        self.agreement = Agreement(batching.shard, same_order=batching.sampler.shard is None)
        self.next_epoch = 0
        self._resume = 0  # samples to skip at the start of next_epoch
        self._cursor = Cursor()
        self._sampler_epoch = batching.sampler.epoch_of()
        self._began_with: int | None = None
        """The sampler's epoch when our last epoch began."""
        self._moves = 1
        """Step from one sampler epoch to the next, according to the last two."""
        self._has_begun = False
        """Whether an epoch has begun with this seed."""
        self._is_placed = False
        """Whether :meth:`set_epoch` chose the next epoch."""

    @property
    def seed(self) -> int:
        """Seed of order and augmentation.

        It is drawn at first use, as in torch, from the loader's generator, the sampler's, or the global one. So every
        loader has its own seed, and ``torch.manual_seed`` reproduces them all.
        """
        if self.drawn is None:
            self.drawn = self.agreement.seed(self._source)
        return self.drawn

    @property
    def _source(self) -> Any:
        return self.batching.sampler.generator if self._generator is None else self._generator

    def _start_over(self) -> None:
        """Follow a generator that the script has seeded since the last epoch: the next epoch is the first one of
        another seed, so ``torch.manual_seed(0)`` before every evaluation repeats it, as in torch."""
        if not self._has_begun:
            return
        if self.agreement.is_alone:
            self.drawn = None
            if not self._is_placed:
                self.next_epoch = 0
        else:
            self.agreement.warn_of_seeding()

    def _order(self) -> Order:
        """Order of the epoch that begins.

        Samplers of user code see the global generator of torch, or that of the loader, in the same state as in torch.
        Its loader calls ``iter(batch_sampler)``, draws a number for its workers, calls ``iter()`` once more if there
        are workers, and then asks for the first batch.
        """
        batching = self.batching
        if batching.sampler.ahead is not None:
            return batching.order(self.seed, self.next_epoch)
        begun = None if batching.given is None else batching.order(0, self.next_epoch)
        if self.drawn is None:
            self.drawn = self.seed
        else:
            # The number that torch's loader draws for its workers in every epoch.
            torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        if begun is None or self._workers:
            begun = batching.order(self.drawn, self.next_epoch)
        return begun.read() if isinstance(begun, Batched) else begun

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins next, at its first sample. Changes nothing if that epoch comes next anyway."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ConfigError(f"set_epoch takes an integer of at least 0, not {epoch!r}")
        if epoch != self.next_epoch:
            self.next_epoch, self._resume = epoch, 0
        self._is_placed = True
        self._tell_sampler(epoch)

    def _tell_sampler(self, epoch: int) -> None:
        if self.batching.sampler.set_epoch(epoch):
            self._sampler_epoch = epoch

    def begin(self) -> tuple[Order, Cursor]:
        """Begin the next epoch. Returns its samples, and the cursor in which its iterator records its progress."""
        now = self.batching.sampler.epoch_of()
        if now is not None and self._began_with is not None:
            self._moves = now - self._began_with
        self._began_with = now
        if now is not None and now != self._sampler_epoch:
            # set_epoch() called on the script's own sampler counts as called on the loader.
            self._sampler_epoch = now
            self.set_epoch(now)
        is_seeded = self._draws and is_fresh(self._source)
        if is_seeded:
            self._start_over()
        order = self._order()
        if is_seeded and is_fresh(self._source):  # or it would look seeded again when the next epoch begins
            draw(self._source)
        self._cursor = Cursor(self.next_epoch, self._resume, running=True)
        self.next_epoch, self._resume = self.next_epoch + 1, 0
        self._has_begun, self._is_placed = True, False
        return order, self._cursor

    def ahead(self, later: int) -> tuple[Order, Cursor] | None:
        """Return what :meth:`begin` will return for the next epoch, or for one ``later`` epochs after it, if nothing is
        set before.

        Returns ``None`` if user code could notice that its sampler was asked early.
        """
        ahead = self.batching.sampler.ahead
        if ahead is None:
            return None
        epoch = self.next_epoch + later
        # If the script goes on as before, the sampler's epoch moves by the same step each time.
        return ahead(self.seed, epoch, self._moves * (later + 1)), Cursor(epoch, 0 if later else self._resume)

    def at(self, cursor: Cursor) -> None:
        """Note that the epoch of this cursor has given a batch, so that the state describes it."""
        self._cursor = cursor

    def rest(self) -> None:
        """Note that no epoch is running any more, even if one was left early."""
        self._cursor = Cursor()

    def load(self, state: State) -> None:
        """Continue from a state that :meth:`State.check` has accepted."""
        self.rest()
        self.drawn = state.seed
        self.next_epoch, self._resume = state.epoch, state.delivered
        self._has_begun = False
        if state.sampler_epoch >= 0:
            self._tell_sampler(state.sampler_epoch)
        if self.batching.sampler.settings is not None and state.sampler:
            self.batching.sampler.settings.load_state_dict(state.sampler)

    def state(self, next_epoch: bool = False, *, dataset: str, pipeline: str, transforms: str = "") -> State:
        """Return the state to be saved, with the fingerprints of its dataset and pipeline.

        Args:
            next_epoch: whether it is where the next epoch begins, even if one is running.
        """
        cursor = self._cursor
        if next_epoch or not cursor.running:
            cursor = Cursor(self.next_epoch, self._resume)
        epoch, settings = self.batching.sampler.epoch_of(), self.batching.sampler.settings
        return State(
            version=VERSION,
            seed=self.seed,
            epoch=cursor.epoch,
            delivered=cursor.delivered,
            global_batch=self.batching.global_batch,
            world_size=self.batching.shard.world_size,
            drop_last=int(self.batching.drop_last),
            dataset=dataset,
            pipeline=pipeline,
            order=self.batching.sampler.name,
            sampler_epoch=-1 if epoch is None else epoch,
            sampler={} if settings is None else settings.state_dict(),
            transforms=transforms.encode(errors="replace")[:_SHOWN].decode(errors="ignore"),
        )
