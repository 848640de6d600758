"""Settings that all ranks of a training must share."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch

from ..errors import ConfigError, EngineError
from ..reasons import Reason
from ..script_warnings import warn
from ..types import Shard

T = TypeVar("T")
_NUMBERS = count()
SEED_PATIENCE = 600.0
"""Seconds to wait for the seed of rank 0. There is no order without it."""
PATIENCE = 30.0
"""Seconds to wait for the settings of other ranks. A timeout is not an error, since scripts may look at a batch
on one rank alone."""


class RankSetting(NamedTuple):
    """A setting of one rank."""

    value: Any
    """The value to compare: a number, or a short text."""
    shown: str
    """The value as shown in messages."""


_ADVICE = {
    "seed": "give every rank the same seed= (draws differ between samples anyway)",
    "epoch": "call set_epoch() with the same epoch on every rank",
    "delivered": "load the same state on every rank: one file that rank 0 saves serves all",
    "batch_size": "use the same on every rank",
    "drop_last": "use the same on every rank",
    "order": "use the same shuffle and sampler on every rank",
    "dataset": "every rank must see the same files: wait until all of them are there, and pass the same arguments",
    "pipeline": "use the same transforms on every rank",
    "functions": "use the same functions on every rank",
    "scaled": "use the same on every rank",
    "cache": "use the same on every rank",
    "on_error": "use the same on every rank",
    "max_bad": "use the same on every rank",
    "engine": "planned and live loaders use different orders: install the same packages on every rank",
    "part": "give every rank its own, with shard=Shard.from_env()",
}


class Agreement:
    """Agrees on one seed for the loaders of all ranks that belong together, and checks that their settings match.

    Ranks make their loaders in the same order, so loaders belong together if they have the same number among those for
    several ranks. Ranks communicate through the key-value store of ``torch.distributed``: a collective would hang if
    only some ranks look at a batch.
    """

    def __init__(self, shard: Shard, *, same_order: bool):
        self._shard = shard
        self._same_order = same_order
        self._number = next(_NUMBERS) if shard.world_size > 1 else 0
        self._agreed = self._has_warned = False

    @property
    def is_alone(self) -> bool:
        return self._shard.world_size == 1

    def warn_of_seeding(self) -> None:
        """Warn once that a generator was seeded again, perhaps on one rank only."""
        if not self._has_warned:
            self._has_warned = True
            text = "a loader for several ranks draws its seed only once, so this does not repeat an epoch"
            warn("torch's generator was seeded again", [Reason(text, "seeded-again")])

    def seed(self, generator: Any) -> int:
        """Draw a seed if none was given, from the generator or torch's global one. All ranks get the seed of rank 0.

        Ranks without ``torch.distributed`` cannot ask. If their order depends on the seed, it is 0 for the first
        loader, 1 for the second, and so on. Otherwise only augmentation depends on it, and each rank draws its own, as
        with torch.

        Raises :class:`EngineError` if rank 0 does not publish its seed within ten minutes.
        """
        if self.is_alone:
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
                f"rank {self._shard.rank} waited {SEED_PATIENCE:.0f} s for the seed of rank 0, which has not started "
                "this loader: make the loaders in the same order on all ranks, or give each its seed="
            )
        return int(found)

    def check(self, settings: Mapping[str, RankSetting]) -> None:
        """Compare the settings of this rank with those of the others, once.

        Runs only if ``torch.distributed`` is initialized with the ranks of this loader, and costs nothing on a single
        rank. Rank 0 reads the settings of all ranks, and the others wait for its verdict, so every rank raises or none
        does. A rank that arrives after ``PATIENCE`` compares itself with rank 0.

        Raises :class:`ConfigError` with both sides of every difference.
        """
        if self._agreed or self.is_alone:
            return
        store = _store()
        dist = sys.modules.get("torch.distributed")
        if store is None or dist is None or dist.get_world_size() != self._shard.world_size:
            return  # other ranks: the script divides its processes into groups of its own
        rank, until = dist.get_rank(), time.monotonic() + PATIENCE
        mine = {**settings, "part": RankSetting(self._shard.rank, str(self._shard))}
        # Published before this rank waits, so that no rank waits for it in turn.
        store.set(self._key(rank), json.dumps(mine))
        differences = self._judge(store, mine, until) if rank == 0 else self._ask(store, rank, mine, until)
        if differences:
            raise ConfigError(
                "the ranks' loaders differ: their batches would not be parts of one epoch, and ranks could wait for "
                f"each other forever.\n{differences}\nLeave shard= out for a loader of a single rank, and make the "
                "loaders for all ranks in the same order on every rank"
            )
        self._agreed = True

    def _judge(self, store: Any, mine: Mapping[str, RankSetting], until: float) -> str:
        """Return the differences that rank 0 finds, once all ranks have published their settings or the time is
        over."""
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
            text = f"after {PATIENCE:.0f} s {_ranks(missing)} not started this loader"
            warn("rank 0 continues and compares settings when the others start", [Reason(text, "ranks-apart")])
        return differences

    def _ask(self, store: Any, rank: int, mine: Mapping[str, RankSetting], until: float) -> str:
        """Return the differences that rank 0 found. Waits as long as rank 0 may wait for others."""
        verdict = _wait(store, self._key("verdict"), until + PATIENCE)
        if verdict is None:
            text = f"it waited {2 * PATIENCE:.0f} s for rank 0 to start this loader"
            warn(f"rank {rank} continues without comparing its settings", [Reason(text, "ranks-apart")])
            return ""
        # Rank 0 may have stopped waiting for this rank.
        return verdict or _differences({0: _read(store.get(self._key(0)).decode()), rank: mine})

    def _key(self, what: object) -> str:
        # Restarted ranks may find the store of an earlier run with a different number of ranks.
        return f"gpupipe/{self._shard.world_size}/{self._number}/{what}"


def gathered(value: T, shard: Shard) -> list[T]:
    """Return the values of all ranks. A collective call of the default process group.

    Raises :class:`ConfigError` if the group does not have the ranks of the loader.
    """
    if shard.world_size == 1:
        return [value]
    dist = sys.modules.get("torch.distributed")
    ranks = 0 if _store() is None or dist is None else dist.get_world_size()
    if dist is None or ranks != shard.world_size:
        raise ConfigError(
            f"all_ranks=True: the loader is for {shard}, and the default process group has {ranks} ranks; initialize "
            "torch.distributed with the ranks of the loader"
        )
    found: list[Any] = [None] * ranks
    dist.all_gather_object(found, value)
    return found


def _read(text: str) -> dict[str, RankSetting]:
    return {name: RankSetting(*said) for name, said in json.loads(text).items()}


def _differences(said: Mapping[int, Mapping[str, RankSetting]]) -> str:
    """One line for each setting that differs between ranks. ``part`` is the opposite: it must differ."""
    lines = []
    for name, advice in _ADVICE.items():
        if any(name not in settings for settings in said.values()):
            continue  # a loader of another kind: the engine or the order differs as well
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
    dist = sys.modules.get("torch.distributed")  # only a program that imported it can have initialized it
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return dist.distributed_c10d._get_default_store()


def _wait(store: Any, key: str, until: float) -> str | None:
    """Return the value of a key, or ``None`` on a timeout. ``store.wait()`` would block Ctrl-C."""
    pause = 0.001
    while not store.check([key]):
        if time.monotonic() > until:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return str(store.get(key).decode())


def _drawn(generator: Any) -> int:
    """Draw a seed from a generator, so that the next loader gets a different one.

    A generator that was just seeded gives that seed, so ``repr`` shows the number in the script.
    """
    fresh = generator is not None and is_fresh(generator)
    drawn = draw(generator)
    return int(generator.initial_seed()) if fresh else drawn


def draw(generator: Any) -> int:
    """Draw a number of 63 bits, like torch's base seed, from a generator, or from torch's global one."""
    # On the CPU by name, since the script may have called torch.set_default_device().
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item())


def is_fresh(generator: Any) -> bool:
    """Return whether nothing was drawn from a generator, or torch's global one, since it was seeded."""
    generator = torch.default_generator if generator is None else generator
    if generator.device.type != "cpu":
        return False
    other = torch.Generator()
    other.manual_seed(generator.initial_seed())
    return torch.equal(other.get_state(), generator.get_state())
