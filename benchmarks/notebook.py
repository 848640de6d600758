"""What does a notebook's Dataset of cv2.imread and albumentations gain from one changed import?

Prediction (two CPU cores), from CPU milliseconds per image of 500 x 375 pixels: torch's DataLoader takes 1.5 times as
many as the DALI engine. OpenCV's resize without a filter is as quick as ours, so what is gained is the window that is
decoded instead of all of the image, and normalizing and putting batches together.

Measured: random windows of 224 pixels, flips and normalizing; the candidates take turns in one run, each in a process
of its own, in steady state (see ``_candidates.py``), files in the page cache. Needs albumentations.

    python benchmarks/notebook.py [FOLDER]     # writes results/notebook_<cpu|gpu>.json
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from typing import Any

from _candidates import in_turns, ratio
from _common import Table, describe_files, heading, photographs, result_name, save
from _loaders import Job, Work
from _round_arguments import parsed, parser

BASE = "torch DataLoader + albumentations"
JOBS = [Job("gpupipe, DALI engine", "gpupipe-dali-albumentations"), Job(BASE, "albumentations")]


def measure(args: argparse.Namespace, paths: list[str]) -> dict[str, Any]:
    work = Work(tuple(paths), args.batch_size, args.workers, args.device, epoch=args.epoch)
    result: dict[str, Any] = {**heading(__doc__, args), "files": describe_files(paths)}
    for summaries, speed in in_turns(JOBS, work, args.rounds, args.seconds):
        result |= {"candidates": summaries, "ratios": {n: ratio(speed[n], speed[BASE]) for n in speed}}
    cpu = {name: found["cpu_ms_per_image"] for name, found in result["candidates"].items()}
    result["cpu_ratio"] = cpu[BASE] / cpu[JOBS[0].name]
    table = Table("", "images/s", "CPU ms/image")
    for name, found in result["candidates"].items():
        table.row(name, found["median_images_per_second"], found["cpu_ms_per_image"])
    table.row("ratio", result["ratios"][JOBS[0].name]["median"], result["cpu_ratio"])
    print(save(result_name("notebook", args), result))
    return result


def main() -> None:
    args = parsed(parser(__doc__, rounds=5, seconds=6.0, epoch=100_000))
    if importlib.util.find_spec("albumentations") is None:
        raise SystemExit("this needs albumentations: pip install albumentations")
    os.environ.setdefault(
        "NO_ALBUMENTATIONS_UPDATE", "1"
    )  # it asks the network for a newer release when it is imported
    with photographs(args.folder, count=256, ram=args.device == "cuda") as paths:
        measure(args, paths)


if __name__ == "__main__":
    main()
