"""Memory reports, preallocation and release.

    gpupipe.memory.preallocate(device_bytes=4 << 30)  # when several processes share a GPU
    print(gpupipe.memory.report())                    # at any time
    gpupipe.memory.release()                          # between phases: return free memory

:class:`gpupipe.engines.Torch` sets the size of the torch engine's pinned staging (``staging``, ``slots``).

Pools grow until the largest images were seen, and then stop. Freed memory is kept for reuse. On the host, glibc's
malloc keeps most: about half the memory of a process with DALI's CPU backend consists of holes between images of
changing sizes. :func:`release` and ``loader.close()`` return it. Fewer holes cost speed, so gpupipe does not configure
malloc. If memory is short, ``MALLOC_MMAP_THRESHOLD_=4194304`` in the environment saves a third of it and costs an
eighth of the images per second; ``MALLOC_ARENA_MAX=1`` costs a third of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.filesize import decimal

from . import system
from .engines.dali import pools
from .errors import ConfigError
from .sources.remote.memory_cache import unmap
from .system import ProcessMemory

__all__ = ["DeviceMemory", "MemoryReport", "preallocate", "release", "report"]


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one GPU in bytes."""

    index: int
    allocated: int
    """Bytes in torch tensors of this process."""
    reserved: int
    """Bytes in torch's pool of this process, including ``allocated``."""
    free: int
    total: int

    @property
    def other(self) -> int:
        """Bytes of DALI's pool, of CUDA itself and of all other processes, which the driver does not distinguish."""
        return self.total - self.free - self.reserved


@dataclass(frozen=True)
class MemoryReport:
    """Memory held now, in bytes. Unknown values are ``None``."""

    process: ProcessMemory | None
    """This process, including DALI's CPU buffers."""
    workers: ProcessMemory
    """Sum over all descendant processes; ``rss`` counts shared memory once for each."""
    worker_count: int
    limit: int | None
    """Limit of this process, set by the machine or its container."""
    shm: int | None
    """Size of /dev/shm."""
    staging: int
    """Bytes in pinned slots of gpupipe's rings, over all loaders of this process."""
    rings: int
    pinned_by_torch: int | None
    """Bytes in torch's pool of pinned memory, including ``staging``; ``None`` if CUDA is not running or torch is too
    old."""
    devices: tuple[DeviceMemory, ...]
    """GPUs that this process uses."""

    def __str__(self) -> str:
        def of(p: ProcessMemory) -> str:
            return f"{decimal(p.rss)} resident ({decimal(p.pss)} by share, {decimal(p.uss)} its own)"

        may = "" if self.limit is None else f", may have {decimal(self.limit)}"
        torchs = "" if self.pinned_by_torch is None else f", {decimal(self.pinned_by_torch)} in torch's pool in all"
        rows = {
            "host": self.process and of(self.process) + may,
            "workers": self.worker_count and f"{self.worker_count}: {of(self.workers)}",
            "/dev/shm": self.shm and decimal(self.shm),
            "pinned": f"{decimal(self.staging)} staging in {self.rings} ring(s){torchs}",
        }
        for d in self.devices:
            rows[f"cuda:{d.index}"] = (
                f"{decimal(d.allocated)} in tensors, {decimal(d.reserved)} in torch's pool, {decimal(d.other)} "
                f"other, including DALI's pool, {decimal(d.free)} of {decimal(d.total)} free"
            )
        return "\n".join(f"{name:<9}{row}" for name, row in rows.items() if row)


