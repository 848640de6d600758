"""Does it cost anything to keep images in a few large files instead of one file each?

Prediction (two CPU cores, files in the page cache): 0.98 to 1.02 of the folder's speed for whatever is a range of bytes
(tar, stored ZIP, TFRecord), since one ``pread`` takes 0.02 of about
2.5 CPU ms per image, and a file besides is opened and closed. Deflated ZIP 0.9: inflating runs at some 300 MB/s, and an
image here has some 100 kB.

Other libraries that read the same shards decode in torch's worker processes, with Pillow. Prediction for gpupipe on
DALI beside each of them, on two cores: 1.8 to 2.3 times as fast, as beside torch's DataLoader with torchvision.

Measured: ``imagenet.train(224)`` on DALI and on the reference engine, each source in a process of its own, in turn in
one run, in steady state (see ``_candidates.py``). Before that the index of each source is built twice and opened once.

    python benchmarks/sources.py [FOLDER] [--sources NAME ...] [--peers NAME ...]

writes results/sources_<cpu|gpu>.json and results/peers_<cpu|gpu>.json.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _candidates import in_turns, ratio
from _common import Table, describe_files, heading, photographs, result_name, save
from _loaders import Job, Work, opened
from _peers import PEERS, missing
from _round_arguments import parsed, parser
from format_cases import CASES

MEASURES = ("benchmarks/_peers.py", "gpupipe/formats", "gpupipe/reading", "gpupipe/sources")
BASE = "files"
SOURCES = ("tar", "zip", "zip-deflated", "tfrecord")


def opening(source: str, work: Work) -> dict[str, float]:
    """Measure the seconds until a dataset is ready, with an empty cache and with the index in it."""
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


def packed(names: Iterable[str], paths: list[str], folder: Path) -> tuple[tuple[str, str], ...]:
    """(format, where it is) of the same images in every format."""
    images, made = [Path(path).read_bytes() for path in paths], []
    for name in dict.fromkeys(names):
        (folder / name).mkdir()
        made.append((name, str(CASES[name].write(images, folder / name))))
    return tuple(made)


def compared(jobs: list[Job], base: str, work: Work, args: argparse.Namespace) -> dict[str, Any]:
    """Readings of candidates in one run, and ratios to one of them."""
    for found, speed in in_turns(jobs, work, args.rounds, args.seconds):
        result = {"candidates": found, "ratios": {name: ratio(speed[name], speed[base]) for name in speed}}
    return result


def against_peers(work: Work, args: argparse.Namespace) -> dict[str, Any]:
    """Measure other libraries on the shards that they read, each compared with gpupipe on the same shards."""
    result: dict[str, Any] = {}
    for peer in args.peers:
        if (why := missing(peer)) is not None:
            print(f"left out: {peer} ({why})", flush=True)
            continue
        source = PEERS[peer][0]
        jobs = [Job(peer, peer, source=source), Job("gpupipe", "gpupipe-dali", source=source)]
        try:
            result[peer] = {"format": source, **compared(jobs, peer, work, args)}
        except RuntimeError as e:  # such as a torchvision that cannot decode, which some of them need
            print(f"left out: {peer} ({str(e).strip().splitlines()[-1]})", flush=True)
    return result


def measure(args: argparse.Namespace, paths: list[str], folder: Path) -> None:
    formats = packed([*args.sources, *(PEERS[peer][0] for peer in args.peers)], paths, folder)
    work = Work(tuple(paths), args.batch_size, args.workers, args.device, epoch=args.epoch, packed=formats)
    about = {**heading(__doc__, args), "files": describe_files(paths)}
    table = Table("engine", "source", "images/s", "CPU ms/image", "private MB", "ratio")
    if args.sources:
        names = (BASE, *args.sources)
        opened_in, engines = {name: opening(name, work) for name in names}, {}
        for engine in ("gpupipe-dali", "gpupipe-torch"):
            engines[engine] = compared([Job(source, engine, source=source) for source in names], BASE, work, args)
            show(table, engine, engines[engine])
            result = {**about, "seconds_to_a_dataset": opened_in, "engines": engines}
            print(save(result_name("sources", args), result))
    if args.peers:
        found = against_peers(work, args)
        for peer, readings in found.items():
            show(table, f"beside {peer}", readings)
        print(save(result_name("peers", args), {**about, "peers": found}))


def show(table: Table, what: str, found: dict[str, Any]) -> None:
    for name, it in found["candidates"].items():
        values = it["median_images_per_second"], it["cpu_ms_per_image"], it["uss_mb"]
        table.row(what, name, *values, found["ratios"][name]["median"])


def main() -> None:
    p = parser(__doc__, rounds=7, seconds=5.0, epoch=100_000)
    p.add_argument("--sources", nargs="*", choices=SOURCES, default=SOURCES)
    p.add_argument("--peers", nargs="*", choices=tuple(PEERS), default=tuple(PEERS))
    args = parsed(p)
    with (
        photographs(args.folder, count=256, ram=args.device == "cuda") as paths,
        tempfile.TemporaryDirectory() as folder,
    ):
        measure(args, paths, Path(folder))


if __name__ == "__main__":
    main()
