"""What the ranks of a training must have in common."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch

from ..errors import ConfigError, EngineError
from ..reasons import Reason
from ..script_warnings import warn
from ..types import Shard

__all__ = ["Agreement", "Said"]

_NUMBERS = count()
SEED_PATIENCE = 600.0
"""Seconds for which the seed of rank 0 is waited for: without it there is no order."""
PATIENCE = 30.0
"""Seconds for which other ranks' settings are waited for. It is no error if they do not come: scripts may look at a
batch on one rank alone."""


class Said(NamedTuple):
    """A setting of one rank."""

    value: Any
    """What is compared: a number, or a short text."""
    shown: str
    """What a person reads."""


_ADVICE = {
    "seed": "give every rank the same seed= (draws differ between samples, so none of its own is needed)",
    "epoch": "call set_epoch() with the same epoch on every rank",
    "delivered": "load the same state on every rank: one file that rank 0 saves serves all",
    "batch_size": "use the same on every rank",
    "drop_last": "use the same on every rank",
    "order": "use the same shuffle and sampler on every rank",
    "dataset": "every rank must see the same files: wait until all of them are there, and pass the same arguments",
    "pipeline": "use the same transforms on every rank",
    "functions": "use the same code, defaults and enclosed values on every rank; a function can ask torch.distributed "
    "for its rank when it runs",
    "scaled": "use the same on every rank",
    "cache": "use the same on every rank",
    "on_error": "use the same on every rank",
    "max_bad": "use the same on every rank",
    "engine": "torch's own loader has another order than gpupipe's engines: install the same packages on every rank",
    "part": "give every rank its own, with shard=Shard.from_env()",
}


class Agreement:
    """How the loaders of all ranks that belong together come to the same seed, and find out if they are not alike.

    Ranks make their loaders in the same order, so the number of a loader among those for several ranks says which
    belong together. They talk by the key-value store of ``torch.distributed``: a collective would wait for ever if only
    some ranks look at a batch.
    """

    def __init__(self, shard: Shard, *, same_order: bool):
        self._shard = shard
        self._same_order = same_order
        self._number = next(_NUMBERS) if shard.world_size > 1 else 0
        self._agreed = False

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
        key = self._key("seed")
        if self._shard.rank == 0:
            seed = _drawn(generator)
            store.set(key, str(seed))
            return seed
        found = _wait(store, key, time.monotonic() + SEED_PATIENCE)
        if found is None:
            raise EngineError(
                f"rank {self._shard.rank} waited {SEED_PATIENCE:.0f} s for the seed of rank 0, which has not begun "
                "this loader: make the loaders in the same order on all ranks, or give each its seed="
            )
        return int(found)

    def check(self, settings: Mapping[str, Said]) -> None:
        """Compare what this rank has with what the others have: once, where ``torch.distributed`` runs and its ranks
        are those of the loader. On a single rank it costs nothing.

        Rank 0 reads what all say, and the others wait for its verdict, so every rank raises or none does. Who comes
        after ``PATIENCE`` compares itself with rank 0.

        Raises :class:`ConfigError` with both sides of every difference.
        """
        if self._agreed or self._shard.world_size == 1:
            return
        store = _store()
        dist = sys.modules.get("torch.distributed")
        if store is None or dist is None or dist.get_world_size() != self._shard.world_size:
            return  # ranks of another kind: the script cuts its processes into groups of its own
        rank, until = dist.get_rank(), time.monotonic() + PATIENCE
        mine = {**settings, "part": Said(self._shard.rank, str(self._shard))}
        store.set(self._key(rank), json.dumps(mine))
        differences = self._judge(store, mine, until) if rank == 0 else self._ask(store, rank, mine, until)
        if differences:
            raise ConfigError(
                "the ranks' loaders are not alike: their batches would not be parts of one epoch, and ranks could wait "
                f"for each other for ever.\n{differences}\nA loader that is meant to be of one rank alone goes without "
                "shard=, and loaders for all ranks are made in the same order on each"
            )
        self._agreed = True

    def _judge(self, store: Any, mine: Mapping[str, Said], until: float) -> str:
        """On rank 0: what is different, once all have said what they have, or time is over."""
        said, missing = {0: mine}, []
        for rank in range(1, self._shard.world_size):
            found = _wait(store, self._key(rank), until)
            if found is None:
                missing.append(rank)
            else:
                said[rank] = _read(found)
        differences = _differences(said)
        store.set(self._key("verdict"), differences)
        if missing:
            text = f"after {PATIENCE:.0f} s {_ranks(missing)} not begun this loader"
            warn("rank 0 goes on, and compares settings when the others begin", [Reason(text, "ranks-apart")])
        return differences

    def _ask(self, store: Any, rank: int, mine: Mapping[str, Said], until: float) -> str:
        """On another rank: what rank 0 found. It waits as long as rank 0 may wait for others."""
        verdict = _wait(store, self._key("verdict"), until + PATIENCE)
        if verdict is None:
            text = f"it waited {2 * PATIENCE:.0f} s for rank 0 to begin this loader"
            warn(f"rank {rank} goes on without having compared its settings", [Reason(text, "ranks-apart")])
            return ""
        # Rank 0 may not have waited for this one.
        return verdict or _differences({0: _read(store.get(self._key(0)).decode()), rank: mine})

    def _key(self, what: object) -> str:
        # Ranks that are started anew may find the store of those before them, who were more or fewer.
        return f"gpupipe/{self._shard.world_size}/{self._number}/{what}"


def _read(text: str) -> dict[str, Said]:
    return {name: Said(*said) for name, said in json.loads(text).items()}


def _differences(said: Mapping[int, Mapping[str, Said]]) -> str:
    """One line for each setting that is not the same for all ranks; a part, that is not another one for each."""
    lines = []
    for name, advice in _ADVICE.items():
        if any(name not in settings for settings in said.values()):
            continue  # a loader of another kind, which the engine or the order tells
        sides: dict[Any, list[int]] = {}
        for rank, settings in said.items():
            sides.setdefault(settings[name].value, []).append(rank)
        if name == "part":
            sides = {value: ranks for value, ranks in sides.items() if len(ranks) > 1}
        elif len(sides) == 1:
            continue
        shown = [f"{_ranks(ranks)} {said[ranks[0]][name].shown}" for ranks in sides.values()]
        if shown:
            lines.append(f"  {name}: {'; '.join(shown)}. Next: {advice}")
    return "\n".join(lines)


def _ranks(ranks: Sequence[int]) -> str:
    some = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {some} has" if len(ranks) == 1 else f"ranks {some} have"


def _store() -> Any:
    dist = sys.modules.get("torch.distributed")  # only a program that imported it can have initialised it
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.distributed_c10d._get_default_store()


def _wait(store: Any, key: str, until: float) -> str | None:
    """What stands under a key; ``None`` if it does not come. ``store.wait()`` would let no Ctrl-C through."""
    pause = 0.001
    while not store.check([key]):
        if time.monotonic() > until:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return str(store.get(key).decode())


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