def report() -> MemoryReport:
    """Report the memory held now.

    This loads and starts nothing: ``devices`` is empty unless CUDA is running in torch. DALI cannot report the size of
    its pools: ``process`` includes its CPU buffers, ``DeviceMemory.other`` those on a GPU.
    """
    below = [p for p in map(system.process, system.children()) if p is not None]
    # No import, because a report must not load torch.
    staging = sys.modules.get("gpupipe.engines.staging")
    rings = [] if staging is None else [ring for ring in staging.live_rings() if ring.pinned]
    cuda = _cuda()
    # Only newer versions of torch have this.
    pinned = getattr(cuda, "host_memory_stats", None)
    return MemoryReport(
        process=system.process(),
        workers=ProcessMemory(sum(p.rss for p in below), sum(p.pss for p in below), sum(p.uss for p in below)),
        worker_count=len(below),
        limit=system.memory_limit(),
        shm=system.shm_size(),
        staging=sum(ring.nbytes for ring in rings),
        rings=len(rings),
        pinned_by_torch=None if pinned is None else int(pinned().get("allocated_bytes.current", 0)),
        devices=() if cuda is None else tuple(_devices(cuda)),
    )


def _cuda() -> Any:
    """Return ``torch.cuda`` if CUDA is running in this process."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _devices(cuda: Any) -> Iterator[DeviceMemory]:
    in_use = getattr(sys.modules["torch"]._C, "_cuda_hasPrimaryContext", lambda i: i == cuda.current_device())
    for i in range(cuda.device_count()):
        allocated, reserved = cuda.memory_allocated(i), cuda.memory_reserved(i)
        if reserved or in_use(i):  # querying the free memory of an unused GPU would allocate some
            yield DeviceMemory(i, allocated, reserved, *cuda.mem_get_info(i))


def preallocate(*, device_bytes: int = 0, pinned_bytes: int = 0, device: Any = None) -> None:
    """Enlarge DALI's pools so that they can serve this much without asking the driver.

    Processes that share a GPU can thus each take their part before any of them grows, and no training step waits for an
    allocation. Call it before the first batch.

    Args:
        device_bytes: bytes of GPU memory.
        pinned_bytes: bytes of page-locked host memory.
        device: GPU for ``device_bytes``: ``"cuda"``, ``"cuda:1"``, an index or a torch.device; by default the current
            one.

    Raises:
        ConfigError: a number of bytes is invalid, or there is no GPU.
        MissingDependency: DALI is not installed.
        EngineError: the driver does not have that much memory.
    """
    for name, value in (("device_bytes", device_bytes), ("pinned_bytes", pinned_bytes)):
        if type(value) is not int or value < 0:
            raise ConfigError(f"preallocate: {name} must be a number of bytes, 0 or more, not {value!r}")
    if not device_bytes and not pinned_bytes:
        raise ConfigError("preallocate: give a size, such as device_bytes=4 << 30 or pinned_bytes=1 << 30")
    pools.check()
    if device_bytes:
        pools.preallocate_device(device_bytes, _device_index(device))
    if pinned_bytes:
        pools.preallocate_pinned(pinned_bytes)


def _device_index(device: Any) -> int:
    import torch

    try:
        found = torch.device("cuda" if device is None else device)
    except RuntimeError as e:
        raise ConfigError(f"preallocate: device={device!r}: {str(e).splitlines()[0]}") from None
    if found.type != "cuda":
        raise ConfigError(f"preallocate: device={device!r} is not a GPU; pinned_bytes needs no device")
    return torch.cuda.current_device() if found.index is None else found.index


def release() -> MemoryReport:
    """Return free memory of DALI's, torch's and malloc's pools to the system, and unmap images of ``cache="ram"``.
    Return a report of what is still held.

    This is safe at any time. Released memory must be allocated again when needed, so call this between phases rather
    than between batches. DALI cannot release host memory in pieces above 32 MiB.
    """
    pools.release()
    cuda = _cuda()
    if cuda is not None:
        cuda.empty_cache()
        # Only newer versions of torch have this; in others the pinned memory of closed rings stays in torch's pool.
        empty = getattr(getattr(sys.modules["torch"], "accelerator", None), "empty_host_cache", None)
        if empty is not None:
            empty()
    unmap()
    system.trim()
    return report()
