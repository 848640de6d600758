"""What memory is held now, taking it in advance and giving it back; see the package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from .. import system
from ..engines.dali import pools
from ..errors import ConfigError
from ..loader.memory_limits import Estimate
from ..system import ProcessMemory

if TYPE_CHECKING:
    from ..loader.dataloader import DataLoader

__all__ = ["DeviceMemory", "MemoryReport", "estimate", "preallocate", "release", "report"]


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one GPU."""

    index: int
    allocated: int
    """In torch's tensors of this process."""
    reserved: int
    """In torch's pool of this process, ``allocated`` included."""
    free: int
    total: int

    @property
    def other(self) -> int:
        """DALI's pool, CUDA itself, and all other processes: the driver does not tell them apart."""
        return self.total - self.free - self.reserved


@dataclass(frozen=True)
class MemoryReport:
    """What is held now, in bytes; ``None`` of what cannot be known."""

    process: ProcessMemory | None
    """This process, DALI's CPU buffers included."""
    workers: ProcessMemory
    """All processes below this one together; in ``rss`` what they share counts once for each."""
    worker_count: int
    limit: int | None
    """What this process may have: of the machine, or of its container."""
    shm: int | None
    """Size of /dev/shm."""
    staging: int
    """In pinned slots of gpupipe's rings, of all loaders of this process."""
    rings: int
    pinned_by_torch: int | None
    """In torch's pool of pinned memory, ``staging`` included; ``None`` if CUDA is not running, or torch is old."""
    devices: tuple[DeviceMemory, ...]
    """The GPUs that this process uses."""

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
                f"{decimal(d.allocated)} in tensors, {decimal(d.reserved)} in torch's pool, {decimal(d.other)} others, "
                f"DALI's pool among them, {decimal(d.free)} of {decimal(d.total)} free"
            )
        return "\n".join(f"{name:<9}{row}" for name, row in rows.items() if row)


def report() -> MemoryReport:
    """What is held now.

    Loads nothing and starts nothing: without CUDA running in torch there are no ``devices``. DALI has no function that
    says what its pools hold: its CPU buffers are in ``process``, those of a GPU in ``DeviceMemory.other``.
    """
    below = [p for p in map(system.process, system.children()) if p is not None]
    # Not imported: a report does not load torch.
    staging = sys.modules.get("gpupipe.engines.staging")
    rings = [] if staging is None else [ring for ring in staging.live_rings() if ring.pinned]
    cuda = _cuda()
    # Newer versions of torch only.
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
    """``torch.cuda`` if CUDA is running in this process."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _devices(cuda: Any) -> Iterator[DeviceMemory]:
    in_use = getattr(sys.modules["torch"]._C, "_cuda_hasPrimaryContext", lambda i: i == cuda.current_device())
    for i in range(cuda.device_count()):
        allocated, reserved = cuda.memory_allocated(i), cuda.memory_reserved(i)
        if reserved or in_use(i):  # asking for the free memory of another one would take some of it
            yield DeviceMemory(i, allocated, reserved, *cuda.mem_get_info(i))


def estimate(loader: DataLoader) -> Estimate:
    """What a loader will hold, as an arithmetic: ``print(estimate(loader))``.

    "About" marks averages over a sample of the index. Python, torch and DALI themselves are not in it, nor what DALI's
    pools keep beyond what is in use.

    >>> import numpy as np
    >>> from gpupipe import DataLoader, datasets
    >>> pixels = datasets.Arrays(np.zeros((4, 8, 8, 3), np.uint8))
    >>> print(estimate(DataLoader(pixels, batch_size=2, engine="torch", device="cpu")))
    host: 384 bytes
      output batches: 2 × 3 × 8 × 8 × 1 byte × 1 handed out = 384 bytes
    """
    return loader._session.estimate()


def preallocate(*, device_bytes: int = 0, pinned_bytes: int = 0, device: Any = None) -> None:
    """Make DALI's pools so large that this much can be had from them without asking the driver.

    Several processes that share a GPU each take their part before any of them grows; and no step of the training waits
    for an allocation. Best before the first batch.

    Args:
        device_bytes: of the GPU's memory.
        pinned_bytes: of page-locked host memory.
        device: of ``device_bytes``: ``"cuda"``, ``"cuda:1"``, an index or a torch.device; by default the current one.

    Raises:
        ConfigError: no number of bytes, no GPU. MissingDependency: no DALI. EngineError: the driver has not so much.
    """
    for name, value in (("device_bytes", device_bytes), ("pinned_bytes", pinned_bytes)):
        if type(value) is not int or value < 0:
            raise ConfigError(f"preallocate: {name} must be a number of bytes, 0 or more, not {value!r}")
    if not device_bytes and not pinned_bytes:
        raise ConfigError("preallocate: say how much, such as device_bytes=4 << 30 or pinned_bytes=1 << 30")
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
        raise ConfigError(f"preallocate: device={device!r} is not a GPU; pinned_bytes goes without a device")
    return torch.cuda.current_device() if found.index is None else found.index


def release() -> MemoryReport:
    """Give back what is free: of DALI's pools, torch's pools, and malloc's. Returns what is still held.

    Safe at any time; what is given back has to be taken again when it is needed, so do it between phases and not
    between batches. DALI keeps its host memory in pieces above 32 MiB, which it cannot release.
    """
    pools.release()
    cuda = _cuda()
    if cuda is not None:
        cuda.empty_cache()
        # Newer versions of torch only; in others the pinned memory of closed rings stays in torch's pool.
        empty = getattr(getattr(sys.modules["torch"], "accelerator", None), "empty_host_cache", None)
        if empty is not None:
            empty()
    system.trim()
    return report()
