"""The counting of waits, without a GPU: on a trace made by hand, and on one that torch writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_tools import MARK, is_wait, waits_in


def call(name: str, tid: int, ts: float, cat: str = "cuda_runtime") -> dict[str, Any]:
    return {"name": name, "tid": tid, "ts": ts, "dur": 1.0, "cat": cat, "ph": "X"}


def test_waits_are_told_apart_by_thread_and_time() -> None:
    trace = {
        "traceEvents": [
            {"name": MARK, "tid": 7, "ts": 10.0, "dur": 100.0, "cat": "user_annotation", "ph": "X"},
            call("cudaStreamSynchronize", 7, 5.0),  # before
            call("cudaStreamSynchronize", 7, 20.0),
            call("cudaMemcpyAsync", 7, 21.0),
            call("cudaMemcpy", 7, 22.0),
            call("cudaEventSynchronize", 8, 23.0),
            call("cuCtxSynchronize", 7, 24.0, "cuda_driver"),
            call("cudaDeviceSynchronize", 7, 25.0, "cpu_op"),  # not a call of CUDA's
            call("cudaDeviceSynchronize", 7, 120.0),  # after
        ]
    }
    here, elsewhere, calls = waits_in(trace)
    assert here == {"cudaStreamSynchronize": 1, "cudaMemcpy": 1, "cuCtxSynchronize": 1}
    assert elsewhere == {"cudaEventSynchronize": 1}
    assert calls == 5
    with pytest.raises(ValueError, match="has no 'something'"):
        waits_in(trace, "something")


def test_what_is_a_wait() -> None:
    assert all(map(is_wait, ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")))
    assert not any(map(is_wait, ("cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaEventQuery", "cudaLaunchKernel")))


def test_the_trace_that_torch_writes_has_the_mark(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorded, record_function(MARK):
        torch.ones(10).sum()
    file = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(file))
    assert waits_in(json.loads(file.read_text())) == ({}, {}, 0)
