"""How fast are tar files behind a network that is slow or fails, and does anything get lost?

Prediction (two CPU cores, of which the server on the loopback takes its share): what is decoded costs 2.5 CPU ms per
image and a request 0.2 to 0.5 here and 0.5 to 1 in the server, so samples by range at 0.75 to 0.9 of the local files
without delay; at 20 and 100 ms still so, since 64 requests are under way and 400 images per second need 40 of them.
5 % of requests that fail or are cut: a few per cent less. 5 % that take a second make nearly every batch wait for it,
of which prefetch_factor + 1 are under way: 190 images per second, or 0.5; 0.8 with ``prefetch_factor=8``. Nothing lost
and nothing twice in any of them.

Measured: ``imagenet.train(224)`` on DALI from tar files on ``s3://``, of which only the bytes of samples are asked for
and nothing is kept (``Remote(fetch="samples")``), each condition beside the local files in one run, in steady state
(see ``_candidates.py``). CPU time is told for each side alone, since a server on the same cores is no cost of the
client's. Then, in each condition, one epoch whose samples are counted. The server is that of the tests, which can be
slow and fail. (``rclone serve s3`` is none: it answers ranges with status 200, so that whole objects are loaded.)

    python benchmarks/remote.py [FOLDER] [--conditions NAME ...]    # writes results/remote.json
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from _candidates import in_turns, ratio
from _common import Table, describe_files, heading, photographs, save
from _loaders import Job, Work, opened
from _recipes import ours
from _round_arguments import parsed, parser
from format_cases import write_tar

from gpupipe.system import cpu_seconds

MEASURES = ("gpupipe/reading", "gpupipe/sources")
_SHARE = 0.05
"""Share of requests that are disturbed."""
_SLOW = 1.0
"""Seconds that a slow request takes."""


@dataclass(frozen=True)
class Condition:
    """Behavior of the server, and number of batches that a loader reads ahead."""

    delay: float = 0.0
    """Seconds before each answer."""
    fault: Literal["none", "503", "cut", "slow"] = "none"
    prefetch: int | None = None


CONDITIONS = {
    "0 ms": Condition(),
    "20 ms": Condition(0.02),
    "100 ms": Condition(0.1),
    "5 % fail": Condition(fault="503"),
    "5 % are cut": Condition(fault="cut"),
    "5 % are slow": Condition(fault="slow"),
    "5 % are slow, prefetch_factor=8": Condition(fault="slow", prefetch=8),
}


def _serve(pipe: Any, folder: str, condition: Condition) -> None:
    """A store with the files of a folder, in its own process, which also counts requests."""
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


class Server:
    """Start a store with the tar files of a folder in its own process."""

    def __init__(self, folder: Path, condition: Condition):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, str(folder), condition))
        self._process.start()
        theirs.close()
        self.environment, self.url = self._pipe.recv()

    def requests(self) -> int:
        """Return the number of requests."""
        self._pipe.send("count")
        return int(self._pipe.recv())

    def cpu(self) -> float:
        """Seconds so far."""
        return cpu_seconds(self._process.pid)

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(10)
        self._process.kill()


@contextmanager
def served(folder: Path, condition: Condition) -> Iterator[Server]:
    """A server that the environment tells S3's clients of."""
    server = Server(folder, condition)
    before = dict(os.environ)
    try:
        os.environ.update(server.environment)
        yield server
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.close()


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
    with served(folder, condition) as server:
        packed = (("tar", str(folder / "{000..001}.tar")), ("tar-samples", server.url))
        work = Work(tuple(paths), args.batch_size, args.workers, epoch=args.epoch, packed=packed)
        jobs = [Job(source, "gpupipe-dali", source=source, prefetch=condition.prefetch) for source, _ in packed]
        for candidates, speed in in_turns(jobs, work, args.rounds, args.seconds):
            result = {"candidates": candidates, "ratio_to_local": ratio(speed["tar-samples"], speed["tar"])}
        before, cpu = server.requests(), server.cpu()
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # a process keeps the client of its first server
            epoch: dict[str, Any] = pool.apply(counted, (server.url, args.batch_size, args.workers, len(paths)))
        epoch["requests"] = server.requests() - before
        epoch["server_cpu_ms_per_image"] = 1e3 * (server.cpu() - cpu) / len(paths)
        return {**result, "epoch": epoch}


def main() -> None:
    p = parser(__doc__, rounds=5, seconds=5.0, epoch=100_000)
    p.add_argument("--conditions", nargs="+", choices=tuple(CONDITIONS), default=tuple(CONDITIONS))
    args = parsed(p)
    result: dict[str, Any] = {**heading(__doc__, args), "conditions": {}}
    heads = ("condition", "images/s", "ratio", "CPU ms", "local", "server's", "requests", "lost", "twice", "bad")
    table = Table(*heads)
    with photographs(args.folder, count=256) as paths, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tar([Path(path).read_bytes() for path in paths], folder)
        result["files"] = describe_files(paths)
        for condition in args.conditions:
            found = measured(CONDITIONS[condition], paths, folder, args)
            result["conditions"][condition] = found
            remote, local = found["candidates"]["tar-samples"], found["candidates"]["tar"]
            epoch = found["epoch"]
            cpu = remote["cpu_ms_per_image"], local["cpu_ms_per_image"], epoch["server_cpu_ms_per_image"]
            counts = (epoch[key] for key in ("requests", "lost", "twice", "bad"))
            speed = remote["median_images_per_second"], found["ratio_to_local"]["median"]
            table.row(condition, *speed, *cpu, *counts)
            print(save("remote" + ("_dry_run" if args.dry_run else ""), result))


if __name__ == "__main__":
    main()
