"""What do transforms cost that a script wrote by hand with Pillow: as its own functions, and recognized?

Prediction (CPU seconds per image read, DALI's CPU engine): MoCo v2's two views 5 % less and DINO's two large and six
small ones 10 % less when they are recognized, because colors take the faster forms as soon as no user code stands
among the ops, and a function costs some 0.1 ms for random numbers that are lent to it. The blur is Pillow's in both.

Measured: one process; loaders take turns, whole epochs of the same files, by the CPU seconds of all threads
(``getrusage``) and by the clock. As user code: the same loader with ``gpupipe.interop.transforms.recognized`` switched
off.

    python benchmarks/handwritten.py [FOLDER]    # writes results/handwritten_cpu.json
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from _common import IMAGES, Table, describe_files, heading, import_torchvision, photographs, save
from PIL import ImageFilter, ImageOps

from gpupipe import DataLoader

import_torchvision()

from torchvision import datasets as tvd, transforms as tvt  # noqa: E402

RECOGNIZED, USER_CODE = "recognized", "user code"


class Blur:
    def __init__(self, p: float):
        self.p = p

    def __call__(self, image: Any) -> Any:
        if random.random() < self.p:
            return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
        return image


class Solarize:
    def __init__(self, p: float):
        self.p = p

    def __call__(self, image: Any) -> Any:
        return ImageOps.solarize(image) if random.random() < self.p else image


def view(size: int, scale: tuple[float, float], blur: float, solarize: float = 0.0) -> Any:
    jitter = tvt.RandomApply([tvt.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)
    by_hand = [Blur(blur)] + ([Solarize(solarize)] if solarize else [])
    return tvt.Compose(
        [
            tvt.RandomResizedCrop(size, scale),
            tvt.RandomHorizontalFlip(),
            jitter,
            tvt.RandomGrayscale(0.2),
            *by_hand,
            tvt.ToTensor(),
            tvt.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )


class Views:
    def __init__(self, *transforms: Any):
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        return [transform(image) for transform in self.transforms]


def moco() -> Any:
    one = view(224, (0.2, 1.0), 0.5)
    return Views(one, one)


def dino() -> Any:
    large = [view(224, (0.4, 1.0), 1.0), view(224, (0.4, 1.0), 0.1, 0.2)]
    return Views(*large, *[view(96, (0.05, 0.4), 0.5)] * 6)


RECIPES = {"MoCo v2": moco, "DINO": dino}


def loader_of(folder: Path, recipe: str, form: str, args: argparse.Namespace) -> Any:
    dataset = tvd.ImageFolder(str(folder), RECIPES[recipe]())
    options: dict[str, Any] = {"batch_size": args.batch_size, "shuffle": True, "num_workers": args.workers}
    options |= {"engine": "dali", "device": "cpu", "seed": 0}
    # Without user code the next epoch is begun ahead, and its work would be counted in the turn of the other loader.
    options["persistent_workers"] = False
    if form == RECOGNIZED:
        return DataLoader(dataset, **options)
    with mock.patch("gpupipe.interop.transforms.recognized", return_value=None):
        return DataLoader(dataset, **options)


@contextmanager
def one_class(paths: list[str]) -> Iterator[Path]:
    """A folder as ``ImageFolder`` takes it, with links to the files."""
    with tempfile.TemporaryDirectory(prefix="gpupipe-bench-") as folder:
        (Path(folder) / "all").mkdir()
        for i, path in enumerate(paths):
            os.symlink(Path(path).resolve(), Path(folder) / "all" / f"{i:06}.jpg")
        yield Path(folder)


def epoch(loader: Any) -> tuple[float, float]:
    """(CPU seconds, seconds)"""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in loader:
        pass
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return cpu, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES if IMAGES.is_dir() else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--images", type=int, default=256)
    args = parser.parse_args()
    table = Table("recipe", "user code, CPU ms", "recognized, CPU ms", "ratio", first=10)
    with photographs(args.folder, count=args.images) as paths, one_class(paths[: args.images]) as folder:
        paths = paths[: args.images]
        settings = {"images": len(paths), "rounds": args.rounds, "batch_size": args.batch_size}
        result: dict[str, Any] = {**heading(__doc__, settings), "files": describe_files(paths), "recipes": {}}
        for recipe in RECIPES:
            loaders = {form: loader_of(folder, recipe, form, args) for form in (USER_CODE, RECOGNIZED)}
            shown = {form: repr(loader) for form, loader in loaders.items()}
            assert "HandWritten(" in shown[RECOGNIZED] and "HandWritten(" not in shown[USER_CODE]
            for loader in loaders.values():
                epoch(loader)  # the first one starts threads
            rounds = [{form: epoch(loader) for form, loader in loaders.items()} for _ in range(args.rounds)]
            for loader in loaders.values():
                loader.close()
            row: dict[str, Any] = {}
            for form in loaders:
                cpu, clock = zip(*(found[form] for found in rounds), strict=True)
                per_image = 1000 / len(paths)
                row[form] = {"cpu_ms": statistics.median(cpu) * per_image, "ms": statistics.median(clock) * per_image}
            row["ratio_cpu"] = statistics.median(r[RECOGNIZED][0] / r[USER_CODE][0] for r in rounds)
            row["ratio_clock"] = statistics.median(r[RECOGNIZED][1] / r[USER_CODE][1] for r in rounds)
            result["recipes"][recipe] = row
            table.row(recipe, *(row[form]["cpu_ms"] for form in loaders), row["ratio_cpu"])
    print(save("handwritten_cpu", result))


if __name__ == "__main__":
    main()
