"""Arguments of a loader. Values that are wrong by themselves are rejected here, combinations in ``resolve.py``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from ..engines.base import EngineConfig
from ..errors import ConfigError, unexpected_argument
from ..planning.bad_samples import OnError
from ..planning.blocks import BlockShuffle
from ..reading.kept import CacheKind, check_cache
from ..translate.samplers import length_of
from ..types import Shard, check_integer

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
DeviceLike = str | int | torch.device | None
EngineName = Literal["auto", "dali", "torch", "null"]
TIMEOUT = 300.0
"""Seconds to wait for a batch of worker processes, by default."""
Shuffling = bool | Literal["blocks"] | BlockShuffle | None


class Options(TypedDict, total=False):
    """The arguments after ``num_workers``, except for ``collate_fn``, as type checkers see them."""

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
    cache: CacheKind | None
    cache_bytes: int | None
    scaled: bool
    epoch_length: int | None
    infinite: bool
    exclude: Sequence[int] | npt.NDArray[np.integer[Any]] | None
    global_batch_size: int | None
    live: bool


@dataclass(frozen=True)
class Arguments:
    """Names, order, types, defaults and checks of the arguments of :class:`gpupipe.DataLoader`, which documents
    them."""

    dataset: Any
    batch_size: int | None = 1
    shuffle: Shuffling = None
    sampler: Any = None
    batch_sampler: Any = None
    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    pin_memory: bool = False
    drop_last: bool = False
    timeout: float = TIMEOUT
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: torch.Generator | None = None
    _: KW_ONLY
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    pin_memory_device: str = ""
    in_order: bool = True
    device: DeviceLike = None
    engine: EngineName | EngineConfig = "auto"
    seed: int | None = None
    shard: Shard | None = None
    on_error: OnError = "raise"
    max_bad: float | int | None = None
    cache: CacheKind | None = None
    cache_bytes: int | None = None
    scaled: bool = False
    epoch_length: int | None = None
    infinite: bool = False
    exclude: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None
    global_batch_size: int | None = None
    live: bool = False

    def __post_init__(self) -> None:
        # numpy's integers are accepted, as in torch.
        for name, least in (("num_workers", 0), ("batch_size", 1), ("prefetch_factor", 1), ("global_batch_size", 1)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_integer(getattr(self, name), name, least))
        # Lightning makes a copy of a loader from its attributes, of which batch_size is one.
        if self.global_batch_size is not None and self.batch_size not in (1, self.global_batch_size):
            raise ConfigError(
                f"global_batch_size={self.global_batch_size} is divided among the ranks, and batch_size="
                f"{self.batch_size} is per rank; leave one of them out"
            )
        if isinstance(self.shuffle, str):
            if self.shuffle != "blocks":
                raise ConfigError(
                    f'shuffle must be True, False, "blocks" or gpupipe.BlockShuffle(...), not {self.shuffle!r}'
                )
            object.__setattr__(self, "shuffle", BlockShuffle())
        self._check_torchs()
        if self.shard is not None and not isinstance(self.shard, Shard):
            raise ConfigError(f"shard must be a gpupipe.Shard, such as Shard.from_env(), not {self.shard!r}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ConfigError(f"seed must be an integer, not {self.seed!r}")
        if self.seed is not None and not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"seed must be at least 0 and below 2**64, not {self.seed}")

        object.__setattr__(self, "cache_bytes", check_cache(self.cache, self.cache_bytes))
        for name in ("scaled", "infinite", "live"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.epoch_length is not None:
            object.__setattr__(self, "epoch_length", check_integer(self.epoch_length, "epoch_length", 1))
            if self.infinite:
                raise ConfigError(f"epoch_length={self.epoch_length} and infinite=True exclude each other")

    def _check_torchs(self) -> None:
        if not isinstance(self.timeout, (int, float)) or self.timeout < 0:
            raise ConfigError(f"timeout must be a number of seconds of at least 0, not {self.timeout!r}")
        if self.timeout == TIMEOUT and not self.num_workers:  # for torch, which rejects it then
            object.__setattr__(self, "timeout", 0)
        if self.collate_fn is not None and not callable(self.collate_fn):
            raise ConfigError(f"collate_fn must be a function of a list of samples, not {self.collate_fn!r}")
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise ConfigError(f"generator must be a torch.Generator, not {self.generator!r}")

    @property
    def collates(self) -> bool:
        """Whether the script has a collate function of its own."""
        return self.collate_fn is not None and self.collate_fn is not default_collate

    @property
    def schedule(self) -> dict[str, Any]:
        """Return the given arguments that change which samples an epoch has, and that torch's loader lacks."""
        given = {"epoch_length": self.epoch_length, "infinite": self.infinite or None, "exclude": self.exclude}
        return {name: value for name, value in given.items() if value is not None}

    def changed(self, **values: Any) -> Arguments:
        """Return a checked copy with other values."""
        other = copy(self)
        vars(other).update(values)
        other.__post_init__()
        return other

    @property
    def engine_name(self) -> str:
        return self.engine.name if isinstance(self.engine, EngineConfig) else str(self.engine)

    @property
    def lengths(self) -> tuple[int | None, int | None]:
        """Current lengths of dataset and sampler; ``None`` for those without a length."""
        return length_of(self.dataset), length_of(self.sampler)


NAMES = tuple(f.name for f in fields(Arguments) if f.init)
"""Names of the arguments, in order."""


def taken_as(kind: Callable[P, A]) -> Callable[[Callable[[T, A], None]], Callable[Concatenate[T, P], None]]:
    """Decorate an ``__init__`` that takes one object of class ``kind``, so that it takes the arguments of that class
    instead.

    Callers, type checkers and ``inspect.signature`` see those arguments.
    """

    def decorate(init: Callable[[T, A], None]) -> Callable[Concatenate[T, P], None]:
        def __init__(self: T, /, *args: P.args, **kwargs: P.kwargs) -> None:
            for name in kwargs:
                if name not in known:
                    raise unexpected_argument(init.__qualname__, name, known)
            init(self, kind(*args, **kwargs))

        itself, _ = inspect.signature(init).parameters.values()
        signature = inspect.signature(kind)
        known = signature.parameters
        __init__.__signature__ = signature.replace(parameters=[itself, *signature.parameters.values()])  # type: ignore[attr-defined]
        __init__.__qualname__ = init.__qualname__
        kind.__init__.__qualname__ = init.__qualname__  # Python's own TypeErrors begin with it
        return __init__

    return decorate
