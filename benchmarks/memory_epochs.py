"""Does memory grow with epochs?

Prediction: after epoch 20 each engine holds at most 1.03 times what it held after epoch 2 (the middle of epochs 18, 19
and 20 over the middle of 2, 3 and 4, because what is in flight at the end of an epoch varies). "It" is the tree's own
memory. PSS and USS are there too, but they also move by the pages of torch's libraries: what one process pays for them
depends on how many others of the machine, whoever started them, have them mapped.

Measured: own memory, PSS and USS of the process tree and, where there is one, what is used of the GPU's memory, at the
end of every epoch, while the loader is alive; each engine in a process of its own, one after the other. DALI's buffers
belong to places in the batch, and grow until every place has held a large image. That is a matter of how many images it
has seen, not of epochs, and the same in a graph written by hand, which is measured beside it. So an epoch must be long
enough.

    python benchmarks/memory_epochs.py [FOLDER]      # writes results/memory_epochs_<cpu|gpu>.json
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _common import IMAGES, Table, describe_files, gpu_memory_mb, heading, memory_mb, photographs, result_name, save
from _loaders import Job, Work

from gpupipe import DataLoader, datasets
from gpupipe.pipelines import imagenet

MEASURES = ("gpupipe/engines", "gpupipe/loader", "gpupipe/reading")
FIRST, TARGET = 2, 1.03


def epochs(engine: Any, paths: list[str], args: argparse.Namespace) -> Iterator[Iterable[Any]]:
    """The batches of every epoch."""
    if engine == "dali-by-hand":
        work = Work(tuple(paths), args.batch_size, args.workers, args.device, epoch=len(paths))
        batches = Job(engine, "dali-by-hand").batches(work)
        for _ in range(args.epochs):
            yield islice(batches, -(-len(paths) // args.batch_size))
        return
    loader = DataLoader(
        datasets.ImageList(paths, list(range(len(paths))), transform=imagenet.train(224)),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        device=args.device,
        engine=engine,
        seed=0,
    )
    with loader:
        for _ in range(args.epochs):
            yield loader


def serve(pipe: Any, engine: str, paths: list[str], args: argparse.Namespace) -> None:
    """Sends the memory in MB after every epoch, then ``None``."""
    multiprocessing.set_start_method("fork", force=True)
    for epoch in epochs(engine, paths, args):
        for _batch in epoch:
            pass
        del _batch
        memory: dict[str, float | None] = {**memory_mb(os.getpid())}
        if args.device == "cuda":
            torch.cuda.synchronize()
            memory["gpu"] = gpu_memory_mb()
        pipe.send(memory)
    pipe.send(None)


def measure(engine: str, paths: list[str], args: argparse.Namespace) -> list[dict[str, float]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, engine, paths, args))
    process.start()
    theirs.close()
    rows: list[dict[str, float]] = []
    table = Table(f"{engine}, epoch", *(["PSS MB", "USS MB", "own MB"] + (["GPU MB"] if args.device == "cuda" else [])))
    try:
        while (row := ours.recv()) is not None:
            rows.append(row)
            table.row(str(len(rows)), *row.values())
    finally:
        process.join()
    return rows


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", nargs="?", type=Path, help="JPEG files; real photographs beside the checkout, or made")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--images", type=int, default=4_160, help="of one epoch; the files are repeated")
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--dry-run", action="store_true", help="few images; the result goes to the temporary folder")
    args = p.parse_args()
    if args.dry_run:
        args.epochs, args.images = FIRST + 5, 128
    if args.epochs < FIRST + 5:
        raise SystemExit(f"--epochs must be at least {FIRST + 5}")
    folder = args.folder or (IMAGES if IMAGES.is_dir() else None)
    with photographs(folder, count=256) as found:
        paths = (found * -(-args.images // len(found)))[: args.images]
        result: dict[str, Any] = {
            **heading(__doc__, args),
            "files": describe_files(found),
            "target_ratio": TARGET,
            "engines": {},
        }
        name = result_name("memory_epochs", args)
        for engine in ("dali", "torch", "dali-by-hand"):
            rows = measure(engine, paths, args)
            early, late = rows[FIRST - 1 : FIRST + 2], rows[-3:]
            growth = {kind: median(r[kind] for r in late) / median(r[kind] for r in early) for kind in rows[0]}
            result["engines"][engine] = {"growth": growth, "megabytes_after_each_epoch": rows}
            path = save(name, result)
            shown = ", ".join(f"{kind} {value:.3f}" for kind, value in growth.items())
            print(
                f"{engine}: memory after {args.epochs} epochs over after {FIRST}: {shown}; target {TARGET}", flush=True
            )
    print(path)


if __name__ == "__main__":
    main()
