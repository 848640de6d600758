"""What does a script's own Dataset cost beside torch's loader and beside the same files as a planned ImageFolder?

Prediction: CPU per photograph at most 1.2 of ImageFolder's, at most 0.25 ms of it not for pixels, and at least twice as
fast as torch with two workers.

An own Dataset of photographs (RandomResizedCrop(224), flip, ToTensor, Normalize) and ``ImageFolder`` run in turns, with
torch's loader, live, live without pixels (everything but the engine), and planned; and torch's loader over a Dataset
that only opens files and draws numbers, which every loader that runs the script's own code has to do. A loader is made
once and warmed up by an epoch. CPU time counts this process and its workers. Ratios are of the same round.

    python benchmarks/live_loaders.py [--images N] [--epoch N ...] [--workers N ...] [--rounds N]
                                                                               # writes results/live_loaders_cpu.json
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from _common import Table, heading, import_torchvision, photographs, save
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader, Subset

import gpupipe
from gpupipe.live.making import Maker, Making
from gpupipe.live.recipe import Recipe

torchvision = import_torchvision()
T = torchvision.transforms

MEASURES = ("gpupipe/engines/dali", "gpupipe/engines/host", "gpupipe/kernels", "gpupipe/live", "gpupipe/reading")
TRANSFORM = T.Compose(
    [
        T.RandomResizedCrop(224),
        T.RandomHorizontalFlip(),
        T.ToTensor(),
        T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)
BATCH = 64


class Photographs(torch.utils.data.Dataset[Any]):
    """A Dataset as scripts write it."""

    def __init__(self, paths: list[str], transform: Any):
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


class Draws(Photographs):
    """Opens a file and draws the numbers of the transform."""

    def __getitem__(self, index: int) -> Any:
        crop, flip, *_ = TRANSFORM.transforms
        with Image.open(self.paths[index]) as image:
            window = crop.get_params(image, crop.scale, crop.ratio)
        return torch.tensor(window), torch.rand(1) < flip.p


class _NoPixels(Maker, Making):
    """Makes tensors of the right shape."""

    def __init__(self) -> None:
        self._jobs: list[Any] = []

    def start(self, recipe: Recipe) -> Making:
        made = _NoPixels()
        made._jobs = recipe.jobs
        return made

    def result(self) -> list[torch.Tensor]:
        return [torch.empty(len(job.sources), *job.shape, dtype=job.dtype) for job in self._jobs]

    def give_up(self) -> None:
        pass

    def close(self) -> None:
        pass


def loader_of(way: str, own: Any, folder: Any, workers: int) -> Any:
    given: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": workers}
    if way == "torch":
        return TorchLoader(own, **given)
    if way == "draws":
        return TorchLoader(Draws(own.paths, own.transform), **given)
    if way == "planned":
        return gpupipe.DataLoader(folder, device="cpu", **given)
    loader = gpupipe.DataLoader(own, device="cpu", **given)
    if way == "without pixels":
        session: Any = loader._session
        session._maker = _NoPixels()
    return loader


def _cpu_seconds() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def epoch(loader: Any) -> dict[str, float]:
    began, busy, count = time.perf_counter(), _cpu_seconds(), 0
    first = 0.0
    for images, _ in loader:
        first = first or time.perf_counter() - began
        count += len(images)
    wall = time.perf_counter() - began
    return {"wall": wall / count, "cpu": (_idle() - busy) / count, "first": first}


def _idle() -> float:
    """Return the CPU seconds when nothing runs. A planned loader makes batches of its next epoch when one has ended."""
    before = -1.0
    while (now := _cpu_seconds()) - before > 0.02:
        before = now
        time.sleep(0.2)
    return now


def sent_bytes(own: Any) -> float:
    """Return the bytes of a sample that a worker sends, without the encoded image, which lies in shared memory."""
    sizes: list[int] = []
    received = Connection.recv_bytes

    def noted(connection: Any, *given: Any) -> bytes:
        sizes.append(len(found := received(connection, *given)))
        return found

    with gpupipe.DataLoader(own, BATCH, device="cpu", num_workers=1) as loader:
        next(iter(loader))  # memory is sent once
        Connection.recv_bytes = noted  # type: ignore[assignment, method-assign]
        try:
            for _ in loader:
                pass
        finally:
            Connection.recv_bytes = received  # type: ignore[method-assign]
    return sum(sizes) / len(own)


WAYS = ("torch", "live", "without pixels", "draws", "planned")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="photographs; generated by default")
    parser.add_argument("--images", type=int, default=640, help="number of generated photographs")
    parser.add_argument("--epoch", type=int, nargs="+", default=[640, 2610], help="photographs in an epoch")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {**heading(__doc__, args), "cases": []}
    table = Table(
        "epoch, workers, way", "wall ms", "CPU ms", "first s", "torch wall", "torch CPU", "of planned", first=34
    )
    with photographs(args.folder, count=args.images, ram=True) as paths:
        tree = torchvision.datasets.ImageFolder(os.path.commonpath(paths), TRANSFORM)
        for count in args.epoch:
            chosen = [number % len(paths) for number in range(count)]
            own, folder = Photographs([paths[n] for n in chosen], TRANSFORM), Subset(tree, chosen)
            for workers in args.workers:
                loaders = {way: loader_of(way, own, folder, workers) for way in WAYS}
                found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
                for number in range(args.rounds + 1):
                    for way in WAYS if number % 2 else WAYS[::-1]:
                        took = epoch(loaders[way])
                        if number:
                            found[way].append(took)
                for loader in loaders.values():
                    if isinstance(loader, gpupipe.DataLoader):
                        loader.close()
                case: dict[str, Any] = {"epoch": count, "workers": workers}
                for way in WAYS:
                    told = {key: statistics.median(t[key] for t in found[way]) for key in ("wall", "cpu", "first")}
                    for clock in ("wall", "cpu"):
                        pairs = zip(found["torch"], found[way], strict=True)
                        told[f"torch's {clock}"] = statistics.median(a[clock] / b[clock] for a, b in pairs)
                    pairs = zip(found[way], found["planned"], strict=True)
                    told["of planned"] = statistics.median(a["cpu"] / b["cpu"] for a, b in pairs)
                    case[way] = told
                    cells = 1e3 * told["wall"], 1e3 * told["cpu"], *list(told.values())[2:]
                    table.row(f"{count}, {workers}, {way}", *cells)
                result["cases"].append(case)
                path = save("live_loaders_cpu", result)
        result["sent bytes per sample"] = sent_bytes(Photographs(8 * paths[:BATCH], TRANSFORM))
        print(f"{result['sent bytes per sample']:.0f} bytes are sent per sample, besides the image in shared memory")
        path = save("live_loaders_cpu", result)
    print(path)


if __name__ == "__main__":
    main()
