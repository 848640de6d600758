"""What memory is held, and by whom; taking it in advance and giving it back; what a loader will need.

    print(gpupipe.memory.estimate(loader))          # before: an arithmetic
    gpupipe.memory.preallocate(device_bytes=4 << 30)  # several processes on one GPU: take your part first
    print(gpupipe.memory.report())                  # at any time
    gpupipe.memory.release()                        # between phases: give back what is free

How large the pinned staging of the torch engine is, :class:`gpupipe.engines.Torch` says (``staging``, ``slots``).

What stays. Pools grow until the largest images were seen, and then no further; freed memory is kept for what comes
next. Of host memory it is glibc's malloc that keeps most: about half of what a process with DALI's CPU backend has is
free, in holes between images of changing sizes. :func:`release` and ``loader.close()`` return that. Fewer holes at all
cost speed, so gpupipe does not ask malloc for them: where memory is short, ``MALLOC_MMAP_THRESHOLD_=4194304`` in the
environment saves a third of it for an eighth of the images per second. ``MALLOC_ARENA_MAX=1`` costs a third of them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..engines.dali import pools
from ..errors import ConfigError
from . import system
from .limits import Estimate
from .uses import size_text

if TYPE_CHECKING:
    from ..loader.dataloader import DataLoader

__all__ = ["Device", "Estimate", "Report", "estimate", "preallocate", "release", "report"]


@dataclass(frozen=True)
class Device:
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
        """Whatever else is there: DALI's pool, CUDA itself, and all other processes. The driver does not tell them
        apart."""
        return self.total - self.free - self.reserved


@dataclass(frozen=True)
class Report:
    """What is held now, in bytes. ``None`` where it cannot be known."""

    process: system.Process | None
    """This process."""
    workers: system.Process | None
    """All processes below this one together; in ``rss`` what they share counts once for each."""
    worker_count: int
    malloc: system.Malloc | None
    """What glibc's malloc has of ``process``, DALI's CPU buffers included."""
    limit: int | None
    """What this process may have: of the machine, or of its container."""
    shm: int | None
    """Size of /dev/shm."""
    staging: int
    """In pinned slots of gpupipe's rings, of all loaders of this process."""
    rings: int
    pinned_by_torch: int | None
    """In torch's pool of pinned memory, ``staging`` included; ``None`` where CUDA is not running, or torch is old."""
    devices: tuple[Device, ...]
    """The GPUs that this process uses."""

    def __str__(self) -> str:
        def row(name: str, *parts: str) -> str:
            return f"{name:<9}{', '.join(p for p in parts if p)}"

        def of(p: system.Process) -> str:
            return f"{size_text(p.rss)} resident ({size_text(p.pss)} by share, {size_text(p.uss)} its own)"

        lines = []
        if self.process is not None:
            limit = "" if self.limit is None else f"may have {size_text(self.limit)}"
            lines.append(row("host", of(self.process), limit))
        if self.malloc is not None:
            used, free = size_text(self.malloc.used), size_text(self.malloc.free)
            lines.append(row("malloc", f"{used} used", f"{free} free in its arenas"))
        if self.workers is not None and self.worker_count:
            lines.append(row("workers", f"{self.worker_count}: {of(self.workers)}"))
        if self.shm is not None:
            lines.append(row("/dev/shm", size_text(self.shm)))
        torchs = "" if self.pinned_by_torch is None else f"{size_text(self.pinned_by_torch)} in torch's pool in all"
        lines.append(row("pinned", f"{size_text(self.staging)} staging in {self.rings} ring(s)", torchs))
        for d in self.devices:
            lines.append(
                row(
                    f"cuda:{d.index}",
                    f"{size_text(d.allocated)} in tensors",
                    f"{size_text(d.reserved)} in torch's pool",
                    f"{size_text(d.other)} others, DALI's pool among them",
                    f"{size_text(d.free)} of {size_text(d.total)} free",
                )
            )
        return "\n".join(lines)


