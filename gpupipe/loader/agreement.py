"""What the ranks of a training must have in common."""

from __future__ import annotations

import sys
from datetime import timedelta
from itertools import count
from typing import Any

import torch

from ..errors import EngineError
from ..types import Shard

__all__ = ["Agreement"]

_NUMBERS = count()
_PATIENCE = timedelta(minutes=10)


class Agreement:
    """How the loaders of all ranks that belong together come to the same seed.

    Ranks make their loaders in the same order, so the number of a loader among those for several ranks says which
    belong together. They talk by the key-value store of ``torch.distributed``: a collective would wait for ever if only
    some ranks look at a batch.
    """

    def __init__(self, shard: Shard, *, same_order: bool):
        self._shard = shard
        self._same_order = same_order
        self._number = next(_NUMBERS) if shard.world_size > 1 else 0

    def seed(self, generator: Any) -> int:
        """A seed that nobody gave: one draw from the generator, or from torch's global one; on several ranks rank 0's.

        Ranks that have no ``torch.distributed`` cannot ask. If their order depends on the seed it is 0 for the first
        loader, 1 for the second; otherwise only augmentation does, and each rank draws its own, as with torch.

        Raises :class:`EngineError` if rank 0 does not say its seed in ten minutes.
        """
        if self._shard.world_size == 1:
            return _drawn(generator)
        store = _store()
        if store is None:
            return self._number if self._same_order else _drawn(generator)
        key = f"gpupipe/{self._number}/seed"
        if self._shard.rank == 0:
            seed = _drawn(generator)
            store.set(key, str(seed))
            return seed
        try:
            store.wait([key], _PATIENCE)
        except Exception as e:
            raise EngineError(
                f"rank {self._shard.rank} waited {_PATIENCE.seconds} s for the seed of rank 0, which has not begun "
                "this loader: make the loaders in the same order on all ranks, or give each its seed="
            ) from e
        return int(store.get(key))


def _store() -> Any:
    dist = sys.modules.get("torch.distributed")  # only a program that imported it can have initialised it
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.distributed_c10d._get_default_store()


def _drawn(generator: Any) -> int:
    """One draw, which the next loader does not make again. Of a generator that has just been seeded it is that seed:
    the number that the script says is the one that ``repr`` shows."""
    fresh = generator is not None and _is_fresh(generator)
    # On the CPU by name: the script may have called torch.set_default_device(). 63 bits, as torch's own base seed.
    drawn = int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())
    return int(generator.initial_seed()) if fresh else drawn


def _is_fresh(generator: Any) -> bool:
    """Whether nothing was drawn since it was seeded."""
    other = torch.Generator()
    other.manual_seed(generator.initial_seed())
    return generator.device.type == "cpu" and torch.equal(other.get_state(), generator.get_state())
