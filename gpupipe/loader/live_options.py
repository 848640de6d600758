"""Options of live sessions: what they need, and what only planned sessions have."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ..engines.dali.options import installed
from ..errors import ConfigError, MissingDependency
from ..planning.blocks import BlockShuffle
from ..reading.kept import DecodedCache
from ..samplers import Sampler
from ..translate.classes import shown
from ..translate.samplers import length_of
from ..types import Shard
from .arguments import Arguments
from .batching import share_of
from .state import short_repr

_ONLY_PLANNED = (
    "only a loader that plans its samples has this: pass one of gpupipe.datasets, or a dataset class of torchvision "
    "with transforms that gpupipe knows"
)


def length(dataset: Any) -> str:
    length = length_of(dataset)
    return "unknown" if length is None else str(length)


def waits(a: Arguments) -> tuple[bool, str]:
    """Return whether images wait, and why."""
    name = a.engine_name
    if name not in ("auto", "dali", "torch"):
        raise ConfigError(
            f"engine={name!r}: this engine executes plans, and the script's own Dataset has none; {_ONLY_PLANNED}"
        )
    if name == "torch":
        return False, "as asked: torch's DataLoader alone"
    if get_worker_info() is not None:
        return False, "auto: this is a worker process"
    if not installed():
        if name == "dali":
            raise MissingDependency("DALI is not installed: pip install nvidia-dali-cuda120, or leave engine= out")
        return False, "auto: DALI is not installed"
    if name == "dali":
        return True, "as asked"
    return True, "auto: the script's own code runs, and images that it opens wait for DALI"


def cache_of(a: Arguments, *, waits: bool) -> DecodedCache | None:
    """Return the cache for decoded images. Raises :class:`ConfigError` if nothing waits for an engine."""
    for name, value in (("cache", a.cache), ("scaled", a.scaled or None)):
        if value is not None and not waits:
            raise ConfigError(f"{name}={value!r} needs DALI, but torch's loader does all the work here; leave it out")
    return None if a.cache is None else DecodedCache.of(a.cache, a.cache_bytes, None)


def refuse(a: Arguments) -> None:
    """Raise :class:`ConfigError` for options that only planned sessions have."""
    for name, value in a.schedule.items():
        raise ConfigError(f"{name}={short_repr(value)}: {_ONLY_PLANNED}")
    if isinstance(a.shuffle, BlockShuffle):
        raise ConfigError(f"shuffle={a.shuffle!r}: {_ONLY_PLANNED}")
    if isinstance(a.sampler, Sampler):
        raise ConfigError(f"sampler={a.sampler!r}: {_ONLY_PLANNED}")
    if isinstance(a.dataset, IterableDataset) and a.on_error != "raise":
        raise ConfigError(
            f"on_error={a.on_error!r}: a stream that has raised an error has ended, so nothing can take the place of a "
            "sample; handle errors in the stream, or use a dataset with __len__ and __getitem__"
        )
    if isinstance(a.dataset, IterableDataset) and a.shard is not None and a.shard.world_size > 1:
        raise ConfigError(
            f"shard={a.shard} with the stream {shown(a.dataset)}: a stream divides itself among ranks and workers, as "
            "with torch's loader; leave shard out"
        )


def per_rank(a: Arguments, shard: Shard) -> Arguments:
    if a.global_batch_size is None:
        return a
    return a.changed(batch_size=share_of(a.global_batch_size, shard), global_batch_size=None)
