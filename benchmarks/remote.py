"""How fast are tar files behind a network that is slow or fails, and does anything get lost?

Prediction (two CPU cores, a server on the loopback that is Python and takes its share of them): what is decoded costs
some 2.5 CPU ms per image and a request 0.2 to 0.5, so samples by range at 0.75 to 0.9 of the local files without delay;
at 20 ms still so, since 32 requests are under way and some 400 images per second need 8 of them; at 100 ms too, as long
as two batches in flight are more than 40 requests. 5 % of requests that fail or are cut: a few per cent less. 5 % that
take a second: 0.5 to 0.8, because batches come in order. Nothing lost and nothing twice in any of them.

Measured: ``imagenet.train(224)`` on DALI from tar files on ``s3://``, of which only the bytes of samples are asked for
and nothing is kept (``Remote(fetch="samples")``), each condition beside the local files in one run, in steady state
(see ``_candidates.py``). Then, in each condition, one epoch whose samples are counted.

    python benchmarks/remote.py [FOLDER] [--conditions NAME ...]    # writes results/remote.json
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from _candidates import in_turns, ratio
from _common import ROOT, Table, describe_files, machine, photographs, save
from _loaders import Job, Work, opened
from _recipes import ours
from _round_arguments import parsed, parser

from gpupipe.testing.formats import write_tar

_SHARE = 0.05
"""Of requests that something happens to."""
_SLOW = 1.0
"""Seconds that such a request takes if it is slow."""


@dataclass(frozen=True)
class Condition:
    """How the server behaves."""

    delay: float = 0.0
    """Seconds before each answer."""
    fault: Literal["none", "503", "cut", "slow"] = "none"


CONDITIONS = {
    "0 ms": Condition(),
    "20 ms": Condition(0.02),
    "100 ms": Condition(0.1),
    "5 % fail": Condition(fault="503"),
    "5 % are cut": Condition(fault="cut"),
    "5 % are slow": Condition(fault="slow"),
}


def _serve(pipe: Any, folder: str, condition: Condition) -> None:
    """A store with the files of a folder, in a process of its own; it is asked how many requests came."""
    sys.path.insert(0, str(ROOT / "tests"))
    import time

    from store import BUCKET, Asked, Fault, store

    draw = random.Random(0)

    def fault(asked: Asked) -> Fault:
        if condition.fault == "none" or draw.random() >= _SHARE:
            return "none"
        if condition.fault == "slow":
            time.sleep(_SLOW)
            return "none"
        return condition.fault

    with store() as found:
        found.objects = {f"{BUCKET}/{path.name}": path.read_bytes() for path in sorted(Path(folder).glob("*.tar"))}
        found.delay, found.fault = condition.delay, fault
        pipe.send((found.environment, f"s3://{BUCKET}/{{000..001}}.tar"))
        while pipe.recv() is not None:
            pipe.send(len(found.asked))


@contextmanager
def served(folder: Path, condition: Condition) -> Iterator[tuple[str, Any]]:
    """(URL of the tar files, a pipe that answers with the number of requests so far)"""
    pipe, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, str(folder), condition))
    process.start()
    before = dict(os.environ)
    try:
        environment, url = pipe.recv()
        os.environ.update(environment)
        yield url, pipe
    finally:
        os.environ.clear()
        os.environ.update(before)
        pipe.send(None)
        process.join(10)
        process.kill()


def requests(pipe: Any) -> int:
    pipe.send("count")
    return int(pipe.recv())


def counted(url: str, batch_size: int, workers: int, count: int) -> dict[str, int]:
    """One epoch: samples that were lost or came twice, and bad ones."""
    from gpupipe import DataLoader

    dataset = opened("tar-samples", url)
    dataset.transform = ours("train", 64)
    options: dict[str, Any] = {"num_workers": workers, "engine": "dali", "device": "cpu", "on_error": "skip"}
    with DataLoader(dataset, batch_size, shuffle=True, **options) as it:
        seen = Counter(label for _, labels in it for label in labels.tolist())
        bad = len(it.report().samples)
    lost, twice = len(set(range(count)) - seen.keys()), sum(n > 1 for n in seen.values())
    return {"samples": count, "lost": lost, "twice": twice, "bad": bad}


def measured(condition: Condition, paths: list[str], folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    with served(folder, condition) as (url, pipe):
        local = str(folder / "{000..001}.tar")
        packed = (("tar", local), ("tar-samples", url))
        work = Work(tuple(paths), args.batch_size, args.workers, epoch=args.epoch, packed=packed)
        jobs = [Job(source, "gpupipe-dali", source=source) for source, _ in packed]
        for candidates, speed in in_turns(jobs, work, args.rounds, args.seconds):
            result = {"candidates": candidates, "ratio_to_local": ratio(speed["tar-samples"], speed["tar"])}
        before = requests(pipe)
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # a process keeps the client of its first server
            epoch = pool.apply(counted, (url, args.batch_size, args.workers, len(paths)))
        return {**result, "epoch": {**epoch, "requests": requests(pipe) - before}}


def main() -> None:
    p = parser(__doc__, rounds=5, seconds=5.0, epoch=100_000)
    p.add_argument("--conditions", nargs="+", choices=tuple(CONDITIONS), default=tuple(CONDITIONS))
    args = parsed(p)
    result: dict[str, Any] = {"question": (__doc__ or "").splitlines()[0], "machine": machine(), "conditions": {}}
    table = Table("condition", "images/s", "ratio to local", "requests", "lost", "twice", "bad")
    with photographs(args.folder, count=256) as paths, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tar([Path(path).read_bytes() for path in paths], folder)
        result |= {"files": describe_files(paths), "settings": {k: v for k, v in vars(args).items() if k != "folder"}}
        for condition in args.conditions:
            found = measured(CONDITIONS[condition], paths, folder, args)
            result["conditions"][condition] = found
            speed = found["candidates"]["tar-samples"]["median_images_per_second"]
            epoch = found["epoch"]
            numbers = (epoch[key] for key in ("requests", "lost", "twice", "bad"))
            table.row(condition, speed, found["ratio_to_local"]["median"], *numbers)
            print(save("remote" + ("_dry_run" if args.dry_run else ""), result))


if __name__ == "__main__":
    main()
