"""Train an object detector: boxes move with their images, and windows are drawn by boxes.

    python examples/train_detection.py                                         # no data needed: draws shapes
    python examples/train_detection.py /data/coco --classes 91 --augmentation multiscale
    torchrun --nproc-per-node 8 examples/train_detection.py /data/coco --classes 91 --checkpoint run.pt

The data folder holds ``train2017/``, ``val2017/`` and ``annotations/instances_{train,val}2017.json``. Mean average
precision needs pycocotools (``gpupipe-loader[coco]``); without it, only the loss is printed.

What is worth copying: images of different sizes are padded to one tensor with a mask; objects whose boxes left the
image are gone from all columns; and the loader's state in the checkpoint, so that a run that was killed in the middle
of an epoch continues with the very next image, also on another number of GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from common import Help, Stop
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gpupipe
from gpupipe import DataLoader, collate, datasets
from gpupipe.pipelines import coco

STRIDE = 4
"""Pixels of an image for each position where the model looks for the center of an object."""


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    p.add_argument("data", nargs="?", type=Path, help="folder of COCO; made if it is not given")
    p.add_argument("--epochs", type=int, default=12, help="how many in all")
    p.add_argument("--batch-size", type=int, default=8, help="images, per process")
    p.add_argument("--classes", type=int, default=3, help="largest category id + 1; 91 in COCO")
    p.add_argument("--augmentation", default="ssdlite", help="preset of gpupipe.pipelines.coco")
    p.add_argument("--lr", type=float, default=0.003, help="learning rate")
    p.add_argument("--workers", type=int, default=2, help="threads or processes that load")
    p.add_argument("--engine", default="auto", choices=["auto", "dali", "torch"], help="who loads")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    p.add_argument("--checkpoint", type=Path, help="continue from this file if it exists, and write it")
    p.add_argument("--save-every", type=int, default=200, help="steps between checkpoints within an epoch")
    p.add_argument("--max-steps", type=int, help="stop after this many steps, as if the process had been killed")
    p.add_argument("--images", type=int, default=128, help="how many to train on, if they are made")
    p.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation")
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
def mean_precision(model: nn.Module, loader: Any, annotations: Path) -> float | None:
    """COCO's mean average precision, over all ranks; ``None`` without pycocotools."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        return None
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


def train(args: argparse.Namespace, data: Path) -> None:
    stop, shard = Stop(), gpupipe.Shard.from_env()
    device = torch.device(args.device, int(os.environ.get("LOCAL_RANK", 0))) if args.device == "cuda" else args.device
    common: dict[str, Any] = {
        "batch_size": args.batch_size, "num_workers": args.workers, "engine": args.engine, "device": device,
        "shard": shard, "collate_fn": collate.Padded(divisor=2 * STRIDE),
    }  # fmt: skip

    def part(name: str, transform: Any) -> Any:
        return datasets.CocoDetection(data / name, data / f"annotations/instances_{name}.json", transform)

    loader = DataLoader(
        part("train2017", coco.train(args.augmentation)), shuffle=True, drop_last=True, seed=args.seed, **common
    )
    evaluation = DataLoader(part("val2017", coco.val()), **common)
    torch.manual_seed(args.seed)  # the same weights on every rank
    raw = CenterNet(args.classes).to(device)
    optimizer = torch.optim.AdamW(raw.parameters(), args.lr)
    begin = step = 0
    if args.checkpoint is not None and args.checkpoint.exists():
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        raw.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        begin, step = state["epoch"], state["step"]

    def save(epoch: int) -> None:
        if args.checkpoint is None or shard.rank:
            return
        parts: dict[str, Any] = {"model": raw, "optimizer": optimizer, "loader": loader}
        partial = args.checkpoint.with_suffix(".partial")
        torch.save({name: it.state_dict() for name, it in parts.items()} | {"epoch": epoch, "step": step}, partial)
        os.replace(partial, args.checkpoint)

    model: nn.Module = DistributedDataParallel(raw) if dist.is_initialized() else raw
    with loader, evaluation:
        for epoch in range(begin, args.epochs):
            model.train()
            loss = torch.zeros(())
            for (images, _), targets in loader:
                heat, sides = model(images)
                loss = loss_of(heat, sides, targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % args.save_every == 0:
                    save(epoch)
                if step == args.max_steps:
                    return
                if stop.agreed(step, torch.device(device)):
                    save(epoch)
                    stop.leave(f"saved after step {step}; the same command continues from there")
            save(epoch + 1)
            found = mean_precision(raw, evaluation, data / "annotations/instances_val2017.json")
            if not shard.rank:
                told = "" if found is None else f", mAP {found:.3f}"
                print(f"epoch {epoch}: loss {loss.item():.3f}{told}", flush=True)


def main() -> None:
    args = parse()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    try:
        if args.data is not None:
            train(args, args.data)
            return
        if dist.is_initialized():
            raise SystemExit("several ranks need a data folder that all of them can read")
        with tempfile.TemporaryDirectory() as made:
            draw_shapes(Path(made), {"train2017": args.images, "val2017": max(8, args.images // 4)})
            train(args, Path(made))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
