"""Does it cost anything to keep images in a few large files instead of one file each?

Prediction (two CPU cores, files in the page cache): 0.98 to 1.02 of the folder's speed for whatever is a range of bytes
(tar, stored ZIP, TFRecord, RecordIO, HDF5, LMDB, plain Parquet, Arrow, MDS), since one ``pread`` takes 0.02 of about
2.5 CPU ms per image, and a file besides is opened and closed. Deflated ZIP 0.9: inflating runs at some 300 MB/s, and an
image here has some 100 kB. Parquet with Snappy 0.7 to 0.9: a page of a megabyte is unpacked for each image.

Measured: ``imagenet.train(224)`` on DALI and on the reference engine, each source in a process of its own, in turn in
one run, in steady state (see ``_candidates.py``). Before that the index of each source is built twice and opened once.

    python benchmarks/sources.py [FOLDER] [--sources NAME ...]    # writes results/sources_<cpu|gpu>.json
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from _candidates import Candidate, Reading, ratio, rounds, summary
from _common import Table, describe_files, machine, photographs, save
from _loaders import Job, Work, opened
from _round_arguments import parsed, parser

from gpupipe.testing.formats import WRITERS

BASE = "files"
SOURCES = (
    "tar",
    "zip",
    "zip-deflated",
    "tfrecord",
    "recordio",
    "hdf5",
    "lmdb",
    "parquet",
    "parquet-snappy",
    "arrow",
    "mds",
)


def opening(source: str, work: Work) -> dict[str, float]:
    """Seconds until a dataset is there, with an empty cache and with the index in it."""
    from gpupipe import datasets

    cache = tempfile.mkdtemp()
    before, os.environ["GPUPIPE_CACHE"] = os.environ.get("GPUPIPE_CACHE"), cache
    try:
        seconds = []
        for _ in range(2):
            began = time.perf_counter()
            if source == BASE:
                datasets.ImageList(list(work.paths), list(range(len(work.paths))))
            else:
                opened(source, dict(work.packed)[source])
            seconds.append(time.perf_counter() - began)
        return {"built": seconds[0], "opened": seconds[1]}
    finally:
        shutil.rmtree(cache)
        os.environ.pop("GPUPIPE_CACHE")
        if before is not None:
            os.environ["GPUPIPE_CACHE"] = before


def measure(args: argparse.Namespace, paths: list[str], folder: Path) -> dict[str, Any]:
    packed = []
    images = [Path(path).read_bytes() for path in paths]
    for name in args.sources:
        (folder / name).mkdir()
        packed.append((name, str(WRITERS[name](images, folder / name))))
    work = Work(tuple(paths), args.batch_size, args.workers, args.device, epoch=args.epoch, packed=tuple(packed))
    result: dict[str, Any] = {
        "question": (__doc__ or "").splitlines()[0],
        "machine": machine(),
        "files": describe_files(paths),
        "settings": {k: v for k, v in vars(args).items() if k != "folder"},
        "seconds_to_a_dataset": {name: opening(name, work) for name in (BASE, *args.sources)},
        "engines": {},
    }
    name = f"sources_{'gpu' if args.device == 'cuda' else 'cpu'}" + ("_dry_run" if args.dry_run else "")
    table = Table("engine", "source", "images/s", "CPU ms/image", "private MB", "ratio to files")
    for engine in ("gpupipe-dali", "gpupipe-torch"):
        candidates: list[Candidate] = []
        try:
            for source in (BASE, *args.sources):
                candidates.append(Candidate(Job(source, engine, source=source), work))
            readings: dict[str, list[Reading]] = {c.job.name: [] for c in candidates}
            for done in rounds(candidates, args.rounds, args.seconds):
                for source, reading in done.items():
                    readings[source].append(reading)
            speed = {n: [r.images_per_second for r in each] for n, each in readings.items()}
            found = {c.job.name: summary(c, readings[c.job.name]) for c in candidates}
            ratios = {n: ratio(speed[n], speed[BASE]) for n in speed}
            result["engines"][engine] = {"candidates": found, "ratios": ratios}
        finally:
            for candidate in candidates:
                candidate.close()
        for n, it in found.items():
            table.row(
                engine, n, it["median_images_per_second"], it["cpu_ms_per_image"], it["uss_mb"], ratios[n]["median"]
            )
        print(save(name, result))
    return result


def main() -> None:
    p = parser(__doc__, rounds=7, seconds=5.0, epoch=100_000)
    p.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES)
    args = parsed(p)
    with (
        photographs(args.folder, count=256, ram=args.device == "cuda") as paths,
        tempfile.TemporaryDirectory() as folder,
    ):
        measure(args, paths, Path(folder))


if __name__ == "__main__":
    main()
