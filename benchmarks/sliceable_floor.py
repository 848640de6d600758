"""What could sliceable JPEGs bring at most: the CPU time of each step for itself, and nothing between the steps?

Prediction: of photographs of some hundred thousand pixels a whole file's window and a cut cost DALI nearly the same,
since it leaves rows below a window out, and restart markers make entropy decoding a seventh slower; so cutting brings
nothing there. Of 3 megapixels all steps together, with the faster decoder, are more than a third of what torchvision's
transforms on PIL take by themselves; torch's loader adds less than a half to those, in its worker processes and between
them; so no loader made of these steps is 4.5 times as fast as it.

Seen: the transforms take 2.9 times as long as the steps, and torch's loader 33 ms (``sliceable.py``) to their 22: 4.2
is what a loader without any time of its own would reach, and gpupipe, with 8.5 ms to the 7.9 of the steps, is at 3.7.

Measured: one thread, files in the page cache, the windows of ``imagenet.train(224)``; the middle of the rounds, in each
of which every step has its turn, in ms of CPU time of the process per image. torchvision chooses windows of its own.
torchvision and simplejpeg have their turns if they are installed.

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
from _candidates import ratio
from _common import IMAGES, Table, describe_files, heading, photographs, save
from _recipes import torchvisions
from PIL import Image
from sliceable import sets_of

from gpupipe import datasets
from gpupipe.engines.host.image_threads import ImageThreads
from gpupipe.pipelines import imagenet
from gpupipe.reading.tiles import Cuts
from gpupipe.types import Plan

TORCHVISION = "torchvision, all of it"
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
        options = {"axes": [0, 1], "output_type": types.RGB, "adjust_orientation": False}
        pipe.set_outputs(fn.decoders.image_slice(raw, start=start, shape=shape, **options))
    pipe.build()

    def decode(files: list[bytes], boxes: list[Box]) -> list[np.ndarray[Any, Any]]:
        pipe.feed_input("raw", [np.frombuffer(file, np.uint8) for file in files])
        pipe.feed_input("start", [np.array(box[:2], np.int32) for box in boxes])
        pipe.feed_input("shape", [np.array(box[2:], np.int32) for box in boxes])
        (images,) = pipe.run()
        return [np.asarray(image) for image in images]  # theirs until the next call

    return decode


def plans(dataset: datasets.ImageList, batches: int) -> Iterator[Plan]:
    """Batches of 64 images each."""
    assert dataset.sizes is not None
    for k in range(batches):
        rows = np.arange(k * 64, (k + 1) * 64)
        indices, keys = rows % len(dataset), rows.astype(np.uint64)
        sizes = dataset.sizes[indices]
        ops, *_ = dataset.transform.resolve(0, 0, keys, sizes)
        yield Plan(0, 0, k, indices, keys, 64, 0).with_sizes(sizes, ops)


class Steps:
    """Measure the cost of each step for some files, batch by batch, with the same windows for all."""

    def __init__(self, plain: tuple[str, ...], sliceable: tuple[str, ...]):
        self.files, transform = plain, imagenet.train(224)
        self.plain, self.sliceable = (datasets.ImageList(list(f), transform=transform) for f in (plain, sliceable))
        cuts = Cuts.of(self.sliceable)
        assert cuts is not None
        self.cuts, self.decode, self.threads = cuts, dali_decoder(), ImageThreads(1)
        self.torchvision = None
        if importlib.util.find_spec("torchvision") is not None:
            self.torchvision, _ = torchvisions("train", 224)
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
        if self.torchvision is not None:
            of = self.torchvision
            timed(TORCHVISION, lambda: torch.stack([of(Image.open(path).convert("RGB")) for path in paths]))
        return found


def sums_of(step: dict[str, float]) -> dict[str, float]:
    """CPU ms of all steps, of whole files and of cut ones with DALI's decoder, and of these with the fastest one."""
    rest = step["crop, resize, arithmetic"]
    cut, decoded = step["read and cut"], step["DALI, window of the cut"]
    fastest = min(ms for name, ms in step.items() if name.endswith("the cut"))
    return {
        "untouched": step["read"] + step["DALI, window of the whole"] + rest,
        "sliceable": cut + decoded + rest,
        "floor": cut + fastest + rest,
    }


def _means(batches: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([batch[name] for batch in batches])) for name in batches[0]}


def measure(args: argparse.Namespace, paths: list[str], folder: Path) -> None:
    torch.set_num_threads(1)
    sets, _ = sets_of(paths, folder, os.cpu_count() or 1)
    result: dict[str, Any] = {**heading(__doc__, args), "files": describe_files(paths), "sets": {}}
    for base in [name for name in sets if f"{name}, sliceable" in sets]:
        steps = Steps(sets[base], sets[f"{base}, sliceable"])
        batches = list(plans(steps.plain, 4))
        for plan in batches:
            steps.run(plan)
        made = [_means([steps.run(plan) for plan in batches]) for _ in range(args.rounds)]
        made = [{**one, **sums_of(one)} for one in made]
        columns = {name: [one[name] for one in made] for name in made[0]}
        found: dict[str, Any] = {"ms": {name: float(np.median(column)) for name, column in columns.items()}}
        found["sliceable_to_untouched"] = ratio(columns["untouched"], columns["sliceable"])
        if TORCHVISION in columns:
            sums = ("untouched", "sliceable", "floor")
            found["to_torchvision"] = {name: ratio(columns[TORCHVISION], columns[name]) for name in sums}
        result["sets"][base] = found
        table = Table(f"{base}: step", "CPU ms/image", "torchvision to it")
        for name, value in found["ms"].items():
            table.row(name, value, found.get("to_torchvision", {}).get(name, {}).get("median"))
    print(save("sliceable_floor_cpu" + "_dry_run" * args.dry_run, result))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", nargs="?", type=Path, default=IMAGES if IMAGES.is_dir() else None)
    p.add_argument("--rounds", type=int, default=11)
    p.add_argument("--dry-run", action="store_true", help="one round; the result goes to the temporary folder")
    args = p.parse_args()
    args.rounds = 1 if args.dry_run else args.rounds
    with photographs(args.folder, count=256) as paths, tempfile.TemporaryDirectory() as folder:
        measure(args, paths, Path(folder))


if __name__ == "__main__":
    main()
