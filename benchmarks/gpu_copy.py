"""How fast do batches reach a GPU: pageable, pinned on the spot, or through gpupipe's ring; and do they disturb it?

Measured: batches of 256 images as uint8 and as float32 and one of 4 MB; GB/s of the payload, from a host tensor to a
device tensor that the consumer's stream may read. Once with nothing else on the GPU, and once while matrix products
run on the consumer's stream, as long as such a step; then also how much longer these take. The bus's own limit is one
large copy from pinned memory.

    python benchmarks/gpu_copy.py [--quick] [--seconds 100]      # writes results/gpu_copy.json
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch
from _common import Budget, Table, heading, save
from torch import Tensor

from gpupipe.copy_stream import CopyStream
from gpupipe.engines.staging import Ring, Uploader

MEASURES = ("gpupipe/copy_stream.py", "gpupipe/engines/staging.py")
FLOATS = "float32[256, 3, 224, 224]"
BATCHES: dict[str, tuple[tuple[int, ...], torch.dtype, float]] = {
    FLOATS: ((256, 3, 224, 224), torch.float32, 85),
    "uint8[256, 3, 224, 224]": ((256, 3, 224, 224), torch.uint8, 85),
    "4 MB": ((4 << 20,), torch.uint8, 10),
}
"""Shape, type, and milliseconds of the step that runs meanwhile: of ResNet-50 with this batch, and of a small step."""
PAGEABLE, PINNED, RING = "pageable", "pin_memory() each time", "ring"
ALREADY = "already pinned"

Upload = Callable[[Tensor], Tensor]


def ways(device: torch.device) -> dict[str, Upload]:
    """Name to a function that brings a pageable host tensor to the device, ready on the current stream."""
    ring = Uploader(CopyStream(device), device, Ring(2, pinned=True))
    pinned: dict[tuple[Any, ...], Tensor] = {}

    def already_pinned(x: Tensor) -> Tensor:
        # What a loader reaches whose workers write into pinned memory: nothing is left but the copy.
        key = (x.shape, x.dtype)
        if key not in pinned:
            pinned[key] = x.pin_memory()
        return pinned[key].to(device, non_blocking=True)

    return {
        PAGEABLE: lambda x: x.to(device),
        PINNED: lambda x: x.pin_memory().to(device, non_blocking=True),
        RING: lambda x: ring(x, None, lambda y: y)[0],
        ALREADY: already_pinned,
    }


class Compute:
    """Matrix products on the current stream that take about ``milliseconds``."""

    def __init__(self, device: torch.device, milliseconds: float):
        self._a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
        self._out = torch.empty_like(self._a)
        self.count = 1
        for _ in range(5):
            self()
        self.count = max(1, round(milliseconds / self.milliseconds()))

    def __call__(self) -> None:
        for _ in range(self.count):
            torch.mm(self._a, self._a, out=self._out)

    def milliseconds(self) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


def seconds_of(work: Callable[[], object], repeats: int) -> float:
    """Per call, with the device idle before and after."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeats


def bus(device: torch.device) -> dict[str, Any]:
    """Return the driver's data on the bus, and the speed of one large copy from pinned memory, in GB/s."""
    fields = "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current"
    try:
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as e:
        said = f"unknown: {e}"
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target.copy_(host, non_blocking=True)
    seconds = seconds_of(lambda: target.copy_(host, non_blocking=True), 5)
    return {fields: said, "gigabytes_per_second": host.nbytes / seconds / 1e9}


def summarize(nbytes: int, limit: float, readings: dict[str, dict[str, list[float]]], compute: list[float]) -> Any:
    """By way, from seconds per call.

    Args:
        nbytes: of one batch.
        limit: of the bus, GB/s.
        readings: way to ``alone`` and ``with_compute``, one of each for every round.
        compute: the step alone, one for every round.
    """
    rows: dict[str, Any] = {}
    for way, seconds in readings.items():
        alone, both = statistics.median(seconds["alone"]), statistics.median(seconds["with_compute"])
        added = statistics.median(b - c for b, c in zip(seconds["with_compute"], compute, strict=True))
        rate = nbytes / alone / 1e9
        rows[way] = {
            "gigabytes_per_second": rate,
            "of_bus": rate / limit,
            "milliseconds_alone": 1e3 * alone,
            "milliseconds_of_step": 1e3 * both,
            "milliseconds_added_to_compute": 1e3 * added,
            "hidden_share": 1 - added / alone,
            "readings_seconds": seconds,
        }
    for row in rows.values():
        row["saved_of_a_pageable_step"] = 1 - row["milliseconds_of_step"] / rows[PAGEABLE]["milliseconds_of_step"]
    return rows


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--seconds", type=float, default=100, help="batches that do not fit into this time are left out")
    args = p.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU, and this measures nothing else")
    device = torch.device("cuda", torch.cuda.current_device())
    budget, rounds, repeats = Budget(args.seconds), 3 if args.quick else 5, 5 if args.quick else 12
    result: dict[str, Any] = {
        **heading(__doc__, args),
        "bus": bus(device),
        "batches": {},
    }
    limit = result["bus"]["gigabytes_per_second"]
    print(f"bus: {limit:.1f} GB/s ({result['bus']})", flush=True)
    uploads = ways(device)
    for name, (shape, dtype, step_milliseconds) in BATCHES.items():
        if not budget.enough(25, name):
            continue
        host = (torch.rand(shape) * 255).to(dtype)
        compute = Compute(device, step_milliseconds)
        readings: dict[str, dict[str, list[float]]] = {w: {"alone": [], "with_compute": []} for w in uploads}
        compute_alone: list[float] = []
        for _ in range(rounds):
            compute_alone.append(seconds_of(compute, repeats))
            for way, upload in uploads.items():
                for _ in range(3):  # allocations
                    upload(host)
                readings[way]["alone"].append(seconds_of(lambda: upload(host), repeats))  # noqa: B023

                def step() -> None:
                    upload(host)  # noqa: B023
                    compute()  # noqa: B023

                readings[way]["with_compute"].append(seconds_of(step, repeats))
        rows = summarize(host.nbytes, limit, readings, compute_alone)
        table = Table(name, "GB/s", "of bus", "ms alone", "ms added", "% of step saved")
        for way, row in rows.items():
            added, saved = row["milliseconds_added_to_compute"], 100 * row["saved_of_a_pageable_step"]
            rate = row["gigabytes_per_second"], row["of_bus"], row["milliseconds_alone"]
            table.row(way, *rate, f"{added:.2f}", f"{saved:.1f}")
        result["batches"][name] = {"compute_seconds": compute_alone, "ways": rows}
        save("gpu_copy", result)
    print(save("gpu_copy", result))


if __name__ == "__main__":
    main()
