"""What a loader was called with: values that are wrong by themselves are refused here, the others in ``resolve.py``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch

from ..engines.base import EngineConfig
from ..errors import ConfigError
from ..planning.bad_samples import OnError
from ..planning.blocks import BlockShuffle
from ..reading.decoded_cache import CacheKind
from ..types import Shard

__all__ = ["Arguments", "DeviceLike", "EngineName", "Replaced", "Shuffling", "check_integer", "length_of"]

DeviceLike = str | int | torch.device | None
EngineName = Literal["auto", "dali", "torch", "null"]
Shuffling = bool | Literal["blocks"] | BlockShuffle | None


class Replaced(NamedTuple):
    """What a subclass has put in the place of ``loader.batch_sampler``."""

    batches: Any
    """Lists of indices; there may be no end of them."""
    sampler: Any = None
    """The loader's own, of which the batches may be made; ``begin()`` tells it that an epoch begins."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of :class:`gpupipe.DataLoader`, whose docstring says what each means."""

    dataset: Any
    batch_size: int | None
    shuffle: Shuffling
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool | None
    pin_memory_device: str
    in_order: bool
    device: DeviceLike
    engine: EngineName | EngineConfig
    seed: int | None
    shard: Shard | None
    on_error: OnError
    max_bad: float | int | None
    cache: CacheKind | None = None
    cache_bytes: int | None = None
    scaled: bool = False
    replaced: Replaced | None = None

    def __post_init__(self) -> None:
        # numpy's integers are welcome, and torch takes them too.
        for name, least in (("num_workers", 0), ("batch_size", 1), ("prefetch_factor", 1)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_integer(getattr(self, name), name, least))
        if isinstance(self.shuffle, str):
            if self.shuffle != "blocks":
                raise ConfigError(
                    f'shuffle must be True, False, "blocks" or gpupipe.BlockShuffle(...), not {self.shuffle!r}'
                )
            object.__setattr__(self, "shuffle", BlockShuffle())
        if self.timeout < 0:
            raise ConfigError(f"timeout must be seconds, not negative, not {self.timeout!r}")
        if self.shard is not None and not isinstance(self.shard, Shard):
            raise ConfigError(f"shard must be a gpupipe.Shard, such as Shard.from_env(), not {self.shard!r}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ConfigError(f"seed must be an integer, not {self.seed!r}")
        if self.seed is not None and not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"seed must be at least 0 and below 2**64, not {self.seed}")

        self._check_cache()
        if not isinstance(self.scaled, bool):
            raise ConfigError(f"scaled must be True or False, not {self.scaled!r}")
        if self.scaled and self.cache is not None:
            raise ConfigError(
                f"scaled=True beside cache={self.cache!r}: what is kept are whole images in full size; leave one "
                "of them out"
            )

    def _check_cache(self) -> None:
        if self.cache is not None and self.cache not in get_args(CacheKind):
            raise ConfigError(f'cache must be "ram", "disk" or None, not {self.cache!r}')
        if self.cache is None and self.cache_bytes is not None:
            raise ConfigError(
                f"cache_bytes={self.cache_bytes!r} without cache: say where decoded images are kept, "
                'cache="ram" or cache="disk", or leave it out'
            )
        if self.cache == "disk" and self.cache_bytes is None:
            raise ConfigError('cache="disk" without cache_bytes: say how many bytes of decoded images it may hold')
        if self.cache_bytes is not None:
            object.__setattr__(self, "cache_bytes", check_integer(self.cache_bytes, "cache_bytes", 1))

    @property
    def engine_name(self) -> str:
        return self.engine.name if isinstance(self.engine, EngineConfig) else str(self.engine)

    @property
    def lengths(self) -> tuple[int | None, int | None]:
        """Of dataset and sampler, as they are now; ``None`` if they have none."""
        return length_of(self.dataset), length_of(self.sampler)


def length_of(value: Any) -> int | None:
    """``len(value)``, or ``None`` if it has none."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):  # torch's samplers and streams may have one that refuses
        return None


def check_integer(value: Any, name: str, least: int) -> int:
    """A Python integer. Raises :class:`ConfigError` for what is none, or too small."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")
    return number
