"""What a loader was called with: values that are wrong by themselves are refused here, the others in ``resolve.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..engines.base import EngineConfig
from ..errors import ConfigError
from ..planning.bad_samples import OnError
from ..types import Shard

__all__ = ["Arguments", "Device", "EngineName", "check_integer"]

Device = str | int | torch.device | None
EngineName = Literal["auto", "dali", "torch", "null"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of :class:`gpupipe.DataLoader`, whose docstring says what each means."""

    dataset: Any
    batch_size: int | None
    shuffle: bool | None
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
    device: Device
    engine: EngineName | EngineConfig
    seed: int | None
    shard: Shard | None
    on_error: OnError
    max_bad: float | int | None

    def __post_init__(self) -> None:
        check_integer(self.num_workers, "num_workers", 0)
        if self.prefetch_factor is not None:
            check_integer(self.prefetch_factor, "prefetch_factor", 1)
        if self.batch_sampler is None and self.batch_size is None:
            raise ConfigError("batch_size=None (samples without batches) is not possible here; use batch_size=1")
        if self.timeout < 0:
            raise ConfigError(f"timeout must be seconds, not negative, not {self.timeout!r}")
        if self.pin_memory_device:
            device = self.pin_memory_device
            raise ConfigError(f"pin_memory_device={device!r}: say device={device!r} instead")
        if not self.in_order:
            raise ConfigError("in_order=False: batches always come in order here; leave it out")
        if self.shard is not None and not isinstance(self.shard, Shard):
            raise ConfigError(f"shard must be a gpupipe.Shard, such as Shard.from_env(), not {self.shard!r}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ConfigError(f"seed must be an integer, not {self.seed!r}")

    @property
    def engine_name(self) -> str:
        return self.engine.name if isinstance(self.engine, EngineConfig) else str(self.engine)


def check_integer(value: Any, name: str, least: int) -> None:
    """Raise :class:`ConfigError` for what is no integer, or too small."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")
