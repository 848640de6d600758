"""What does decoding in Ray actors cost, what do they send, and what does an actor that dies or hangs cost?

Prediction (two CPU cores, actors and training on the same machine): nvImageCodec decodes a window in the actor, as DALI
does in the local loader. It takes 0.57 of the CPU time of Pillow, which decodes the whole file: 1.6 instead of 2.8 ms
per image on a busy machine. Ray costs 0.4 ms per image, so the total is 1.2 times the local loader's; it was 2.0 times
with Pillow. Two actors beside it on two cores reach 0.8 of its speed, one 0.6. A killed actor costs the images that it
was asked for, less than 0.7 s; one that stops without dying costs the patience of 2 s. With the actors' cache, a second
job with another seed costs 1.6 CPU ms per image.

Measured: ``imagenet.train(224)``, batches of 64, on DALI's engine; the candidates take turns in one process, the first
batches of each turn do not count. CPU time is that of this process and all processes of Ray. The networks are computed
from the measured bytes, at 94 % of their bits per second.

    python benchmarks/remote_decoding.py [FOLDER]     # needs ray; writes results/remote_decoding.json
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import ROOT, describe_files, heading, photographs, save

from gpupipe import DataLoader
from gpupipe.datasets import ImageList
from gpupipe.pipelines import imagenet
from gpupipe.system import cpu_seconds

BATCH = 64
WARM = 6
"""Batches of a turn that do not count: more than are in flight."""
NETWORKS = {"10 GbE": 10e9, "100 GbE": 100e9}
USABLE = 0.94


def loader_of(paths: list[str], **options: Any) -> DataLoader:
    dataset = ImageList(paths, labels=[0] * len(paths), transform=imagenet.train(size=224))
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 1, "device": "cpu", "num_workers": 2}
    return DataLoader(dataset, **common | {"infinite": True, "engine": "dali", "prefetch_factor": 3} | options)


def turn(batches: Iterator[Any], seconds: float) -> dict[str, float]:
    """Take batches for some seconds."""
    for _ in range(WARM):
        next(batches)
    began, cpu = time.perf_counter(), cpu_seconds()
    own = resource.getrusage(resource.RUSAGE_SELF)
    count = 0
    while time.perf_counter() - began < seconds:
        next(batches)
        count += BATCH
    took, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    now = resource.getrusage(resource.RUSAGE_SELF)
    mine = now.ru_utime - own.ru_utime + now.ru_stime - own.ru_stime
    per = 1e3 / count
    return {"images_per_second": count / took, "cpu_ms_per_image": cpu * per, "own_cpu_ms_per_image": mine * per}


def medians(turns: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in turns) for name in turns[0]}


def speeds(paths: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    from gpupipe.integrations.ray import Decoders

    decoders = {"1 actor": Decoders(1), "2 actors": Decoders(2)}
    for one in decoders.values():
        one.wait()
    loaders = {"local": loader_of(paths)} | {name: loader_of(paths, decoders=one) for name, one in decoders.items()}
    runs = {name: iter(loader) for name, loader in loaders.items()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for k in range(rounds):
        for name in (*runs,)[:: 1 if k % 2 else -1]:
            found[name].append(turn(runs[name], seconds))
            print(name, found[name][-1], flush=True)
    result: dict[str, Any] = {}
    for name, turns in found.items():
        of_local = [a["cpu_ms_per_image"] / b["cpu_ms_per_image"] for a, b in zip(turns, found["local"], strict=True)]
        speed = [a["images_per_second"] / b["images_per_second"] for a, b in zip(turns, found["local"], strict=True)]
        result[name] = medians(turns) | {
            "cpu_of_local": {"median": statistics.median(of_local), "min": min(of_local), "max": max(of_local)},
            "speed_of_local": {"median": statistics.median(speed), "min": min(speed), "max": max(speed)},
        }
        if name in decoders:
            stats = decoders[name].stats()
            result[name] |= {"bytes_per_image": stats["nbytes"] / stats["images"], "stats": stats}
    for loader in loaders.values():
        loader.close()
    for one in decoders.values():
        one.close()
    return result


def fault(paths: list[str], kind: str) -> dict[str, Any]:
    """The longest wait for a batch with an actor that is killed or stopped, and without."""
    import ray

    from gpupipe.integrations.ray import Decoders

    waits: list[float] = []
    with Decoders(2) as decoders, loader_of(paths, decoders=decoders) as loader:
        decoders.wait()
        pid = ray.get(decoders._actors[0].__ray_call__.remote(lambda self: os.getpid()))
        batches = iter(loader)
        for step in range(60):
            began = time.perf_counter()
            next(batches)
            waits.append(time.perf_counter() - began)
            if step == 30:
                os.kill(pid, signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
        if kind == "stopped":
            os.kill(pid, signal.SIGCONT)
        back = decoders.wait(60)
        stats = decoders.stats()
    usual = waits[WARM:31]
    return {
        "longest_wait_before": max(usual),
        "longest_wait_after": max(waits[31:]),
        "cost_seconds": max(waits[31:]) - statistics.median(usual),
        "decoders_afterwards": back,
        "stats": stats,
    }


def shared(paths: list[str], seconds: float) -> dict[str, Any]:
    """CPU time of a second job, with another seed, without and with the actors' cache."""
    from gpupipe.integrations.ray import Decoders

    result = {}
    for name in ("no cache", "cache"):
        made = Decoders(1) if name == "no cache" else Decoders(1, cache="ram", cache_bytes=1 << 30)
        with made as decoders:
            decoders.wait()
            with loader_of(paths, infinite=False, decoders=decoders) as first:
                for _ in first:
                    pass
            with loader_of(paths, decoders=decoders, seed=2) as second:
                result[name] = turn(iter(second), seconds)
                print("second job,", name, result[name], flush=True)
    return result


def networks(bytes_per_image: float, jpeg_bytes: float) -> dict[str, dict[str, float]]:
    """Images per second that a network carries."""
    each = {"windows": bytes_per_image, "jpeg": jpeg_bytes}
    return {
        name: {what: bits * USABLE / 8 / nbytes for what, nbytes in each.items()} for name, bits in NETWORKS.items()
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", nargs="?", type=Path)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=6.0)
    args = p.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")
    import ray

    with tempfile.TemporaryDirectory(prefix="gpupipe-bench-") as folder, photographs(args.folder, count=256) as paths:
        os.environ["GPUPIPE_CACHE"] = folder
        paths = list(itertools.islice(itertools.cycle(paths), max(len(paths), 8 * BATCH)))
        ray.init(
            address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
            object_store_memory=400 << 20,
        )  # fmt: skip
        result: dict[str, Any] = {
            **heading(__doc__, args), "ray": ray.__version__, "files": describe_files(paths), "batch": BATCH,
        }  # fmt: skip
        result["candidates"] = speeds(paths, args.rounds, args.seconds)
        result["faults"] = {kind: fault(paths, kind) for kind in ("killed", "stopped")}
        result["second_job"] = shared(paths, args.seconds)
        jpeg = result["files"]["mean_kilobytes"] * 1e3
        result["networks"] = networks(result["candidates"]["2 actors"]["bytes_per_image"], jpeg)
        print(result["faults"], result["networks"], save("remote_decoding", result), sep="\n")
        ray.shutdown()


if __name__ == "__main__":
    main()
