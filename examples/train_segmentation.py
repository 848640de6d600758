"""Train a semantic segmentation model: masks move with their images.

    python examples/train_segmentation.py                                      # no data needed: draws shapes
    python examples/train_segmentation.py /data/voc --size 480 --classes 21    # a folder with VOCdevkit
    python examples/train_segmentation.py --resume                             # goes on where it stopped

What is worth copying: one pipeline moves images and masks; ids outside the image are 255, which the loss and the metric
ignore; and the loader's state goes into the checkpoint, so that a resumed run sees the samples of an undisturbed one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from run import Run, arguments, parameters, prepared, start, wrapped
from torch import Tensor, nn
from torch.nn import functional as F

from gpupipe import DataLoader, datasets
from gpupipe.pipelines import voc

IGNORED = 255


def parse() -> argparse.Namespace:
    p = arguments(__doc__, "segmentation", epochs=4, batch_size=8, size=64, lr=0.01)
    p.add_argument("--classes", type=int, default=3, help="how many, with the background; 21 in VOC")
    return p.parse_args()


def draw_shapes(root: Path, *, count: int = 96) -> None:
    """Write a small dataset in VOC's layout: bright disks (1) and dark squares (2) on noise."""
    folder, rng = root / "VOCdevkit" / "VOC2012", np.random.default_rng(0)
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / name).mkdir(parents=True)
    for k in range(count):
        ids = np.zeros((80, 96), np.uint8)
        rows, columns = np.indices(ids.shape)
        y, x, r = rng.integers(16, 64), rng.integers(16, 80), rng.integers(8, 16)
        ids[(rows - y) ** 2 + (columns - x) ** 2 < r * r] = 1
        y, x = rng.integers(4, 56), rng.integers(4, 72)
        ids[y : y + r + 8, x : x + r + 8] = 2
        colors = np.array([[110, 110, 110], [220, 200, 60], [30, 40, 120]])[ids]
        pixels = (colors + rng.normal(0, 25, colors.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"JPEGImages/{k:03d}.jpg", quality=95)
        Image.fromarray(ids).save(folder / f"SegmentationClass/{k:03d}.png")
    for name, part in (("train", range(count * 3 // 4)), ("val", range(count * 3 // 4, count))):
        (folder / f"ImageSets/Segmentation/{name}.txt").write_text("".join(f"{k:03d}\n" for k in part))


def split_of(data: Path, name: str, pipeline: Any) -> datasets.SegmentationFolder:
    """Open the samples that VOC's list ``name`` names."""
    folder = data / "VOCdevkit" / "VOC2012"
    return datasets.SegmentationFolder(
        folder / "JPEGImages", folder / "SegmentationClass", pipeline,
        split=folder / f"ImageSets/Segmentation/{name}.txt", fill=IGNORED,
    )  # fmt: skip


class SmallNet(nn.Module):
    """Three scales of convolutions, enough for shapes."""

    def __init__(self, classes: int, width: int = 16):
        super().__init__()

        def block(before: int, after: int, stride: int) -> nn.Module:
            layer = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
            return nn.Sequential(layer, nn.BatchNorm2d(after), nn.ReLU())

        self.down = nn.ModuleList([block(3, width, 1), block(width, 2 * width, 2), block(2 * width, 4 * width, 2)])
        self.heads = nn.ModuleList([nn.Conv2d(width * 2**k, classes, 1) for k in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        size, out = x.shape[2:], torch.zeros((), device=x.device)
        for down, head in zip(self.down, self.heads, strict=True):
            x = down(x)
            out = out + F.interpolate(head(x), size=size, mode="bilinear")
        return out


def mean_iou(model: nn.Module, loader: Any, classes: int) -> float:
    """Mean over all classes of intersection over union."""
    counts = torch.zeros(classes, classes, device=loader.device)
    model.eval()
    with torch.inference_mode():
        for images, masks in loader:
            known = masks != IGNORED
            pairs = masks[known].long() * classes + model(images).argmax(1)[known]
            counts += torch.bincount(pairs, minlength=classes**2).view(classes, classes)
    both = counts.diag()
    return float((both / (counts.sum(0) + counts.sum(1) - both).clamp(min=1)).mean())


def main() -> None:
    args = parse()
    shard, device = start(args)
    torch.manual_seed(args.seed)  # the same weights on every rank
    data = args.data or prepared(args.out / "shapes", shard, draw_shapes)
    options: dict[str, Any] = {"num_workers": args.workers, "engine": args.engine, "device": device}
    pipeline = voc.train(args.size, base_size=args.size)
    loader = DataLoader(
        split_of(data, "train", pipeline), global_batch_size=args.batch_size,
        shuffle=True, drop_last=True, seed=args.seed, shard=shard, **options,
    )  # fmt: skip
    evaluation = DataLoader(split_of(data, "val", voc.val(args.size)), 1, **options)

    model = SmallNet(args.classes).to(device)
    optimizer = torch.optim.AdamW(parameters(model, args.weight_decay), args.lr)
    run = Run(args, device, loader, {"model": model}, optimizer)
    network = wrapped(model, args, device)
    for _ in run.epochs():
        network.train()
        for images, masks in run.steps():
            with run.autocast():
                loss = F.cross_entropy(network(images), masks.long(), ignore_index=IGNORED)
            run.step(loss)
        run.end_epoch(mean_iou=mean_iou(run.averaged(model), evaluation, args.classes), best="mean_iou")


if __name__ == "__main__":
    main()
