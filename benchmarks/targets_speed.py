"""How fast are detection and segmentation, DALI beside what a user writes with torchvision's v2 transforms today?

Prediction (two CPU cores): the segmentation preset at least 1.7 times torch's DataLoader with v2 on tensors and on PIL
images, because the crop is taken from a smaller image and the mask is one gather; the SSD preset at least 2 times,
because no canvas of zooming out is converted to floats before its window is cut.

Measured: loaders with two workers take turns in one process, each for an epoch per round. Time counts from the fourth
batch to the end of the epoch. "tensors" is the reference's backend `tv_tensor`: `v2.ToImage()` first; "PIL images" its
backend `pil`. Both read files with Pillow, and boxes from memory.

    python benchmarks/targets_speed.py      # writes results/targets_speed_cpu.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import Table, heading, import_torchvision, save
from PIL import Image

from gpupipe import DataLoader, collate, datasets
from gpupipe.pipelines import coco, voc
from gpupipe.testing.photos import photograph

import_torchvision()

from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

SIZE = 480, 640
IGNORED = 255
WARM = 4
"""Batches before the clock starts."""


def write(root: Path, count: int) -> list[np.ndarray[Any, Any]]:
    """Write photographs, masks in VOC's layout and COCO annotations. Returns boxes f32[n, 4] of each image."""
    rng, voc_root = np.random.default_rng(0), root / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (voc_root / name).mkdir(parents=True)
    images, annotations, boxes = [], [], []
    for k in range(count):
        Image.fromarray(photograph(*SIZE, k)).save(voc_root / f"JPEGImages/{k:04d}.jpg", quality=90)
        ids = np.kron(rng.integers(0, 21, (12, 16)), np.ones((40, 40))).astype(np.uint8)
        mask = Image.fromarray(ids)
        mask.putpalette(rng.integers(0, 256, 768).astype(np.uint8).tobytes())
        mask.save(voc_root / f"SegmentationClass/{k:04d}.png")
        images.append({"id": k, "file_name": f"{k:04d}.jpg", "height": SIZE[0], "width": SIZE[1]})
        center, extent = rng.uniform(0, 1, (7, 2)), rng.uniform(0.05, 0.5, (7, 2))  # COCO has 7 objects per image
        low, high = (np.clip(center + sign * extent / 2, 0, 1) * SIZE[::-1] for sign in (-1, 1))
        boxes.append(np.concatenate([low, high], axis=1).astype(np.float32))
        for x0, y0, x1, y1 in boxes[-1].tolist():
            annotations.append({"image_id": k, "category_id": 1, "bbox": [x0, y0, x1 - x0, y1 - y0]})
    (voc_root / "ImageSets/Segmentation/train.txt").write_text("".join(f"{k:04d}\n" for k in range(count)))
    parts = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "thing"}]}
    (root / "instances.json").write_text(json.dumps(parts))
    return boxes


class Detection(torch.utils.data.Dataset[Any]):
    """What a user writes for torchvision."""

    def __init__(self, root: Path, boxes: list[Any], steps: Any):
        self.root, self.boxes, self.steps = root / "VOCdevkit/VOC2012/JPEGImages", boxes, steps

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.root / f"{i:04d}.jpg").convert("RGB")
        boxes = tv_tensors.BoundingBoxes(torch.from_numpy(self.boxes[i]), format="XYXY", canvas_size=SIZE)
        return self.steps(image, {"boxes": boxes, "labels": torch.ones(len(boxes), dtype=torch.int64)})


class Segmentation(torch.utils.data.Dataset[Any]):
    """What a user writes for torchvision."""

    def __init__(self, root: Path, count: int, steps: Any):
        self.root, self.count, self.steps = root / "VOCdevkit/VOC2012", count, steps

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.root / f"JPEGImages/{i:04d}.jpg").convert("RGB")
        return self.steps(image, tv_tensors.Mask(Image.open(self.root / f"SegmentationClass/{i:04d}.png")))


