"""The orders of all epochs of a loader, and orders made of other orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..rng import mix64
from ..types import Shard
from .buckets import Buckets
from .order import Order

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

Schedule = Callable[[int, int], Order]
"""Returns the order of an epoch from (seed, epoch)."""


class Settings(Protocol):
    """Settings that a script can change during training. A loader's state contains them."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class SamplerPlan:
    """What a loader needs to know about a sampler at the beginning of an epoch. Each epoch has its own."""

    name: str
    """Description of the sampler, which a saved state contains."""
    length: int | None
    """Samples of an epoch over all ranks; ``None`` if they have no end."""
    order: Callable[[int, int], Order] = field(repr=False)
    """Returns the samples of an epoch over all ranks, from (seed, epoch)."""
    shard: Shard | None = None
    """Rank and number of ranks of a DistributedSampler."""
    generator: Any = None
    """Generator that the sampler draws from, if it has its own."""
    owner: Any = field(default=None, repr=False)
    """The sampler, if an epoch can be set on it."""
    ahead: Callable[[int, int, int], Order] | None = field(default=None, repr=False)
    """Returns the samples of an epoch that has not begun, from (seed, epoch, number of epochs by which the sampler's
    own epoch will have advanced); ``None`` if ``order`` runs user code, which would notice."""
    settings: Settings | None = field(default=None, repr=False)
    """What the script can change about the order during training."""
    buckets: Buckets | None = field(default=None, repr=False)
    """Division of the order into batches, if batches are not equal parts of it."""

    @classmethod
    def of(
        cls,
        name: str,
        length: int,
        order: Callable[[int, int], Order],
        generator: Any = None,
        settings: Settings | None = None,
        buckets: Buckets | None = None,
    ) -> SamplerPlan:
        """Make a plan from an order that is a function of seed and epoch and runs no user code."""
        ahead = lambda seed, epoch, _: order(seed, epoch)  # noqa: E731
        return cls(name, length, order, generator=generator, ahead=ahead, settings=settings, buckets=buckets)

    def epoch_of(self) -> int | None:
        """Return the epoch that is set on the sampler; ``None`` if it has none."""
        return None if self.owner is None else int(self.owner.epoch)

    def set_epoch(self, epoch: int) -> bool:
        """Set the sampler's epoch. Return ``False`` if it has none."""
        if self.owner is not None:
            self.owner.set_epoch(epoch)
        return self.owner is not None


ENDLESS = 1 << 50
"""Length of an epoch without end."""
_PASS = np.uint64(0x9E3779B97F4A7C15)


class Without:
    """Order of an epoch that leaves out some samples of a dataset.

    Args:
        schedule: order of the other samples' numbers, which count only them, from (seed, epoch).
        excluded: i64[k], ascending and different.
    """

    def __init__(self, schedule: Schedule, excluded: I64, seed: int, epoch: int):
        self._counted = schedule(seed, epoch)
        # excluded[j] - j other samples come before excluded[j].
        self._others_before = excluded - np.arange(len(excluded))

    def __len__(self) -> int:
        return len(self._counted)

    def at(self, positions: I64) -> tuple[I64, U64]:
        counted, keys = self._counted.at(positions)
        # An excluded sample lies before this one if at most `counted` of the others lie before it.
        excluded_before = np.searchsorted(self._others_before, counted, "right")
        # A key has the index in its low bits, and changes with it.
        return counted + excluded_before, keys + excluded_before.astype(np.uint64)


class Stretched:
    """Order of an epoch of ``length`` samples, whatever the length of the dataset is.

    Epochs are consecutive parts of an endless sequence of passes over the dataset: each pass has every sample once, in
    an order of its own, and epoch ``e`` begins where ``e - 1`` ended. A sample that occurs twice in an epoch draws
    other numbers each time.

    Args:
        schedule: order of a pass from (seed, number of the pass).
        length: samples of an epoch over all ranks.
    """

    def __init__(self, schedule: Schedule, length: int, seed: int, epoch: int):
        self._schedule, self._seed, self._length = schedule, seed, length
        self._n = len(schedule(seed, 0))
        self._first, self._skipped = divmod(epoch * length, self._n)
        self._last: tuple[int, Order] | None = None

    def __len__(self) -> int:
        return self._length

    def at(self, positions: I64) -> tuple[I64, U64]:
        turn, inside = np.divmod(positions + self._skipped, self._n)
        indices, keys = np.empty(len(positions), np.int64), np.empty(len(positions), np.uint64)
        for k in np.unique(turn).tolist():
            mine = turn == k
            indices[mine], found = self._of(k).at(inside[mine])
            # A sample of the first pass may come again in a later one.
            keys[mine] = found if k == 0 else mix64(found + mix64(np.array([k], np.uint64) * _PASS))
        return indices, keys

    def _of(self, k: int) -> Order:
        """Return the order of the epoch's pass ``k``. Orders by blocks take a while to make."""
        last = self._last
        if last is None or last[0] != k:
            last = self._last = k, self._schedule(self._seed, self._first + k)
        return last[1]
