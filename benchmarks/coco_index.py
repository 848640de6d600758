"""How much memory and time does an annotation file as large as COCO's take, with polygons?

Prediction: less than 400 MB and 60 s for 118,287 images with 860,001 objects, where pycocotools keeps several GB, and
the index of the files, which is made once, is most of the time.

Measured: the numbers of images and objects of `train2017`, polygons of 8 to 44 points, and files that are hard links to
a few photographs. Every measurement is a fresh process; memory is what the process has for itself beyond what it had
before, after Python and malloc gave back what they could. `peak_mb` includes reading the file.

    python benchmarks/coco_index.py      # writes results/coco_index.json
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import Table, generate_photos, heading, memory_mb, save

KEYS = ("image_id", "boxes", "labels", "masks", "area", "iscrowd")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--images", type=int, default=118_287)
    p.add_argument("--objects", type=int, default=860_001)
    p.add_argument("--only", nargs=2, metavar=("WHAT", "FOLDER"), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.only:
        print(json.dumps(measured(WAYS[args.only[0]], Path(args.only[1]))))
        return
    del args.only
    result: dict[str, Any] = {**heading(__doc__, args), "ways": {}}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        result["annotations_mb"] = write(root, args.images, args.objects) / 1e6
        table = Table("way", "seconds", "MB", "peak MB")
        environment = {**os.environ, "XDG_CACHE_HOME": folder, "GPUPIPE_CACHE": folder}
        for name, way in (("first opening", "gpupipe"), ("second opening", "gpupipe"), ("pycocotools", "pycocotools")):
            command = [sys.executable, __file__, "--only", way, folder]
            made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            row = result["ways"][name] = json.loads(made.stdout.splitlines()[-1])
            table.row(name, row["seconds"], row["mb"], row["peak_mb"])
    print(save("coco_index", result))


def write(root: Path, images: int, objects: int) -> int:
    """Write files and annotations. Return the size of the latter."""
    photos = sorted(generate_photos(root / "photos", 8).rglob("*.jp*g"))
    (root / "train").mkdir()
    for i in range(images):
        os.link(photos[i % len(photos)], root / "train" / f"{i:012}.jpg")
    rng = np.random.default_rng(0)
    owners = np.sort(rng.integers(0, images, objects)).tolist()
    with open(root / "instances.json", "w") as file:
        names = [{"id": i, "file_name": f"{i:012}.jpg", "height": 480, "width": 640} for i in range(images)]
        file.write(f'{{"images": {json.dumps(names)}, "categories": [{{"id": 1, "name": "thing"}}], "annotations": [')
        shapes = []
        for _ in range(2000):
            points = np.round(rng.uniform(0, 480, 2 * rng.integers(8, 45)), 2).tolist()
            one = {"category_id": 1, "iscrowd": 0, "area": 500.25, "bbox": [10.5, 20.25, 30.0, 40.0]}
            shapes.append(json.dumps(one | {"segmentation": [points]})[1:])
        for k, owner in enumerate(owners):
            file.write(f'{", " if k else ""}{{"id": {k}, "image_id": {owner}, {shapes[k % len(shapes)]}')
        file.write("]}")
        return file.tell()


def measured(way: Callable[[Path], Any], root: Path) -> dict[str, float]:
    import torch  # noqa: F401 - neither is counted

    import gpupipe.datasets  # noqa: F401

    before, began = memory_mb(os.getpid())["uss"], time.perf_counter()
    kept = way(root)
    seconds = time.perf_counter() - began
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    mb = memory_mb(os.getpid())["uss"] - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    del kept
    return {"seconds": seconds, "mb": mb, "peak_mb": peak}


def _gpupipe(root: Path) -> Any:
    from gpupipe.datasets import CocoDetection

    dataset = CocoDetection(root / "train", root / "instances.json", target_keys=KEYS)
    assert dataset.sizes is not None
    assert len(dataset.sizes) == len(dataset)
    return dataset


def _pycocotools(root: Path) -> Any:
    from pycocotools.coco import COCO

    return COCO(root / "instances.json")


WAYS: dict[str, Callable[[Path], Any]] = {"gpupipe": _gpupipe, "pycocotools": _pycocotools}


if __name__ == "__main__":
    main()
