"""What does the end of an epoch cost, with epochs of 13 batches?

Prediction (two CPU cores): the DALI engine reaches at least 1.2 times DALI's own reader by hand, which reads over the
ends of its epochs, as with long epochs; and 1.15 times itself with epochs apart, where queues run empty at every end.
The reference engine gains as much.

Measured: RandomResizedCrop(224), flip and normalize to float32 NCHW; the candidates take turns in one run, each in a
process of its own, in steady state over many epochs (see ``_candidates.py``), files in the page cache. "Epochs apart"
begins nothing before the epoch that it belongs to.

    python benchmarks/seam.py [FOLDER] [--epoch 832]     # writes results/seam_<cpu|gpu>.json
"""

from __future__ import annotations

import argparse
from typing import Any

from _candidates import in_turns, ratio
from _common import Table, describe_files, heading, photographs, result_name, save
from _loaders import Job, Work
from _round_arguments import parsed, parser

OURS, HAND, APART = "gpupipe, DALI engine", "DALI by hand", "gpupipe, DALI engine, epochs apart"
REFERENCE, REFERENCE_APART = "gpupipe, reference engine", "gpupipe, reference engine, epochs apart"
BASE = "torch DataLoader + torchvision"
JOBS = [
    Job(OURS, "gpupipe-dali"),
    Job(HAND, "dali-by-hand"),
    Job(APART, "gpupipe-dali", apart=True),
    Job(REFERENCE, "gpupipe-torch"),
    Job(REFERENCE_APART, "gpupipe-torch", apart=True),
    Job(BASE, "torchvision"),
]
PAIRS = (OURS, HAND), (OURS, APART), (REFERENCE, REFERENCE_APART), (OURS, BASE)


def measure(args: argparse.Namespace, paths: list[str]) -> None:
    epoch = (paths * -(-args.epoch // len(paths)))[: args.epoch]
    work = Work(tuple(epoch), args.batch_size, args.workers, args.device, epoch=len(epoch))
    result: dict[str, Any] = {
        **heading(__doc__, args),
        "files": describe_files(epoch),
    }
    name = result_name("seam", args)
    for result["candidates"], speed in in_turns(JOBS, work, args.rounds, args.seconds):
        result["ratios"] = {f"{a} / {b}": ratio(speed[a], speed[b]) for a, b in PAIRS}
        path = save(name, result)  # every round, so that an interruption loses nothing
    table = Table("median", "images/s", "CPU ms", "PSS MB")
    for n, row in result["candidates"].items():
        table.row(n, row["median_images_per_second"], row["cpu_ms_per_image"], row["pss_mb"])
    table = Table("ratio", "median", "least", "most", first=72)
    for n, found in result["ratios"].items():
        table.row(n, found["median"], found["min"], found["max"])
    print(path)


def main() -> None:
    args = parsed(parser(__doc__, rounds=7, seconds=6.0, epoch=13 * 64))
    with photographs(args.folder, count=256, ram=args.device == "cuda") as paths:
        measure(args, paths)


if __name__ == "__main__":
    main()
