"""Where a live session stands in its epochs: by torch's generators, or, with a seed, by numbers."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import StateError
from ..live.asked import Asked, States
from ..rng import stream
from .batching import Batching
from .state import Cursor, Position, State, checked_integer, short_repr

_VERSION = 1


@dataclass(frozen=True)
class Tag:
    """What a batch of a seeded order is."""

    valid: int
    consumed: int


class LiveOrder(ABC):
    """Order and random numbers of a live session, and its position."""

    next_epoch: int

    @property
    @abstractmethod
    def seed(self) -> int:
        """Seed of the order."""

    @property
    @abstractmethod
    def has_begun(self) -> bool:
        """Whether there is a state to save."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None: ...

    @abstractmethod
    def state(self, next_epoch: bool) -> dict[str, Any]: ...

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None: ...

    @abstractmethod
    def describe(self) -> str: ...


# ---- torch's own numbers


@dataclass(frozen=True)
class _Place:
    """A position in an epoch.

    Attributes:
        epoch: number of the epoch.
        delivered: batches delivered.
        begin: states of all generators when the epoch began; ``None`` before its first batch.
    """

    epoch: int = 0
    delivered: int = 0
    begin: dict[str, Any] | None = None


class TorchsOrder(LiveOrder):
    """The numbers that torch's DataLoader would draw.

    A state holds the states of the generators at the beginning of the epoch. The delivered batches are made once more
    when it is resumed, without pixels.

    Args:
        samplers: objects that may have a generator or an epoch, the first one first.
        generator: the loader's.
        name: of the samples, to recognize a state of others.
    """

    def __init__(self, samplers: list[Any], generator: torch.Generator | None, name: str):
        self._samplers, self._name = samplers, name
        found = [generator, *(getattr(sampler, "generator", None) for sampler in samplers)]
        self._generators = list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
        self.next_epoch = 0
        self.place = _Place()
        """Where the running epoch stands; without ``begin`` if none runs."""
        self._resume: tuple[_Place, dict[str, Any]] | None = None

    @property
    def seed(self) -> int:
        return torch.initial_seed()

    @property
    def has_begun(self) -> bool:
        return self.next_epoch > 0 or self._resume is not None

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.next_epoch:
            self._resume = None
        self.next_epoch = epoch
        for owner in self._samplers:
            if callable(getattr(owner, "set_epoch", None)):
                owner.set_epoch(epoch)
                return

    def start(self) -> tuple[_Place, dict[str, Any] | None]:
        """Set the generators for the epoch that ``iter()`` begins. Return its place, with the number of batches to be
        made once more, and the states of the generators for after them; ``None`` to leave them alone."""
        if self._resume is None:
            return _Place(self.next_epoch, 0, self._states()), None
        place, now = self._resume
        if place.begin is None:
            self._restore(now)
            return _Place(place.epoch, 0, self._states()), None
        self._restore(place.begin)
        return place, now

    def restore(self, states: dict[str, Any] | None) -> None:
        """Set the generators after the delivered batches were made once more."""
        if states is not None:
            self._restore(states)

    def at(self, place: _Place) -> None:
        """Note that an epoch has delivered a batch."""
        if self.place.begin is not place.begin:
            self.next_epoch, self._resume = place.epoch + 1, None
        self.place = place

    def ended(self, place: _Place) -> None:
        """Note that an epoch has ended."""
        self.next_epoch, self._resume, self.place = place.epoch + 1, None, _Place()

    def state(self, next_epoch: bool) -> dict[str, Any]:
        running = self.place if self.place.begin is not None and not next_epoch else None
        place = running or (self._resume[0] if self._resume is not None else _Place(self.next_epoch))
        now = self._resume[1] if running is None and self._resume is not None else self._states()
        return {
            "version": _VERSION,
            "loader": "live",
            "dataset": self._name,
            "epoch": place.epoch,
            "delivered": place.delivered,
            "begin": place.begin,
            "now": now,
        }

    def load(self, state: dict[str, Any]) -> None:
        names = {"version", "loader", "dataset", "epoch", "delivered", "begin", "now"}
        if not isinstance(state, Mapping) or set(state) != names or state["version"] != _VERSION:
            raise StateError(
                "this is not a state of a loader that runs the script's own Dataset without seed=. Another kind of "
                "loader saved it, or this one had a seed then: make the loader as before, or start a new epoch"
            )
        if state["dataset"] != self._name:
            raise StateError(
                f"this state belongs to another dataset: saved {short_repr(state['dataset'])}, this loader has "
                f"{self._name!r}; use the same data, or start a new epoch with set_epoch()"
            )
        for name in ("epoch", "delivered"):
            checked_integer(name, state[name])
        for name in ("begin", "now"):
            if state[name] is not None or name == "now":
                _check(state[name], len(self._generators))
        self._resume = _Place(state["epoch"], state["delivered"], state["begin"]), state["now"]
        self.place, self.next_epoch = _Place(), state["epoch"]

    def describe(self) -> str:
        sampler = next((s for s in self._samplers if s is not None), None)
        return f"{type(sampler).__name__.lstrip('_')}, with torch's random numbers"

    def _states(self) -> dict[str, Any]:
        states = States.now()
        version, words, gauss = states.python
        kind, keys, at, has_gauss, cached = states.numpy
        return {
            "python": [version, _text(np.array(words, np.uint32).tobytes()), gauss],
            "numpy": [kind, _text(keys.tobytes()), int(at), int(has_gauss), float(cached)],
            "torch": [_text(states.torch), *(_text(g.get_state().numpy().tobytes()) for g in self._generators)],
        }

    def _restore(self, saved: dict[str, Any]) -> None:
        version, words, gauss = saved["python"]
        kind, keys, at, has_gauss, cached = saved["numpy"]
        first, *others = (_bytes(text) for text in saved["torch"])
        python = version, tuple(np.frombuffer(_bytes(words), np.uint32).tolist()), gauss
        numpy = kind, np.frombuffer(_bytes(keys), np.uint32), at, has_gauss, cached
        States(python, numpy, first).restore()
        for generator, state in zip(self._generators, others, strict=True):
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _check(saved: Any, generators: int) -> None:
    """Raise :class:`StateError` unless these can be states of generators."""
    try:
        sizes = len(_bytes(saved["python"][1])), len(_bytes(saved["numpy"][1])), len(saved["python"])
        if sizes != (2500, 2496, 3) or len(saved["torch"]) != 1 + generators or len(saved["numpy"]) != 5:
            raise ValueError("other generators")
        for text in saved["torch"]:
            torch.Generator().set_state(torch.frombuffer(bytearray(_bytes(text)), dtype=torch.uint8))
    except (KeyError, TypeError, ValueError, RuntimeError) as e:
        raise StateError(
            f"a loader's state has states of random generators that do not fit ({type(e).__name__}: {e}); load what "
            "state_dict() returned, into a loader with the same generators"
        ) from None


