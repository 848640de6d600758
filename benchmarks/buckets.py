"""What do buckets cost, and what do they save?

Predictions, written before the first run. Planning 10 million samples in 11 shapes takes 1.5 s and 200 MB, once; the
first plan of an epoch 50 ms. Sequences of patches padded to the longest one in a batch are 1.5 times as long as without
padding in a random order, and 1.05 times with 16 buckets. DALI runs eight shapes of about one area in one graph at 0.97
times the speed of one shape. A small network trains with eight shapes at 0.95 times the samples per second of one
shape, because its layers are set up again for each shape, and at 0.75 times if images are padded to the largest one of
a random batch instead.

Measured: plans of random sizes with the aspect ratios of photographs, in CPU time, and the growth of the process;
lengths of sequences by ``ResizeToPatches(16, 256)`` without enlarging; epochs of photographs in turns, on one graph for
all shapes, on one graph for each shape (loaders made before), and with a network of four convolutions that is trained.

    python benchmarks/buckets.py [FOLDER]      # writes results/buckets_cpu.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import Table, heading, memory_mb, photographs, save
from plan_cost import Sizes

from gpupipe import DataLoader, collate, samplers
from gpupipe.datasets import ImageList
from gpupipe.samplers import aspect_ratios
from gpupipe.transforms import Compose, RandomHorizontalFlip, Resize, ResizeToBucket, ResizeToPatches, ToTensor

SAMPLES = 10_000_000
EDGE = 160


def _photo_sizes(n: int) -> np.ndarray:
    """i32[N, 2]: two thirds wide, one third tall, ratios around 4:3 and 3:2, 0.05 to 12 megapixels."""
    rng = np.random.default_rng(0)
    ratio = np.exp(rng.choice([np.log(4 / 3), np.log(3 / 2), 0.0], n) + 0.12 * rng.standard_normal(n))
    ratio = np.where(rng.random(n) < 1 / 3, 1 / ratio, ratio)
    area = np.exp(rng.uniform(np.log(5e4), np.log(12e6), n))
    return np.stack([np.sqrt(area / ratio), np.sqrt(area * ratio)], axis=1).astype(np.int32)


def plans(samples: int) -> dict[str, Any]:
    """CPU time and memory of the division of many samples, and of plans."""
    dataset = Sizes(samples)
    dataset._sizes = _photo_sizes(samples)
    dataset.transform = Compose([ResizeToBucket(), ToTensor()])
    sampler = samplers.AspectRatioBuckets(aspect_ratios(1024 * 1024))
    before, began = memory_mb(os.getpid())["uss"], time.process_time()
    with DataLoader(dataset, batch_size=64, sampler=sampler, engine="null", device="cpu", seed=0) as loader:
        made = time.process_time() - began
        began = time.process_time()
        loader.plan_at(0, 0)
        first = time.process_time() - began
        grown = memory_mb(os.getpid())["uss"] - before
        epoch, began = iter(loader), time.process_time()
        for _ in range(1000):
            next(epoch)
        each = (time.process_time() - began) / 1000
        after = memory_mb(os.getpid())["uss"] - before
    found = {"samples": samples, "seconds": made, "first_plan_seconds": first, "plan_us": each * 1e6}
    found |= {"grown_mb": grown, "after_1000_steps_mb": after}
    table = Table("samples", "division s", "first plan s", "plan us", "grown MB", "after 1,000 steps MB")
    table.row(samples, made, first, each * 1e6, grown, after)
    return found


def padding(samples: int = 200_000, budget: int = 32 * 256) -> list[dict[str, Any]]:
    """Tokens with padding divided by tokens without, for a budget of tokens in a batch."""
    sizes = _photo_sizes(samples) // 4  # most images are smaller than 256 patches allow
    resize = ResizeToPatches(16, 256)
    natural = np.maximum(-(-sizes // 16), 1).prod(axis=1)
    tokens = np.minimum(natural, resize.tokens(*sizes.T))
    rng = np.random.default_rng(1)
    table, rows = Table("order", "padded / real", "batches"), []
    order = rng.permutation(samples)
    size = budget // 256
    cut = [tokens[order[k : k + size]] for k in range(0, samples, size)]
    padded = sum(len(part) * int(part.max()) for part in cut)
    rows.append({"buckets": 0, "ratio": padded / int(tokens.sum()), "batches": len(cut)})
    dataset = Sizes(samples)
    dataset.transform = Compose([Resize((16, 16)), ToTensor()])
    for buckets in (1, 4, 16, 64):
        sampler = samplers.TokenBuckets(tokens, budget, buckets=buckets)
        with DataLoader(dataset, sampler=sampler, engine="null", device="cpu", seed=0) as loader:
            found = [tokens[plan.indices[: plan.valid]] for plan, _ in loader]
        assert sum(map(len, found)) == samples, "a sample is missing"
        assert max(len(part) * int(part.max()) for part in found) <= budget
        padded = sum(len(part) * int(part.max()) for part in found)
        rows.append({"buckets": buckets, "ratio": padded / int(tokens.sum()), "batches": len(found)})
    for row in rows:
        table.row(f"{row['buckets']} buckets" if row["buckets"] else "random", row["ratio"], row["batches"])
    return rows


def _network() -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for inside, out in ((3, 16), (16, 32), (32, 64), (64, 64)):
        layers += [torch.nn.Conv2d(inside, out, 3, stride=2, padding=1), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))


def _trained(batches: Any) -> int:
    torch.manual_seed(0)
    network, count = _network(), 0
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    for images, labels in batches:
        images = images.images if isinstance(images, collate.PaddedImages) else images
        loss = torch.nn.functional.cross_entropy(network(images), torch.as_tensor(labels) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count += len(labels)
    return count


def _counted(batches: Any) -> int:
    return sum(len(labels) for _, labels in batches)


def speeds(paths: list[str], rounds: int) -> dict[str, Any]:
    """Images per second with one shape, with eight, and padded, in turns; loading only, and with training."""
    eight = aspect_ratios(EDGE * EDGE, divisor=16, max_ratio=2.2)[:8]
    end = [RandomHorizontalFlip(), ToTensor()]
    labels = [0] * len(paths)
    bucketed = ImageList(paths, labels, transform=[ResizeToBucket(), *end])
    fitted = ImageList(paths, labels, transform=[Resize(EDGE - 40, max_size=EDGE + 30), *end])
    common: dict[str, Any] = {"device": "cpu", "engine": "dali", "num_workers": 2, "seed": 0, "drop_last": True}
    loaders = {
        "one shape": DataLoader(bucketed, 32, sampler=samplers.RandomShapes([(EDGE, EDGE)]), **common),
        "eight shapes": DataLoader(bucketed, 32, sampler=samplers.RandomShapes(eight), **common),
        "by aspect ratio": DataLoader(bucketed, 32, sampler=samplers.AspectRatioBuckets(eight), **common),
        "padded": DataLoader(fitted, 32, shuffle=True, collate_fn=collate.Padded(16), **common),
    }
    single = [DataLoader(bucketed, 32, sampler=samplers.RandomShapes([shape]), **common) for shape in eight]

    def speed(loader: DataLoader, work: Callable[[Any], int]) -> float:
        began = time.perf_counter()
        count = work(loader)
        return count / (time.perf_counter() - began)

    found: dict[str, dict[str, list[float]]] = {}
    for name, work in (("loading", _counted), ("training", _trained)):
        readings: dict[str, list[float]] = {key: [] for key in loaders}
        if work is _counted:
            readings["a graph for each shape"] = []
        for number in range(rounds + 1):  # the first round is not counted
            for key in (loaders, reversed(loaders))[number % 2]:
                readings[key].append(speed(loaders[key], work))
            if work is _counted:
                readings["a graph for each shape"].append(8 / sum(1 / speed(loader, work) for loader in single))
        found[name] = {key: values[1:] for key, values in readings.items()}
        table = Table(name, "images/s", "of one shape")
        for key, values in found[name].items():
            ratios = [v / one for v, one in zip(values, found[name]["one shape"], strict=True)]
            table.row(key, statistics.median(values), statistics.median(ratios))
    for loader in (*loaders.values(), *single):
        loader.close()
    return {"shapes": eight, "images_per_second": found}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path, nargs="?", help="photographs; made from numbers otherwise")
    p.add_argument("--samples", type=int, default=SAMPLES)
    p.add_argument("--rounds", type=int, default=7)
    args = p.parse_args()
    if args.samples < 100_000:
        p.error("give at least 100,000 samples: an epoch must have a thousand batches")
    result = {**heading(__doc__, args), "cores": len(os.sched_getaffinity(0))}
    result["plans"] = plans(args.samples)
    result["padding"] = padding()
    with photographs(args.folder, count=640) as paths:
        result["speeds"] = speeds(list(paths), args.rounds)
    print(save("buckets_cpu", result))


if __name__ == "__main__":
    main()