def report() -> Report:
    """What is held now.

    Loads nothing and starts nothing: without CUDA running in torch there are no ``devices``. What DALI's pools hold is
    not in it, because DALI has no function that says so: of its CPU buffers ``malloc`` has those up to 32 MiB, and
    ``process`` all; of a GPU they are in ``Device.other``; of pinned memory nothing is known.
    """
    below = [p for p in map(system.process, system.children()) if p is not None]
    rings = [ring for ring in _rings() if ring.pinned]
    cuda = _cuda()
    return Report(
        process=system.process(),
        workers=system.Process(sum(p.rss for p in below), sum(p.pss for p in below), sum(p.uss for p in below)),
        worker_count=len(below),
        malloc=system.malloc(),
        limit=system.memory_limit(),
        shm=system.shm_size(),
        staging=sum(ring.nbytes for ring in rings),
        rings=len(rings),
        pinned_by_torch=None if cuda is None else _pinned_by_torch(cuda),
        devices=() if cuda is None else tuple(_devices(cuda)),
    )


def estimate(loader: DataLoader) -> Estimate:
    """What a loader will hold, as an arithmetic: ``print(estimate(loader))``.

    "About" marks averages over a sample of the index. Python, torch and DALI themselves are not in it, nor what DALI's
    pools keep beyond what is in use.
    """
    return loader._budget.estimate()


def preallocate(*, device_bytes: int = 0, pinned_bytes: int = 0, device: Any = None) -> None:
    """Make DALI's pools so large that this much can be had from them without asking the driver.

    Where several processes share a GPU, each takes its part before any of them grows; and no step of the training waits
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


def release() -> Report:
    """Give back what is free: of DALI's pools, torch's pools, and malloc's. Returns what is still held.

    Safe at any time; what is given back has to be taken again when it is needed, so do it between phases and not
    between batches. DALI keeps its host memory in pieces above 32 MiB, which it cannot release.
    """
    pools.release()
    cuda = _cuda()
    if cuda is not None:
        cuda.empty_cache()
        # Newer versions of torch only; in others the pinned memory of closed rings stays in torch's pool.
        accelerator: Any = getattr(sys.modules["torch"], "accelerator", None)
        if hasattr(accelerator, "empty_host_cache"):
            accelerator.empty_host_cache()
    system.trim()
    return report()


def _rings() -> list[Any]:
    # Not imported: a report does not load torch.
    staging = sys.modules.get("gpupipe.engines.staging")
    return [] if staging is None else staging.live_rings()


def _cuda() -> Any:
    """``torch.cuda`` where CUDA is running in this process."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _pinned_by_torch(cuda: Any) -> int | None:
    statistics = getattr(cuda, "host_memory_stats", None)
    return None if statistics is None else int(statistics().get("allocated_bytes.current", 0))


def _devices(cuda: Any) -> list[Device]:
    in_use = getattr(sys.modules["torch"]._C, "_cuda_hasPrimaryContext", None)
    found = []
    for i in range(cuda.device_count()):
        allocated, reserved = cuda.memory_allocated(i), cuda.memory_reserved(i)
        # Asking for the free memory of a GPU that this process does not use would take some of it.
        if reserved or (in_use(i) if in_use is not None else i == cuda.current_device()):
            free, total = cuda.mem_get_info(i)
            found.append(Device(i, allocated, reserved, free, total))
    return found


def _device_index(device: Any) -> int:
    import torch

    try:
        found = torch.device("cuda" if device is None else device)
    except RuntimeError as e:
        raise ConfigError(f"preallocate: device={device!r}: {str(e).splitlines()[0]}") from None
    if found.type != "cuda":
        raise ConfigError(f"preallocate: device={device!r} is not a GPU; pinned_bytes goes without a device")
    return torch.cuda.current_device() if found.index is None else found.index
