"""What do orders cost: the plan of any step, and a mixture beside a single dataset?

Predictions. A plan of 32 among 14 million samples takes 300 microseconds at any (epoch, step), one of 256 twice that:
half of it are calls of numpy, whose number does not depend on the batch. A mixture of two halves of a folder is 0.95
times as fast as the folder, because its rows are copied once more.

Measured: `loader.plan_at` with imagenet.train(224) for random epochs and steps of 14 million samples of which only
sizes exist, in CPU time; and whole epochs of photographs by the DALI engine on a CPU, folder and mixture in turns.

    python benchmarks/orders.py [FOLDER]      # writes results/orders_cpu.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import Table, heading, photographs, save
from plan_cost import Sizes

from gpupipe import DataLoader
from gpupipe.datasets import ImageList, Mixture, Subset
from gpupipe.pipelines import imagenet

TARGET_US = 200
SAMPLES = 14_000_000


def plans(draws: int) -> list[dict[str, Any]]:
    """CPU time of the plans of random steps."""
    dataset, rng, rows = Sizes(SAMPLES), np.random.default_rng(0), []
    table = Table("batch", "us/plan", "us/sample")
    for batch_size in (1, 32, 256):
        with DataLoader(dataset, batch_size, shuffle=True, engine="null", device="cpu", seed=0) as loader:
            loader.plan_at(0, 0)
            steps = rng.integers(0, len(loader), draws).tolist()
            began = time.process_time()
            for epoch, step in zip(rng.integers(0, 90, draws).tolist(), steps, strict=True):
                loader.plan_at(epoch, step)
            us = (time.process_time() - began) / draws * 1e6
        rows.append({"batch_size": batch_size, "us_per_plan": us})
        table.row(batch_size, us, us / batch_size)
    return rows


def mixture(paths: list[str], rounds: int) -> dict[str, Any]:
    """Images per second of a folder and of a mixture of its halves, in turns."""
    transform = imagenet.train(224)
    whole = ImageList(paths, [0] * len(paths), transform=transform)
    halves = [Subset(whole, range(first, len(paths), 2)) for first in (0, 1)]
    made = {"folder": whole, "mixture": Mixture(dict.fromkeys(halves, 0.5))}
    readings: dict[str, list[float]] = {name: [] for name in made}
    for number in range(rounds + 1):  # the first round is not counted
        for name in (made, reversed(made))[number % 2]:
            with DataLoader(made[name], 64, shuffle=True, num_workers=2, device="cpu", engine="dali", seed=0) as loader:
                iterator, count = iter(loader), 0
                next(iterator)
                began = time.perf_counter()
                count = sum(len(labels) for _, labels in iterator)
                readings[name].append(count / (time.perf_counter() - began))
    ratios = [m / f for f, m in zip(readings["folder"][1:], readings["mixture"][1:], strict=True)]
    table = Table("order", "images/s")
    for name, values in readings.items():
        table.row(name, statistics.median(values[1:]))
    print(f"mixture / folder: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return {"images_per_second": readings, "ratios": ratios}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path, nargs="?", help="photographs; made from numbers otherwise")
    p.add_argument("--draws", type=int, default=10_000, help="of (epoch, step)")
    p.add_argument("--rounds", type=int, default=7)
    args = p.parse_args()
    result = {**heading(__doc__, args), "target_us": TARGET_US, "cores": len(os.sched_getaffinity(0))}
    result["plans"] = plans(args.draws)
    with photographs(args.folder, count=640) as paths:
        result["mixture"] = mixture(list(paths), args.rounds)
    print(save("orders_cpu", result))


if __name__ == "__main__":
    main()