# ---- with a seed


class SeededOrder(LiveOrder):
    """Order and draws as functions of seed, epoch and sample, as in planned sessions."""

    def __init__(self, batching: Batching, seed: int | None, generator: Any, *, workers: bool, name: str):
        self.position = Position(batching, seed, generator, workers=workers)
        self._name = name

    @property
    def batching(self) -> Batching:
        return self.position.batching

    @property
    def next_epoch(self) -> int:  # type: ignore[override]
        return self.position.next_epoch

    @property
    def seed(self) -> int:
        return self.position.seed

    @property
    def has_begun(self) -> bool:
        return self.position.drawn is not None or self.position.next_epoch > 0

    def set_epoch(self, epoch: int) -> None:
        self.position.set_epoch(epoch)

    def begin(self) -> tuple[Cursor, Iterator[Asked]]:
        """Begin the next epoch. Return its cursor, and what is asked of the dataset."""
        order, cursor = self.position.begin()
        return cursor, self._asked(order, cursor.epoch, cursor.delivered)

    def _asked(self, order: Any, epoch: int, delivered: int) -> Iterator[Asked]:
        batches, step = self.batching.batches(order, delivered), 0
        while batches.has(step):
            positions, valid, consumed = batches.take(step)
            indices, keys = order.at(positions)
            seeds = [stream(self.seed, epoch, "opaque", key) for key in keys.tolist()]
            yield Asked(indices.tolist(), seeds, tag=Tag(valid, consumed))
            step += 1

    def state(self, next_epoch: bool) -> dict[str, Any]:
        return self._state(next_epoch).to_dict()

    def _state(self, next_epoch: bool = False) -> State:
        return self.position.state(next_epoch, dataset=self._name, pipeline="the script's own code")

    def load(self, state: dict[str, Any]) -> None:
        found, now = State.from_dict(state), self._state()
        found.check(now, None if self.batching.sampler.ahead is None else self.batching.sampler.length)
        self.position.load(found)

    def describe(self) -> str:
        seed = "drawn at the first batch" if self.position.drawn is None else self.position.drawn
        return f"{self.batching.sampler.name}, seed {seed}"
