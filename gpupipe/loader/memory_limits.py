"""Checks that a loader fits into memory: sums what its engine will hold and raises an error if that can never fit.

Averages are shown but never cause an error, so a loader that fits is never rejected, and one that passes may still not
fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rich.filesize import decimal

from .. import system
from ..codecs.page_cache import CACHE_BYTES
from ..engines.base import EngineConfig
from ..engines.memory_uses import MemoryKind, MemoryUse, Workload
from ..errors import MemoryBudgetError

_HOST: tuple[MemoryKind, ...] = ("host", "pinned", "shm")


@dataclass(frozen=True)
class Estimate:
    """Bytes that a loader will hold. Prints as a sum."""

    uses: tuple[MemoryUse, ...]

    def held(self, *places: MemoryKind) -> int:
        return _total(use for use in self.uses if use.place in places)

    @property
    def host(self) -> int:
        """Host memory, including pinned and shared memory."""
        return self.held(*_HOST)

    @property
    def pinned(self) -> int:
        return self.held("pinned")

    @property
    def shm(self) -> int:
        """Memory in /dev/shm."""
        return self.held("shm")

    @property
    def device(self) -> int:
        return self.held("device")

    def __str__(self) -> str:
        lines = []
        for title, places in (("host", _HOST), ("device", ("device",))):
            here = [use for use in self.uses if use.place in places]
            if here:
                about = "" if all(use.certain for use in here) else "about "
                lines += [f"{title}: {about}{decimal(_total(here))}", *(f"  {use}" for use in here)]
        return "\n".join(lines) or "nothing is known before the data is read"


def _total(uses: Iterable[MemoryUse]) -> int:
    return sum(use.nbytes for use in uses)


def estimate(config: EngineConfig, workload: Workload) -> Estimate:
    """Estimate the memory that a loader will hold."""
    return Estimate((*config.memory_uses(workload), *_pages(workload)) if workload.samples else ())


def _pages(workload: Workload) -> list[MemoryUse]:
    """Unpacked pages of compressed samples."""
    pages = workload.setup.dataset.pages
    if pages is None:
        return []
    nbytes = min(pages.nbytes, max(CACHE_BYTES, pages.largest))
    formula = f"pages of up to {decimal(pages.largest)} in a cache of {decimal(CACHE_BYTES)} for each process"
    return [MemoryUse("unpacked pages", "host", nbytes, formula, certain=False)]


def check_host(config: EngineConfig, workload: Workload) -> None:
    """Raise :class:`MemoryBudgetError` if host memory or /dev/shm is certainly too small."""
    _check(config, workload, ("shm",), system.shm_size(), "of shared memory, and /dev/shm has")
    _check(config, workload, _HOST, system.memory_limit(), "of host memory, and this process may have")


def check_device(config: EngineConfig, workload: Workload, total: int) -> None:
    """Raise :class:`MemoryBudgetError` if the GPU, which has ``total`` bytes, is certainly too small."""
    _check(config, workload, ("device",), total, f"of GPU memory, and {workload.setup.device} has")


def _check(
    config: EngineConfig, workload: Workload, places: tuple[MemoryKind, ...], limit: int | None, between: str
) -> None:
    setup = workload.setup

    def certain(**changes: int) -> list[MemoryUse]:
        changed = replace(workload, setup=replace(setup, **changes))  # type: ignore[arg-type]
        return [use for use in estimate(config, changed).uses if use.certain and use.place in places]

    uses = certain()
    if limit is None or _total(uses) <= limit:
        return
    ways = []
    for name in ("batch_size", "prefetch_factor", *(["num_workers"] if places == ("shm",) else [])):
        low, high = 0, getattr(setup, name)  # low fits or is 0, high does not fit
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _total(certain(**{name: middle})) <= limit else (low, middle)
        ways += [f"{name} <= {low:,}"] * (low > 0)
    if places == ("shm",):
        ways.append("a larger /dev/shm (docker run --shm-size=...)")
    lines = [
        f"batch_size={setup.batch_size:,}, prefetch_factor={setup.prefetch_factor}, num_workers={setup.num_workers}: "
        "the loader does not fit into memory.",
        *(f"  {use}" for use in uses),
        f"That is {decimal(_total(uses))} {between} {decimal(limit)}: use "
        + (" or ".join(ways) or "a smaller output size"),
    ]
    raise MemoryBudgetError("\n".join(lines))
