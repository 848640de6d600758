"""What do sliceable JPEGs bring (``gpupipe pack --sliceable``), beside the files that they were made of?

Predictions (two CPU cores, files in the page cache), to the untouched files in the same engine. Of a window of
``RandomResizedCrop`` 0.55 of the bytes are read and decoded. DALI leaves the columns beside a window and the rows below
it out of all but entropy decoding already, so of its 2.1 CPU ms per photograph of 0.2 megapixels 0.2 are saved: 1.1.
Pillow decodes whole files, in 1.6 of the reference's 3.6 CPU ms, and then half of that: 1.3. Of photographs of 3
megapixels decoding is nearly all there is: 1.4 on DALI, 1.7 on the reference; with ``scaled=True`` as well, which makes
fewer pixels of them, 2 and 3.

Seen: of the small photographs 0.9 to 1.1 on DALI, because restart markers and cutting cost nearly what they spare, and
1.2 to 1.3 on the reference; of the large ones 1.1 and 1.2 to 1.6. With ``scaled=True`` 1.0 and 2.3: on DALI
Pillow's resize takes what fewer pixels spare.

Measured: ``imagenet.train(224)``, each candidate in a process of its own, in turn in one run, in steady state (see
``_candidates.py``). The large photographs are the others enlarged, with noise, because those of ImageNet are small.

    python benchmarks/sliceable.py [FOLDER]     # needs jpegtran; writes results/sliceable_<cpu|gpu>.json
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from _candidates import in_turns, ratio
from _common import Table, describe_files, heading, photographs, result_name, save
from _loaders import Job, Work, left_out
from _round_arguments import parsed, parser
from PIL import Image

from gpupipe.pack.folder import FolderWriter, Written, find, pack_folder
from gpupipe.pack.journal import Journal
from gpupipe.pack.sliceable import Sliceable

LARGE = (2016, 1512)
PHOTOGRAPHS = "photographs"


def enlarged(arguments: tuple[str, str, tuple[int, int]]) -> None:
    """Encode a photograph again with this number of pixels along its longer and its shorter side, with noise."""
    source, target, large_size = arguments
    with Image.open(source) as image:
        size = large_size if image.width > image.height else large_size[::-1]
        large = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC), np.float32)
    noise = np.random.default_rng(0).normal(0, 4, large.shape)
    pixels = (large + noise).round().clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(target, quality=85, subsampling="4:2:0")


def _cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended, jpegtran among them."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def packed(source: Path, target: Path, processes: int) -> dict[str, float]:
    """Make a sliceable copy; what it took."""
    form = Sliceable()
    samples, _ = find(str(source), (".jpg", ".jpeg"), lambda done: None)
    began, used = time.perf_counter(), _cpu_seconds()
    with (
        closing(Journal(str(target), {"source": str(source), "form": str(form)}, Written)) as journal,
        closing(FolderWriter(str(target))) as writer,
    ):
        written, _ = pack_folder(
            str(source), samples, form, writer, journal, processes=processes, progress=lambda done: None
        )
    made = [w for w in written if not w.kind]
    return {
        "files": len(written),
        "rewritten": len(made),
        "files_per_second": len(written) / (time.perf_counter() - began),
        "cpu_ms_per_file": 1e3 * (_cpu_seconds() - used) / len(written),
        "growth": sum(w.written for w in made) / sum(w.size for w in made) - 1,
    }


def sets_of(paths: list[str], folder: Path, workers: int) -> tuple[dict[str, tuple[str, ...]], dict[str, Any]]:
    """(the files of each set, what packing took)"""
    plain = {PHOTOGRAPHS: folder / "photographs", "3 megapixels": folder / "large"}
    for place in plain.values():
        place.mkdir()
    for i, path in enumerate(paths):
        (plain[PHOTOGRAPHS] / f"{i:06d}.jpg").symlink_to(path)
    jobs = [(path, str(plain["3 megapixels"] / f"{i:06d}.jpg"), LARGE) for i, path in enumerate(paths[:64])]
    with get_context("spawn").Pool(min(16, os.cpu_count() or 1)) as pool:
        pool.map(enlarged, jobs)
    found, packing = {}, {}
    for name, place in plain.items():
        other = place.with_name(f"{place.name} packed")
        packing[name] = packed(place, other, workers)
        for kind, root in ((name, place), (f"{name}, sliceable", other)):
            found[kind] = tuple(sorted(str(p) for p in root.glob("*.jpg")))
    return found, packing


def measure(args: argparse.Namespace, paths: list[str], folder: Path) -> dict[str, Any]:
    sets, packing = sets_of(paths, folder, args.workers)
    work = Work(tuple(paths), args.batch_size, args.workers, args.device, epoch=args.epoch, sets=sets)
    result: dict[str, Any] = {
        **heading(__doc__, args),
        "files": {name: describe_files(files) for name, files in sets.items()},
        "packing": packing,
        "sets": {},
    }
    name = result_name("sliceable", args)
    table = Table("candidate", "images/s", "CPU ms/image", "private MB", "to untouched", "to torchvision")
    for base in packing:
        jobs = [Job(f"{base}, torchvision", "torchvision", files=base)]
        for loader in ("gpupipe-dali", "gpupipe-torch"):
            jobs += [Job(f"{files}, {loader}", loader, files=files) for files in (base, f"{base}, sliceable")]
            if base != PHOTOGRAPHS:
                jobs.append(
                    Job(f"{base}, sliceable, {loader}, scaled", loader, files=f"{base}, sliceable", scaled=True)
                )
        for found, speed in in_turns(left_out(jobs), work, args.rounds, args.seconds):
            for n, it in found.items():
                it["to_untouched"] = ratio(speed[n], speed[n.replace(", sliceable", "").replace(", scaled", "")])
                if f"{base}, torchvision" in speed:
                    it["to_torchvision"] = ratio(speed[n], speed[f"{base}, torchvision"])
            result["sets"][base] = found
        for n, it in found.items():
            beside = [it[key]["median"] if key in it else None for key in ("to_untouched", "to_torchvision")]
            table.row(n, it["median_images_per_second"], it["cpu_ms_per_image"], it["uss_mb"], *beside)
        print(save(name, result))
    return result


def main() -> None:
    p = parser(__doc__, rounds=7, seconds=5.0, epoch=20_000)
    args = parsed(p)
    with (
        photographs(args.folder, count=256, ram=args.device == "cuda") as paths,
        tempfile.TemporaryDirectory(dir="/dev/shm" if args.device == "cuda" else None) as folder,
    ):
        measure(args, paths, Path(folder))


if __name__ == "__main__":
    main()
