"""What does gpupipe's own work cost: order, random numbers, hand-over, without reading a file?

Prediction: at least 200,000 samples per second through the whole DataLoader on one core, which is 5 microseconds a
sample, where decoding one takes a thousand.

Measured: the null engine, which echoes the plans, imagenet.train(224), batch 256, 1.3 million samples of which only
sizes and labels exist, one core (CPU affinity and torch's threads). Then the same with ever more of the work left out;
the parts are differences of medians. The feed is what the DALI engine prepares besides: paths and numbers as arrays.

    python benchmarks/plan_cost.py      # writes results/plan_cost.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _common import Table, heading, save

from gpupipe import DataLoader
from gpupipe.datasets.dataset import Dataset
from gpupipe.engines.dali.lowering import Canvas, Input
from gpupipe.pipelines import imagenet
from gpupipe.planning.batches import Slices
from gpupipe.planning.epoch import EpochPlan
from gpupipe.planning.order import Shuffle
from gpupipe.reading.paths import PathReader
from gpupipe.types import Shard

MEASURES = ("gpupipe/loader", "gpupipe/planning", "gpupipe/rng.py", "gpupipe/transforms")
TARGET = 200_000


class Sizes(Dataset):
    """Samples that are nothing but a size, a label and a path."""

    kind = "files"
    whole_files = True
    fingerprint = "synthetic"

    def __init__(self, n: int):
        rng = np.random.default_rng(0)
        self.transform = imagenet.train(224)
        self._sizes = rng.integers(200, 800, (n, 2)).astype(np.int32)
        self._labels = rng.integers(0, 1000, n)

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def sizes(self) -> np.ndarray:
        return self._sizes

    @property
    def labels(self) -> np.ndarray:
        return self._labels

    def fetch(self, index: int) -> tuple[str, int]:
        return f"/imagenet/train/n{index % 1000:08d}/n{index % 1000:08d}_{index}.JPEG", int(self._labels[index])

    def encoded_paths(self, indices: np.ndarray) -> list[np.ndarray]:
        return [np.frombuffer(self.fetch(i)[0].encode(), np.uint8) for i in indices.tolist()]


def microseconds(work: Callable[[int], Any], batches: int, batch_size: int) -> float:
    """Per sample, of ``work(step)`` for ``batches`` steps."""
    began = time.perf_counter()
    for step in range(batches):
        work(step)
    return (time.perf_counter() - began) / (batches * batch_size) * 1e6


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--samples", type=int, default=1_300_000)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--batches", type=int, default=400, help="of one reading")
    p.add_argument("--rounds", type=int, default=7)
    args = p.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)

    dataset = Sizes(args.samples)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, drop_last=True, engine="null", device="cpu", seed=0)
    order = Shuffle(args.samples, 0, 0)
    slices = Slices(args.samples, args.batch_size, Shard(), True)
    plans = EpochPlan(dataset, dataset.transform, order, slices, 0, 0)
    reader = PathReader(dataset)
    inputs = _inputs(dataset)

    def feed(step: int) -> None:
        (ready,) = reader.run(iter([plans[step]]))
        assert ready.plan.ops is not None
        for inp in inputs:
            inp.array(ready.plan.ops)

    readings: dict[str, list[float]] = {"loader": [], "plan": [], "order": [], "plan and feed": []}
    for _ in range(args.rounds):
        batches = iter(loader)
        next(batches)
        readings["loader"].append(microseconds(lambda _: next(batches), args.batches, args.batch_size))  # noqa: B023
        readings["order"].append(microseconds(lambda s: order.at(slices.take(s)[0]), args.batches, args.batch_size))
        readings["plan"].append(microseconds(plans.__getitem__, args.batches, args.batch_size))
        readings["plan and feed"].append(microseconds(feed, args.batches, args.batch_size))
    middle = {name: statistics.median(values) for name, values in readings.items()}
    parts = {
        "order": middle["order"],
        "random numbers and resolve": middle["plan"] - middle["order"],
        "hand-over": middle["loader"] - middle["plan"],
        "whole DataLoader, null engine": middle["loader"],
        "in addition: the DALI feed": middle["plan and feed"] - middle["plan"],
    }
    table = Table("part", "us/sample", "samples/s")
    for name, us in parts.items():
        table.row(name, us, 1e6 / us)
    print(f"target: {TARGET:,} samples/s")
    path = save(
        "plan_cost",
        {
            **heading(__doc__, args),
            "target_samples_per_second": TARGET,
            "samples_per_second": 1e6 / middle["loader"],
            "microseconds_per_sample": parts,
            "readings_microseconds_per_sample": readings,
        },
    )
    print(path)


def _inputs(dataset: Sizes) -> list[Input]:
    """Inputs of the DALI engine's graph besides paths."""
    from nvidia.dali import Pipeline

    from gpupipe.engines.dali.graph import lower
    from gpupipe.engines.dali.graph_end import GraphEnd

    canvas = Canvas(lambda start, shape: start, None, "cpu")
    with Pipeline(batch_size=1, num_threads=1, device_id=None):
        ops = dataset.transform.skeleton
        lower(canvas, ops, dataset.transform.memory_format, GraphEnd(len(ops)))
    return canvas.inputs


if __name__ == "__main__":
    main()
