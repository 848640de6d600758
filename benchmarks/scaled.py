"""What does ``scaled=True`` bring for photographs of 3 and 12 megapixels, which are decoded smaller then?

libjpeg still reads all bits of a file, which is most of its time, and makes fewer pixels of them. On DALI a crop's
window alone becomes pixels anyway, and bilinear resizes are fast, so there is less to gain than on the reference, where
Pillow makes all pixels and resizes them slowly.

Predictions (two CPU cores, files in the page cache), CPU time of a full decode to that of a scaled one: training crops
of 3 megapixels on DALI 1.05, on the reference 1.6; of 12 megapixels 1.25 and 2.0; evaluation, which resizes whole
images, 1.3 and 1.7 at 3 megapixels, 1.5 and 2.2 at 12.

Measured: ``imagenet.train(224)`` and ``imagenet.val(224)``, each candidate in a process of its own, in turn in one run,
in steady state (see ``_candidates.py``). The photographs are those of the folder enlarged, with noise; so they hold
fewer fine details than photographs of that size.

    python benchmarks/scaled.py [FOLDER]     # writes results/scaled_cpu.json
"""

from __future__ import annotations

import argparse
import os
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from _candidates import in_turns, ratio
from _common import Table, describe_files, heading, photographs, result_name, save
from _loaders import Job, Work, left_out
from _round_arguments import parsed, parser
from PIL import Image

SIZES = {"3 megapixels": ((2016, 1512), 64), "12 megapixels": ((4000, 3000), 24)}
"""(width, height) and how many files."""


def sets_of(paths: list[str], folder: Path, few: bool) -> dict[str, tuple[str, ...]]:
    """The files of each set."""
    found = {}
    with get_context("spawn").Pool(min(16, os.cpu_count() or 1)) as pool:
        for name, (size, count) in SIZES.items():
            place = folder / name
            place.mkdir()
            some = paths[: 8 if few else count]
            pool.map(enlarged, [(path, str(place / f"{i:06d}.jpg"), size) for i, path in enumerate(some)])
            found[name] = tuple(sorted(str(p) for p in place.glob("*.jpg")))
    return found


def enlarged(arguments: tuple[str, str, tuple[int, int]]) -> None:
    """Encode a photograph again with this number of pixels along its longer and its shorter side, with noise."""
    source, target, large_size = arguments
    with Image.open(source) as image:
        size = large_size if image.width > image.height else large_size[::-1]
        large = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC), np.float32)
    noise = np.random.default_rng(0).normal(0, 4, large.shape)
    pixels = (large + noise).round().clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(target, quality=85, subsampling="4:2:0")


def jobs_of(files: str, recipe: str) -> list[Job]:
    jobs = [Job("torchvision", "torchvision", recipe=recipe, files=files)]
    for name, loader in (("DALI engine", "gpupipe-dali"), ("reference engine", "gpupipe-torch")):
        jobs += [
            Job(f"gpupipe, {name}{', scaled' * scaled}", loader, recipe=recipe, files=files, scaled=scaled)  # type: ignore[arg-type]
            for scaled in (False, True)
        ]
    return jobs


def measure(args: argparse.Namespace, paths: list[str], folder: Path) -> None:
    sets = sets_of(paths, folder, args.dry_run)
    work = Work(tuple(paths), args.batch_size, args.workers, epoch=args.epoch, sets=sets)
    result: dict[str, Any] = {
        **heading(__doc__, args),
        "files": {name: describe_files(files) for name, files in sets.items()},
        "sets": {},
    }
    table = Table("candidate", "images/s", "CPU ms/image", "PSS MB", "to unscaled", "by CPU time", "to torchvision")
    for files, recipe in [(files, recipe) for recipe in ("train", "val") for files in sets]:
        for found, speed in in_turns(left_out(jobs_of(files, recipe)), work, args.rounds, args.seconds):
            for name, it in found.items():
                full = name.removesuffix(", scaled")
                it["to_unscaled"] = ratio(speed[name], speed[full])
                it["to_unscaled_by_cpu_time"] = found[full]["cpu_ms_per_image"] / it["cpu_ms_per_image"]
                it["to_torchvision"] = ratio(speed[name], speed["torchvision"])
            result["sets"][f"{recipe}, {files}"] = found
        for name, it in found.items():
            unscaled, torchvision = (it[k]["median"] if k in it else None for k in ("to_unscaled", "to_torchvision"))
            cells = it["median_images_per_second"], it["cpu_ms_per_image"], it["pss_mb"]
            table.row(f"{recipe}, {files}: {name}", *cells, unscaled, it["to_unscaled_by_cpu_time"], torchvision)
        path = save(result_name("scaled", args), result)
    print(path)


def main() -> None:
    args = parsed(parser(__doc__, rounds=5, seconds=5.0, epoch=4_000))
    if args.device != "cpu":
        raise SystemExit("scaled=True is for a CPU: on a GPU nvJPEG decodes, and nothing smaller")
    with photographs(args.folder, count=64) as paths, tempfile.TemporaryDirectory() as folder:
        measure(args, paths, Path(folder))


if __name__ == "__main__":
    main()
