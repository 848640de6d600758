"""How fast is gpupipe beside every loader of photographs that people use, on a CPU?

Prediction: 2.3 times torch's DataLoader with torchvision for untouched JPEG files, as FFCV with its own format; 4.6
times with ``cache="ram"``, where FFCV's raw mode reaches 5; timm's loader 1.3, DALI's iterator 1.8, SPDL 0.85.

Measured: RandomResizedCrop(224), flip and normalize to float32; the candidates take turns in one run, each in a process
of its own, in steady state (see ``_candidates.py``), files in the page cache. FFCV and SPDL resize with other filters,
and FFCV's JPEG mode encodes the images again (``_image_peers.py``). A library that cannot be imported is left out.

    python benchmarks/image_peers.py [FOLDER]     # writes results/image_peers_cpu.json
"""

from __future__ import annotations

import argparse
from typing import Any

from _candidates import in_turns, ratio
from _common import Table, describe_files, heading, photographs, result_name, save
from _image_peers import missing_module
from _loaders import Job, Work
from _round_arguments import parsed, parser

BASE, HAND = "torch DataLoader + torchvision", "DALI by hand"
JOBS = [
    Job("gpupipe, DALI engine", "gpupipe-dali"),
    Job('gpupipe, cache="ram"', "gpupipe-dali", cache="ram"),
    Job("gpupipe, reference engine", "gpupipe-torch"),
    Job(BASE, "torchvision"),
    Job("torchvision v2 on tensors", "torchvision-tensors"),
    Job("timm", "timm"),
    Job(HAND, "dali-by-hand"),
    Job("DALIGenericIterator", "dali-iterator"),
    Job("FFCV, JPEG mode", "ffcv-jpeg"),
    Job("FFCV, raw mode", "ffcv-raw"),
    Job("SPDL", "spdl"),
]


def measure(args: argparse.Namespace, paths: list[str]) -> None:
    work = Work(tuple(paths), args.batch_size, args.workers, "cpu", epoch=args.epoch)
    result: dict[str, Any] = {**heading(__doc__, args), "files": describe_files(paths)}
    jobs = []
    for job in JOBS:
        if reason := missing_module(job.loader):
            print(f"left out: {job.name} ({reason})", flush=True)
        else:
            jobs.append(job)
    name = result_name("image_peers", args)
    for result["candidates"], speed in in_turns(jobs, work, args.rounds, args.seconds):
        result["ratios"] = {
            n: {"to_torchvision": ratio(speed[n], speed[BASE]), "to_by_hand": ratio(speed[n], speed[HAND])}
            for n in speed
        }
        path = save(name, result)  # every round, so that an interruption loses nothing
    table = Table("median", "images/s", "x torchvision", "CPU ms", "PSS MB", "USS MB")
    for n, row in result["candidates"].items():
        found = result["ratios"][n]["to_torchvision"]["median"]
        table.row(n, row["median_images_per_second"], found, row["cpu_ms_per_image"], row["pss_mb"], row["uss_mb"])
    print(path)


def main() -> None:
    args = parsed(parser(__doc__, rounds=7, seconds=3.0, epoch=20_000))
    with photographs(args.folder, count=256) as paths:
        measure(args, paths)


if __name__ == "__main__":
    main()
