"""What does ``gpupipe.augment`` cost on a CPU beside torchvision's transforms, called for one image after the other?

Both sides draw new numbers for each image. Prediction: gpupipe never takes longer than torchvision. It gains most with
small images, which it processes in groups, and where torchvision's Python code costs as much as the pixels.

Measured: batches of noise in memory, which take turns in one process, seconds by the clock; the ratio of each round,
and their median.

    python benchmarks/augment.py    # writes results/augment_cpu.json
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from _common import Table, heading, import_torchvision, save

import gpupipe

import_torchvision()

from torchvision.transforms import v2  # noqa: E402

END = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
IMAGENET = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()]
CASES: dict[str, tuple[tuple[int, int, int], list[Any]]] = {
    "crop, resize and flip": ((32, 256, 288), [*IMAGENET, *END]),
    "colors as well": ((32, 256, 288), [*IMAGENET, v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandomGrayscale(0.2), *END]),
    "RandAugment": ((32, 256, 288), [*IMAGENET, v2.RandAugment(), *END]),
    "CIFAR": ((256, 32, 32), [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), *END]),
    "CIFAR, colors": ((256, 32, 32), [v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4, 0.4), *END]),
}


def seconds(work: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="of torch, within each of its functions")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    table = Table("case", "batch", "torchvision ms", "gpupipe ms", "ratio")
    results = {}
    for name, ((count, height, width), transforms) in CASES.items():
        batch = torch.randint(256, (count, 3, height, width), dtype=torch.uint8)
        pipeline, steps = v2.Compose(transforms), itertools.count()

        def theirs(batch: Any = batch, pipeline: Any = pipeline) -> Any:
            return torch.stack([pipeline(image) for image in batch])

        def ours(batch: Any = batch, pipeline: Any = pipeline, steps: Any = steps) -> Any:
            return gpupipe.augment(batch, pipeline, seed=0, step=next(steps))

        assert ours().shape == theirs().shape
        pairs = [(seconds(theirs, 2), seconds(ours, 2)) for _ in range(arguments.rounds)]
        ratios = [b / a for a, b in pairs]
        ratio = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        a, b = (statistics.median(times) * 1000 for times in zip(*pairs, strict=True))
        table.row(name, f"{count} x 3 x {height} x {width}", f"{a:.1f}", f"{b:.1f}", f"{ratio['median']:.2f}")
        results[name] = {"batch": [count, 3, height, width], "torchvision_ms": a, "gpupipe_ms": b, "ratio": ratio}
    save("augment_cpu", {**heading(__doc__, arguments), "cases": results})


if __name__ == "__main__":
    main()
