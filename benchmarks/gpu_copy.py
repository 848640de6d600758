"""How fast do batches reach a GPU: pageable, pinned on the spot, or through gpupipe's ring; and do they disturb it?

Prediction, from documentation: pinned copies come near the bus (about 55 GB/s on PCIe 5), pageable ones do not reach
half of it; the ring, which also copies within the host, is limited by one core's memory bandwidth, but does not make
the consumer wait.
Written from documentation; not run yet on the machine that it is for.

Measured: batches of 256 images as uint8 and as float32 and one of 4 MB; GB/s of the payload, from a host tensor to a
device tensor that the consumer's stream may read. Once with nothing else on the GPU, and once while matrix products
run on the consumer's stream; then also how much longer these take. The bus's own limit is one large copy from pinned
memory.

    python benchmarks/gpu_copy.py [--quick] [--seconds 200]      # writes results/gpu_copy.json
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch
from _common import Budget, Table, machine, save
from torch import Tensor

from gpupipe.engines.staging import CopyStream, Ring, Uploader

BATCHES: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "4 MB": ((4 << 20,), torch.uint8),
    "uint8[256, 3, 224, 224]": ((256, 3, 224, 224), torch.uint8),
    "float32[256, 3, 224, 224]": ((256, 3, 224, 224), torch.float32),
}

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
        "pageable": lambda x: x.to(device),
        "pin_memory() each time": lambda x: x.pin_memory().to(device, non_blocking=True),
        "ring": lambda x: ring(x, None, lambda y: y)[0],
        "already pinned": already_pinned,
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
    """What the driver says of the bus, and the speed of one large copy from pinned memory, in GB/s."""
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


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--seconds", type=float, default=200, help="batches that do not fit into this time are left out")
    args = p.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU, and this measures nothing else")
    device = torch.device("cuda", torch.cuda.current_device())
    budget, rounds, repeats = Budget(args.seconds), 3 if args.quick else 7, 5 if args.quick else 30
    result: dict[str, Any] = {
        "question": (__doc__ or "").splitlines()[0],
        "machine": machine(),
        "settings": vars(args),
        "bus": bus(device),
        "batches": {},
    }
    limit = result["bus"]["gigabytes_per_second"]
    print(f"bus: {limit:.1f} GB/s ({result['bus']})", flush=True)
    uploads = ways(device)
    for name, (shape, dtype) in BATCHES.items():
        if not budget.enough(20, name):
            continue
        host = (torch.rand(shape) * 255).to(dtype)
        # About as long as a step of ResNet-50 with this batch, and longer than the copy.
        compute = Compute(device, 30 if host.nbytes > 1e8 else 10)
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
        table = Table(name, "GB/s", "of bus", "ms alone", "ms added to compute")
        rows: dict[str, Any] = {}
        for way, seconds in readings.items():
            alone = statistics.median(seconds["alone"])
            each = zip(seconds["with_compute"], compute_alone, strict=True)
            added = statistics.median(both - compute_only for both, compute_only in each)
            rate = host.nbytes / alone / 1e9
            rows[way] = {
                "gigabytes_per_second": rate,
                "of_bus": rate / limit,
                "milliseconds_alone": 1e3 * alone,
                "milliseconds_added_to_compute": 1e3 * added,
                "hidden_share": 1 - added / alone,
                "readings_seconds": seconds,
            }
            table.row(way, rate, rate / limit, 1e3 * alone, f"{1e3 * added:.2f}")
        result["batches"][name] = {"compute_seconds": compute_alone, "ways": rows}
        save("gpu_copy", result)
    print(save("gpu_copy", result))


if __name__ == "__main__":
    main()
