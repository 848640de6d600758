"""What could sliceable JPEGs bring at most: the CPU time of each step for itself, and nothing between the steps?

Prediction: of photographs of some hundred thousand pixels a whole file's window and a cut cost DALI nearly the same,
since it leaves rows below a window out, and restart markers make entropy decoding a seventh slower; so cutting brings
nothing there. Of 3 megapixels all steps together, with the fastest decoder of the package index, are more than a 4.5th
of the CPU time of torch's loader with torchvision (``sliceable.py``), so no loader made of them is 4.5 times as fast.

Measured: one thread, files in the page cache, the windows of ``imagenet.train(224)``; the least of the rounds, in ms of
CPU time of the process per image. simplejpeg is measured beside DALI's decoder if it is installed.

    python benchmarks/sliceable_floor.py [FOLDER]     # writes results/sliceable_floor_cpu.json
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import IMAGES, Table, describe_files, heading, photographs, save
from sliceable import sets_of

from gpupipe import datasets
from gpupipe.engines.forms.image_threads import ImageThreads
from gpupipe.pipelines import imagenet
from gpupipe.reading.cuts import Cuts
from gpupipe.types import Plan

Box = Sequence[int]
"""Top, left, height and width."""


def dali_decoder() -> Callable[[list[bytes], list[Box]], list[np.ndarray[Any, Any]]]:
    """Decodes windows, in one thread."""
    import nvidia.dali.fn as fn
    from nvidia.dali import types
    from nvidia.dali.pipeline import Pipeline

    pipe = Pipeline(batch_size=64, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipe:
        start, shape = (fn.external_source(name=name, dtype=types.INT32, ndim=1) for name in ("start", "shape"))
        raw = fn.external_source(name="raw", dtype=types.UINT8, ndim=1)
        pipe.set_outputs(fn.decoders.image_slice(raw, start=start, shape=shape, axes=[0, 1], output_type=types.RGB))
    pipe.build()

    def decode(files: list[bytes], boxes: list[Box]) -> list[np.ndarray[Any, Any]]:
        pipe.feed_input("raw", [np.frombuffer(file, np.uint8) for file in files])
        pipe.feed_input("start", [np.array(box[:2], np.int32) for box in boxes])
        pipe.feed_input("shape", [np.array(box[2:], np.int32) for box in boxes])
        (images,) = pipe.run()
        return [np.array(image) for image in images]

    return decode


def plans(dataset: datasets.ImageList, batches: int) -> Iterator[Plan]:
    """Of 64 images each."""
    assert dataset.sizes is not None
    for k in range(batches):
        rows = np.arange(k * 64, (k + 1) * 64)
        indices, keys = rows % len(dataset), rows.astype(np.uint64)
        sizes = dataset.sizes[indices]
        ops, *_ = dataset.transform.resolve(0, 0, keys, sizes)
        yield Plan(0, 0, k, indices, keys, 64, 0).with_sizes(sizes, ops)


class Steps:
    """What each step costs with some files, batch by batch; all of them get the same windows."""

    def __init__(self, plain: tuple[str, ...], sliceable: tuple[str, ...]):
        self.files, transform = plain, imagenet.train(224)
        self.plain, self.sliceable = (datasets.ImageList(list(f), transform=transform) for f in (plain, sliceable))
        cuts = Cuts.of(self.sliceable)
        assert cuts is not None
        self.cuts, self.decode, self.threads = cuts, dali_decoder(), ImageThreads(1)
        self.simplejpeg = None
        if importlib.util.find_spec("simplejpeg") is not None:
            self.simplejpeg = importlib.import_module("simplejpeg")

    def run(self, plan: Plan) -> dict[str, float]:
        """CPU ms per image."""
        assert plan.ops is not None
        window, *rest = plan.ops
        rows = range(64)
        tops, lefts = window.top.tolist(), window.left.tolist()  # type: ignore[attr-defined]
        heights, widths = window.height.tolist(), window.width.tolist()  # type: ignore[attr-defined]
        boxes: list[Box] = list(zip(tops, lefts, heights, widths, strict=True))
        found: dict[str, float] = {}

        def timed(name: str, step: Callable[[], Any]) -> Any:
            began = time.process_time()
            made = step()
            found[name] = (time.process_time() - began) / 64 * 1e3
            return made

        paths = [self.files[i] for i in plan.indices.tolist()]
        files = timed("read", lambda: [Path(path).read_bytes() for path in paths])
        timed("DALI, window of the whole", lambda: self.decode(files, boxes))
        cut = timed("read and cut", lambda: self.cuts.cuts(plan, rows))
        data = [cut[row].data for row in rows]
        moved: list[Box] = [(t - cut[r].top, x - cut[r].left, h, w) for r, (t, x, h, w) in enumerate(boxes)]
        images = timed("DALI, window of the cut", lambda: self.decode(data, moved))
        if self.simplejpeg is not None:
            jpeg = self.simplejpeg.decode_jpeg
            timed("simplejpeg, the cut", lambda: [jpeg(d, fastdct=False, fastupsample=False) for d in data])
        given = [(image, None) for image in images]
        timed("crop, resize, arithmetic", lambda: self.threads.start(64, given, rest).result())
        return found


def floor_of(least: dict[str, float]) -> dict[str, float]:
    """CPU ms of all steps, of whole files and of cut ones with DALI's decoder, and of these with the fastest one."""
    rest = least["crop, resize, arithmetic"]
    untouched = least["read"] + least["DALI, window of the whole"] + rest
    sliceable = least["read and cut"] + least["DALI, window of the cut"] + rest
    fastest = min(v for k, v in least.items() if k.endswith("the cut"))
    floor = least["read and cut"] + fastest + rest
    return {
        "untouched": untouched,
        "sliceable": sliceable,
        "sliceable to untouched, at most": untouched / sliceable,
        "floor": floor,
    }


def measure(args: argparse.Namespace, paths: list[str], folder: Path) -> None:
    torch.set_num_threads(1)
    sets, _ = sets_of(paths, folder, os.cpu_count() or 1)
    result: dict[str, Any] = {**heading(__doc__, args), "files": describe_files(paths), "sets": {}}
    for base in [name for name in sets if f"{name}, sliceable" in sets]:
        steps = Steps(sets[base], sets[f"{base}, sliceable"])
        batches = list(plans(steps.plain, 2))
        for plan in batches:
            steps.run(plan)
        made = [[steps.run(plan) for plan in batches] for _ in range(args.rounds)]
        least = {
            name: float(np.mean([min(one[k][name] for one in made) for k in range(len(batches))]))
            for name in made[0][0]
        }
        result["sets"][base] = {"ms": least, **floor_of(least)}
        table = Table(f"{base}: step", "CPU ms/image")
        for name, value in (*least.items(), *floor_of(least).items()):
            table.row(name, value)
    print(save("sliceable_floor_cpu" + "_dry_run" * args.dry_run, result))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", nargs="?", type=Path, default=IMAGES if IMAGES.is_dir() else None)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--dry-run", action="store_true", help="one round; the result goes to the temporary folder")
    args = p.parse_args()
    args.rounds = 1 if args.dry_run else args.rounds
    with photographs(args.folder, count=256) as paths, tempfile.TemporaryDirectory() as folder:
        measure(args, paths, Path(folder))


if __name__ == "__main__":
    main()
