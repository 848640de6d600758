"""What the GPU tests share: a switch to try them out on a CPU, and who waited for the device."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


_WAITS = ("device_synchronization", "stream_synchronization", "event_synchronization")
_EVENTS = ("event_record", "event_wait")


class Calls:
    """What one thread asked of CUDA through torch. Needs no profiler, whose tracing some machines do not allow."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        """Of the host, by kind."""
        self.events = 0
        """Events that were recorded, or that a stream was made to wait for."""
        self.operators: Counter[str] = Counter()
        """By name, those that work on the device, copies to it included. Views and empty tensors do no work."""
        self.mallocs = 0
        """Allocations that torch's allocators of device and pinned memory passed on to CUDA, from any thread."""


class _Operators(TorchDispatchMode):
    def __init__(self, calls: Calls):
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        if any(x.is_cuda for x in tensors) and not _is_idle(func):
            self._calls.operators[func.overloadpacket.__name__] += 1
        return result


def _is_idle(func: Any) -> bool:
    """Whether an operator launches nothing: it returns a view, or memory, or notes something on the host."""
    returns = func._schema.returns
    is_view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return is_view or func.overloadpacket.__name__ in (
        "empty",
        "empty_strided",
        "empty_like",
        "record_stream",
        "_pin_memory",
    )


def _mallocs() -> int:
    device, host = torch.cuda.memory_stats(), torch.cuda.host_memory_stats()
    return int(device.get("num_device_alloc", 0)) + int(host.get("num_host_alloc", 0))  # none before the first


@contextmanager
def calls_of_torch() -> Iterator[Calls]:
    """Count the calls of the current thread within a block."""
    from torch.cuda import _gpu_trace

    torch._C._activate_gpu_trace()
    found, thread, counting = Calls(), threading.get_ident(), True

    def note(kind: str) -> None:
        if counting and threading.get_ident() == thread:
            if kind in _WAITS:
                found.waits[kind] += 1
            else:
                found.events += 1

    for kind in (*_WAITS, *_EVENTS):
        getattr(_gpu_trace, f"register_callback_for_{kind}")(lambda *_, kind=kind: note(kind))
    before = _mallocs()
    try:
        with _Operators(found):
            yield found
    finally:
        counting = False
        found.mallocs = _mallocs() - before