def ssd(first: list[Any], last: list[Any]) -> Any:
    """The preset ``ssd`` of torchvision's detection reference."""
    steps = [v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=list(coco.MEAN)), v2.RandomIoUCrop()]
    ends = [v2.ToDtype(torch.float32, scale=True), v2.SanitizeBoundingBoxes(), v2.ToPureTensor()]
    return v2.Compose([*first, *steps, v2.RandomHorizontalFlip(), *last, *ends])


def segmentation(first: list[Any], last: list[Any]) -> Any:
    """The preset of torchvision's segmentation reference."""
    fill: Any = {tv_tensors.Mask: IGNORED, "others": 0}
    steps = [v2.RandomResize(260, 1040), v2.RandomHorizontalFlip(), v2.RandomCrop(480, pad_if_needed=True, fill=fill)]
    types = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    ends = [v2.ToDtype(types, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    return v2.Compose([*first, *steps, *last, *ends, v2.ToPureTensor()])


def loaders(preset: str, root: Path, boxes: list[Any], batch_size: int, workers: int) -> dict[str, Callable[[], Any]]:
    """Makers of the loaders of a preset, by name."""
    common: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_workers": workers, "drop_last": True}
    backends = {"v2 on tensors": ([v2.ToImage()], []), "v2 on PIL images": ([], [v2.ToImage()])}
    found: dict[str, Callable[[], Any]] = {}
    for name, (first, last) in backends.items():
        made: Any
        if preset == "SSD":
            made, extra = Detection(root, boxes, ssd(first, last)), {"collate_fn": collate.as_lists}
        else:
            made, extra = Segmentation(root, len(boxes), segmentation(first, last)), {}
        found[name] = lambda made=made, extra=extra: torch.utils.data.DataLoader(made, **common, **extra)  # type: ignore[misc]
    options: dict[str, Any] = {**common, "engine": "dali", "device": "cpu", "seed": 0}
    if preset == "SSD":
        images, keys = root / "VOCdevkit/VOC2012/JPEGImages", ("boxes", "labels")
        ours: Any = datasets.CocoDetection(images, root / "instances.json", coco.train("ssd"), target_keys=keys)
        options["collate_fn"] = collate.as_lists
    else:
        images, masks = (root / "VOCdevkit/VOC2012" / name for name in ("JPEGImages", "SegmentationClass"))
        ours = datasets.SegmentationFolder(images, masks, voc.train(480), dtype="int64", fill=IGNORED)
    return {"gpupipe": lambda: DataLoader(ours, **options), **found}


def speed(loader: Any, batch_size: int) -> float:
    """Images per second of one epoch, without its first batches."""
    batches, count, began = iter(loader), 0, 0.0
    for number, _ in enumerate(batches):
        if number == WARM - 1:
            began = time.perf_counter()
        count += number >= WARM
    return count * batch_size / (time.perf_counter() - began)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--images", type=int, default=320)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--presets", nargs="+", default=["SSD", "segmentation"])
    p.add_argument("--dry-run", action="store_true")
    args = p.parse_args()
    if args.images // args.batch_size <= WARM:
        p.error(f"give images for more than {WARM} batches")
    torch.set_num_threads(1)
    result: dict[str, Any] = {**heading(__doc__, args), "images_per_second": {}, "ratios": {}}
    with tempfile.TemporaryDirectory() as made:
        boxes = write(Path(made), args.images)
        for preset in args.presets:
            makers = loaders(preset, Path(made), boxes, args.batch_size, args.workers)
            speeds: dict[str, list[float]] = {name: [] for name in makers}
            table = Table(f"{preset}, images per second", *makers)
            for number in range(args.rounds):
                for name, make in makers.items():
                    speeds[name].append(speed(make(), args.batch_size))
                table.row(f"round {number + 1}", *(found[-1] for found in speeds.values()))
            result["images_per_second"][preset] = speeds
            result["ratios"][preset] = {
                name: statistics.median(a / b for a, b in zip(speeds["gpupipe"], speeds[name], strict=True))
                for name in makers
            }
            table.row("gpupipe is faster by", *result["ratios"][preset].values())
    print(save("targets_speed_cpu" + "_dry_run" * args.dry_run, result))


if __name__ == "__main__":
    main()
