"""Train an object detector: boxes move with their images, and windows are drawn by boxes.

    python examples/train_detection.py                                         # no data needed: draws shapes
    python examples/train_detection.py /data/coco --classes 91 --augmentation multiscale
    torchrun --nproc-per-node 8 examples/train_detection.py /data/coco --classes 91 --batch-size 64
    python examples/train_detection.py --resume                                # goes on where it stopped

The data folder holds ``train2017/``, ``val2017/`` and ``annotations/instances_{train,val}2017.json``. Mean average
precision needs pycocotools (``gpupipe-loader[coco]``); without it, its column has no numbers.

What is worth copying: images of different sizes are padded to one tensor with a mask; objects whose boxes left the
image are gone from all columns; and the loader's state in the checkpoint, so that a run that was killed in the middle
of an epoch continues with the very next image, also on another number of GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from run import Run, arguments, parameters, prepared, start, wrapped
from torch import Tensor, nn
from torch.nn import functional as F

from gpupipe import DataLoader, collate, datasets
from gpupipe.pipelines import coco

STRIDE = 4
"""Pixels of an image for each position where the model looks for the center of an object."""


def parse() -> argparse.Namespace:
    p = arguments(__doc__, "detection", epochs=12, batch_size=8, lr=0.003)
    p.add_argument("--classes", type=int, default=3, help="largest category id + 1; 91 in COCO")
    p.add_argument("--augmentation", default="ssdlite", help="preset of gpupipe.pipelines.coco")
    p.add_argument("--images", type=int, default=128, help="how many to train on, if they are made")
    return p.parse_args()


def draw_shapes(root: Path, counts: dict[str, int]) -> None:
    """Write a small dataset in COCO's layout: bright disks (1) and dark squares (2) on noise."""
    rng = np.random.default_rng(0)
    (root / "annotations").mkdir(parents=True)
    for part, count in counts.items():
        (root / part).mkdir()
        images, objects = list[Any](), list[Any]()
        for k in range(count):
            height, width = 16 * rng.integers(5, 8, 2)
            pixels = np.full((height, width, 3), 110.0)
            rows, columns = np.indices((height, width))
            for kind in rng.permutation([1, 2])[: rng.integers(1, 3)].tolist():
                r = int(rng.integers(8, 16))
                y, x = int(rng.integers(r, height - r)), int(rng.integers(r, width - r))
                away = np.hypot(rows - y, columns - x) if kind == 1 else np.maximum(abs(rows - y), abs(columns - x))
                pixels[away < r] = (220, 200, 60) if kind == 1 else (30, 40, 120)
                box = [x - r, y - r, 2 * r, 2 * r]
                objects.append({"id": len(objects) + 1, "image_id": k, "category_id": kind, "bbox": box})
            noisy = (pixels + rng.normal(0, 20, pixels.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(root / part / f"{k:03d}.jpg", quality=95)
            images.append({"id": k, "file_name": f"{k:03d}.jpg", "height": int(height), "width": int(width)})
        more = [{**one, "area": one["bbox"][2] * one["bbox"][3], "iscrowd": 0} for one in objects]
        names = [{"id": 1, "name": "disk"}, {"id": 2, "name": "square"}]
        found = {"images": images, "annotations": more, "categories": names}
        (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(found))


class CenterNet(nn.Module):
    """Finds objects by their centers, with few layers (Zhou et al., *Objects as Points*, 2019)."""

    def __init__(self, classes: int, width: int = 24):
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, stride in ((3, width, 2), (width, 2 * width, 2), *[(2 * width, 2 * width, 1)] * 3):
            dilation = 1 if stride == 2 else 2
            layers += [nn.Conv2d(before, after, 3, stride, dilation, dilation, bias=False), nn.GroupNorm(8, after)]
            layers.append(nn.ReLU(True))
        self.body = nn.Sequential(*layers)
        self.heat, self.sides = nn.Conv2d(2 * width, classes, 1), nn.Conv2d(2 * width, 4, 1)
        nn.init.constant_(self.heat.bias, -3.0)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """f32[B, 3, H, W] to scores f32[B, classes, H/4, W/4] and distances of the four sides f32[B, 4, H/4, W/4]."""
        x = self.body(images - 0.45)
        return self.heat(x), self.sides(x).exp()


def wanted(targets: list[dict[str, Tensor]], heat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores as in ``heat``, the sides of objects f32[N, 4], and where their centers are i64[N, 3]."""
    peaks, sides, places = torch.zeros_like(heat), [], []
    rows, columns = torch.meshgrid(*(torch.arange(n, device=heat.device) for n in heat.shape[2:]), indexing="ij")
    for k, target in enumerate(targets):
        for box, label in zip(target["boxes"] / STRIDE, target["labels"].tolist(), strict=True):
            x, y = ((box[:2] + box[2:]) / 2).long().tolist()
            sigma = ((box[2:] - box[:2]).min() / 6).clamp(min=0.5)
            bump = torch.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * sigma**2))
            peaks[k, label] = torch.maximum(peaks[k, label], bump)
            center = torch.tensor([x, y], device=box.device)
            sides.append(torch.cat([center + 0.5 - box[:2], box[2:] - center - 0.5]).clamp(min=0.1))
            places.append([k, y, x])
    return peaks, torch.stack(sides) if sides else heat.new_zeros(0, 4), torch.tensor(places).reshape(-1, 3)


def loss_of(heat: Tensor, sides: Tensor, targets: list[dict[str, Tensor]]) -> Tensor:
    peaks, real, (image, row, column) = (found.T if k == 2 else found for k, found in enumerate(wanted(targets, heat)))
    score = heat.sigmoid().clamp(1e-4, 1 - 1e-4)
    at_center = peaks == 1
    focal = torch.where(at_center, (1 - score) ** 2 * score.log(), (1 - peaks) ** 4 * score**2 * (1 - score).log())
    found = sides[image, :, row, column]
    return -focal.sum() / max(len(real), 1) + (found.log() - real.log()).abs().sum() / max(len(real), 1)


def boxes_of(heat: Tensor, sides: Tensor, most: int = 50) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Boxes f32[n, 4] in pixels, scores and classes of each image."""
    score = heat.sigmoid()
    score = score * (score == F.max_pool2d(score, 3, 1, 1))
    found = []
    for scores, distances in zip(score, sides, strict=True):
        best, at = scores.flatten().topk(min(most, scores.numel()))
        label, row, column = torch.unravel_index(at, scores.shape)
        center = torch.stack([column, row], dim=1) + 0.5
        left_top, right_bottom = distances[:, row, column].T.split(2, dim=1)
        found.append((torch.cat([center - left_top, center + right_bottom], dim=1) * STRIDE, best, label))
    return found


@torch.inference_mode()
def mean_precision(model: nn.Module, loader: Any, annotations: Path) -> float:
    """COCO's mean average precision, over all ranks; not a number without pycocotools."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        return math.nan
    model.eval()
    rows = []
    for (images, _), targets in loader:
        for target, found in list(zip(targets, boxes_of(*model(images)), strict=True))[: loader.valid]:
            for box, score, label in zip(*(part.tolist() for part in found), strict=True):
                rows.append([float(target["image_id"]), *box[:2], box[2] - box[0], box[3] - box[1], score, label])
    everything: list[Any] = [rows]
    if dist.is_initialized():
        everything = [None] * dist.get_world_size()
        dist.all_gather_object(everything, rows)
    with contextlib.redirect_stdout(None):  # it prints a table of twelve numbers
        truth = COCO(str(annotations))
        results = truth.loadRes(np.array([row for found in everything for row in found]))
        evaluation = COCOeval(truth, results, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def main() -> None:
    args = parse()
    shard, device = start(args)
    torch.manual_seed(args.seed)  # the same weights on every rank
    counts = {"train2017": args.images, "val2017": max(8, args.images // 4)}
    data = args.data or prepared(args.out / "shapes", shard, lambda root: draw_shapes(root, counts))
    common: dict[str, Any] = {
        "global_batch_size": args.batch_size, "num_workers": args.workers, "engine": args.engine, "device": device,
        "shard": shard, "collate_fn": collate.Padded(divisor=2 * STRIDE),
    }  # fmt: skip

    def part(name: str, transform: Any) -> Any:
        return datasets.CocoDetection(data / name, data / f"annotations/instances_{name}.json", transform)

    train = part("train2017", coco.train(args.augmentation))
    loader = DataLoader(train, shuffle=True, drop_last=True, seed=args.seed, **common)
    evaluation = DataLoader(part("val2017", coco.val()), **common)

    model = CenterNet(args.classes).to(device)
    optimizer = torch.optim.AdamW(parameters(model, args.weight_decay), args.lr)
    run = Run(args, device, loader, {"model": model}, optimizer)
    network = wrapped(model, args, device)
    for _ in run.epochs():
        network.train()
        for (images, _), targets in run.steps():
            with run.autocast():
                heat, sides = network(images)
            run.step(loss_of(heat.float(), sides.float(), targets))
        found = mean_precision(run.averaged(model), evaluation, data / "annotations/instances_val2017.json")
        run.end_epoch(precision=found, best="precision")


if __name__ == "__main__":
    main()
