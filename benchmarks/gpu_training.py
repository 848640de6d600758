"""How much of a training step does each loader cost?

Measured: ResNet-50, bfloat16 autocast, channels last, SGD, batch 256, with and without torch.compile. The ceiling is
the same step on one batch that is replayed. Ceiling and loaders take turns in one process, in steady state: the first
steps of every turn are not counted, and the next turn waits until the queues are full again. The stall share is the
part of the step time that is above the ceiling's of the same round.

    python benchmarks/gpu_training.py [FOLDER] [--quick] [--seconds 240]      # writes results/gpu_training.json
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from _candidates import settle
from _common import Budget, Table, describe_files, heading, photographs, save
from _gpu_arguments import parsed, parser
from _loaders import Batches, Job, Work, left_out
from _resnet import resnet50
from torch import Tensor, nn

MEASURES = ("benchmarks/_loaders.py", "gpupipe/engines", "gpupipe/kernels", "gpupipe/reading")
CEILING = "one batch, replayed"
OURS, TORCHVISION = "gpupipe, DALI engine", "torch DataLoader + torchvision"
JOBS = [
    Job(OURS, "gpupipe-dali", channels_last=True),
    Job(TORCHVISION, "torchvision"),
    Job("DALI by hand", "dali-by-hand", channels_last=True),
    Job("gpupipe, reference engine", "gpupipe-torch", channels_last=True),
]
"""In the order in which they take turns."""


class Training:
    """A model and its step."""

    def __init__(self, device: str, compiled: bool):
        torch.manual_seed(0)
        self.device = device
        self.raw = resnet50().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model: nn.Module = torch.compile(self.raw) if compiled else self.raw  # type: ignore[assignment]
        self.optimizer = torch.optim.SGD(self.raw.parameters(), lr=1e-3, momentum=0.9, nesterov=True)

    def step(self, images: Tensor, target: Tensor) -> None:
        images = images.to(memory_format=torch.channels_last)  # for torchvision's; the others come so
        # bfloat16 is what is asked about on a GPU; on a CPU, where the script is only tried out, it may be emulated.
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = nn.functional.cross_entropy(self.model(images), target.long() % 1000)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def turn(self, batches: Batches, warm: int, steps: int) -> dict[str, float]:
        """Seconds per step over ``steps`` steps, and the share of them that the host waited in ``next()``."""
        for _ in range(warm):
            self.step(*next(batches))
        self.wait()
        began, waited, images = time.perf_counter(), 0.0, 0
        for _ in range(steps):
            asked = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - asked
            images += len(batch[1])
            self.step(*batch)
        self.wait()
        seconds = time.perf_counter() - began
        settle()
        return {"step_seconds": seconds / steps, "images_per_second": images / seconds, "host_waited": waited / seconds}


def summarize(turns: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Per source: medians, and the stall share against the ceiling of the same round."""
    out: dict[str, Any] = {}
    for name, rows in turns.items():
        if not rows:  # its turn has not come yet
            continue
        stall = [1 - c["step_seconds"] / r["step_seconds"] for c, r in zip(turns[CEILING], rows, strict=False)]
        out[name] = {
            "median_images_per_second": statistics.median(r["images_per_second"] for r in rows),
            "median_stall_share": statistics.median(stall),
            "stall_share": stall,
            "turns": rows,
        }
    return out


def replay(batch: tuple[Tensor, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return repeat((batch[0].clone(memory_format=torch.preserve_format), batch[1].clone()))


def opened(jobs: list[Job], work: Work, failed: dict[str, str]) -> dict[str, tuple[Batches, Any]]:
    """Return the batches of each loader that starts, and its first one, by name, in the order of ``jobs``."""
    found: dict[str, tuple[Batches, Any]] = {}
    # Loaders with worker processes start first: they fork before DALI starts its threads.
    for job in sorted(jobs, key=lambda job: "dali" in job.loader):
        source, began = job.batches(work), time.perf_counter()
        try:
            found[job.name] = source, next(source)
        except Exception as e:  # one loader that a machine cannot run must not end the others
            failed[job.name] = f"{type(e).__name__}: {e}"
            print(f"{job.name}: failed: {type(e).__name__}: {e}", flush=True)
            continue
        print(f"{job.name}: first batch after {time.perf_counter() - began:.1f} s", flush=True)
    return {job.name: found[job.name] for job in jobs if job.name in found}


def main() -> None:
    p = parser(__doc__, 240)
    p.add_argument("folder", nargs="?", type=Path, help="JPEG files; made where it is not given")
    p.add_argument("--rounds", type=int)
    p.add_argument("--steps", type=int, help="of one turn")
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--workers", type=int, default=16)
    args = parsed(p)
    args.rounds = args.rounds or (2 if args.quick else 3)
    args.steps = args.steps or (10 if args.quick else 30)
    name = "gpu_training" if args.device == "cuda" else "gpu_training_dry_run"
    torch.backends.cudnn.benchmark = True
    budget = Budget(args.seconds)
    with photographs(args.folder, count=128 if args.quick else 1024, ram=True) as paths:
        result: dict[str, Any] = {
            **heading(__doc__, args),
            "files": describe_files(paths),
            "stages": {},
        }
        size = 224 if args.device == "cuda" else 32
        work = Work(tuple(paths), args.batch_size, args.workers, args.device, size)
        result["failed"] = {}
        started = opened(left_out(JOBS), work, result["failed"])
        if not started:
            raise SystemExit("no loader starts on this machine; see above")
        ceiling = replay(next(iter(started.values()))[1])
        sources: dict[str, Batches] = {CEILING: ceiling} | {which: batches for which, (batches, _) in started.items()}
        del started
        for compiled in (False, True) if args.device == "cuda" else (False,):
            stage = "compiled" if compiled else "eager"
            if not budget.enough(120 if compiled else 30, f"stage {stage}"):
                continue
            training = Training(args.device, compiled)
            began = time.perf_counter()
            try:
                training.turn(sources[CEILING], 3, 1)
            except Exception as e:  # a compiler that is not there must not take what was measured without it
                result["failed"][stage] = f"{type(e).__name__}: {e}"
                print(f"{stage}: failed: {type(e).__name__}: {str(e).splitlines()[0]}", flush=True)
                continue
            print(f"{stage}: first steps after {time.perf_counter() - began:.1f} s", flush=True)
            turns: dict[str, list[dict[str, float]]] = {which: [] for which in sources}
            table = Table(stage, "images/s", "stall %", "waited %")
            for number in range(args.rounds):
                longest = max((r["step_seconds"] for rows in turns.values() for r in rows), default=1.0)
                if number and not budget.enough(1.5 * longest * args.steps * len(sources), f"round {number + 1}"):
                    break
                for which, batches in sources.items():
                    # As many as can have piled up during the other turns.
                    warm = 1 if which == CEILING else 4 if "DALI" in which else min(2 * args.workers, args.steps)
                    turns[which].append(training.turn(batches, warm, args.steps))
                    result["stages"][stage] = summarize(turns)
                    save(name, result)
            for which, row in result["stages"][stage].items():
                waited = statistics.median(r["host_waited"] for r in row["turns"])
                table.row(which, row["median_images_per_second"], 100 * row["median_stall_share"], 100 * waited)
            del training
    print(save(name, result))


if __name__ == "__main__":
    main()
