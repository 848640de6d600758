"""DALI's memory pools: one per GPU and one for pinned memory, shared by all pipelines of a process.

They never return memory by themselves, and DALI does not report their size.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ...errors import ConfigError, EngineError, MissingDependency
from .options import installed


def loaded() -> bool:
    """Return whether this process has loaded DALI, without which there are no pools."""
    return "nvidia.dali.backend" in sys.modules


def check() -> None:
    """Raise if there can be no pools: MissingDependency without DALI, ConfigError without a GPU."""
    _backend()


def _backend() -> Any:
    if not installed():
        raise MissingDependency("DALI is not installed, so it has no memory pools: pip install nvidia-dali-cuda120")
    backend = importlib.import_module("nvidia.dali.backend")
    if backend.GetCUDADeviceCount() == 0:
        raise ConfigError(
            "there is no GPU here, and DALI's pools hold device memory and pinned memory only; leave preallocate() "
            "out, or see gpupipe doctor"
        )
    return backend


def preallocate_device(nbytes: int, device: int) -> None:
    """Enlarge the pool of a GPU so that it can serve ``nbytes`` without asking the driver."""
    _call("PreallocateDeviceMemory", nbytes, device)


def preallocate_pinned(nbytes: int) -> None:
    """Enlarge the pool of pinned host memory so that it can serve ``nbytes`` without asking the driver."""
    _call("PreallocatePinnedMemory", nbytes)


def _call(function: str, nbytes: int, *device: int) -> None:
    backend = _backend()
    try:
        getattr(backend, function)(nbytes, *device)
    except (RuntimeError, MemoryError) as e:
        where = f"on cuda:{device[0]}" if device else "pinned"
        raise EngineError(
            f"DALI cannot preallocate {nbytes:,} bytes {where}: {str(e).splitlines()[0]}; ask for less, or see what "
            "is held with gpupipe.memory.report()"
        ) from e


def release() -> None:
    """Return completely free blocks to the driver. Safe while pipelines run; does nothing if DALI is not loaded.

    DALI cannot release its third pool, of ordinary host memory in pieces above 32 MiB (``DALI_MALLOC_POOL_THRESHOLD``).
    """
    if loaded():
        importlib.import_module("nvidia.dali.backend").ReleaseUnusedMemory()
