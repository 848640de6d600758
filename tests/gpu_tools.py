"""What the GPU tests share: a switch to try them out on a CPU, and who waited for the device."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

ASKED = os.environ.get("GPUPIPE_DRY_RUN")
REQUIRED = os.environ.get("GPUPIPE_REQUIRE_CUDA") == "1"
DRY_RUN = ASKED == "1" or (ASKED is None and not REQUIRED and not torch.cuda.is_available())
"""Whether tests that do not need CUDA's own functions run on the CPU, which shows that the tests themselves work, and
no more. So they do where there is no GPU, unless ``GPUPIPE_DRY_RUN=0``."""
DEVICE = "cpu" if DRY_RUN else "cuda"
MARK = "consumer's loop"
MILLISECOND = 1_500_000
"""About so many cycles of a GPU's clock."""


def delay(milliseconds: float) -> None:
    """Keep the current stream busy for about so long, without waiting for it; nothing on the CPU."""
    if not DRY_RUN:
        torch.cuda._sleep(int(milliseconds * MILLISECOND))


def finish() -> None:
    """Wait for the device; nothing on the CPU."""
    if not DRY_RUN:
        torch.cuda.synchronize()


def is_wait(name: str) -> bool:
    """Whether a call of CUDA's makes the host wait: ``cudaStreamSynchronize`` and its like, and the synchronous
    ``cudaMemcpy``."""
    return "Synchronize" in name or name in ("cudaMemcpy", "cudaMemcpy2D", "cudaMemcpy3D", "cudaMemset")


def waits_in(trace: dict[str, Any], mark: str = MARK) -> tuple[Counter[str], Counter[str], int]:
    """(waits in the threads that the mark names, waits in others, all calls of CUDA's), of a Chrome trace."""
    events = trace["traceEvents"]
    # A mark is there once more for every stream of the GPU, in another category.
    named = [e for e in events if e.get("name") == mark and e.get("cat") == "user_annotation"]
    marked = [(e["tid"], e["ts"], e["ts"] + e["dur"]) for e in named]
    if not marked:
        raise ValueError(f"the trace has no {mark!r}")
    begin, end = min(m[1] for m in marked), max(m[2] for m in marked)
    threads = {m[0] for m in marked}
    here: Counter[str] = Counter()
    elsewhere: Counter[str] = Counter()
    calls = 0
    for e in events:
        if e.get("cat") not in ("cuda_runtime", "cuda_driver") or not begin <= e["ts"] <= end:
            continue
        calls += 1
        if is_wait(e["name"]):
            (here if e["tid"] in threads else elsewhere)[e["name"]] += 1
    return here, elsewhere, calls


@contextmanager
def profiled(file: Path) -> Iterator[list[Any]]:
    """The list holds what :func:`waits_in` says of the block, afterwards."""
    from torch.profiler import ProfilerActivity, profile, record_function

    found: list[Any] = []
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as recorded:
        with record_function(MARK):
            yield found
        torch.cuda.synchronize()
    recorded.export_chrome_trace(str(file))
    found.extend(waits_in(json.loads(file.read_text())))


@contextmanager
def no_synchronization() -> Iterator[None]:
    """Within, torch raises where one of its own functions would make the host wait for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
