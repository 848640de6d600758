"""Train an image classifier with Hugging Face Accelerate.

    python examples/accelerate_imagenet.py                                 # no data needed: makes photographs
    accelerate launch examples/accelerate_imagenet.py /data/imagenet --batch-size 256 --epochs 90
    python examples/accelerate_imagenet.py --resume                        # goes on where it stopped

The data folder holds ``train/<class>/*`` and ``val/<class>/*``. Accelerate iterates over the loader itself and does
not cut it into ranks. So the loader is told its device and its shard, and registered for checkpoints.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from common import Help, Stop
from small_resnet import SmallResNet
from torch import nn

from gpupipe import DataLoader, Shard, datasets
from gpupipe.pipelines import imagenet
from gpupipe.testing.photos import make_photos


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    p.add_argument("data", nargs="?", type=Path, help="folder with train/ and val/; made if it is not given")
    p.add_argument("--out", type=Path, default=Path("runs/accelerate"), help="run folder")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint in the run folder")
    p.add_argument("--cpu", action="store_true", help="use no GPU")
    p.add_argument("--epochs", type=int, default=2, help="how many in all, counted from 0")
    p.add_argument("--batch-size", type=int, default=16, help="of all processes together")
    p.add_argument("--size", type=int, default=128, help="edge of the training images in pixels")
    p.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="threads or processes that load")
    p.add_argument("--save-every", type=int, default=500, help="steps between checkpoints within an epoch")
    p.add_argument("--max-steps", type=int, help="stop after this many steps, as if the process had been killed")
    return p.parse_args()


def data_folder(args: argparse.Namespace, accelerator: Accelerator) -> Path:
    if args.data is not None:
        return Path(args.data)
    root: Path = args.out / "photos"
    if accelerator.is_main_process and not (root / "val").is_dir():
        sizes = ((180, 240), (240, 180))
        make_photos(root / "train", classes=4, per_class=32, seed=0, sizes=sizes)
        make_photos(root / "val", classes=4, per_class=8, seed=1, sizes=sizes)
    accelerator.wait_for_everyone()
    return root


def make_loaders(args: argparse.Namespace, accelerator: Accelerator) -> tuple[DataLoader, DataLoader]:
    root = data_folder(args, accelerator)
    train, val = imagenet.train(args.size), imagenet.val(args.size, resize=round(args.size * 256 / 224))
    common: dict[str, Any] = {
        "global_batch_size": args.batch_size,
        "num_workers": args.workers,
        "device": accelerator.device,
        "shard": Shard(accelerator.process_index, accelerator.num_processes),
        "seed": 0,
    }
    return (
        DataLoader(datasets.ImageFolder(root / "train", train), shuffle=True, drop_last=True, **common),
        DataLoader(datasets.ImageFolder(root / "val", val), **common),
    )


@torch.inference_mode()
def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> str:
    """Every image exactly once: ``loader.valid`` of a batch are real, the others pad it to the size of other ranks'."""
    model.eval()
    sums = torch.zeros(3, device=accelerator.device)
    for images, target in loader:
        logits, target = model(images)[: loader.valid].float(), target[: loader.valid]
        loss = nn.functional.cross_entropy(logits, target, reduction="sum")
        sums += torch.stack([loss, (logits.argmax(1) == target).sum(), loss.new_tensor(loader.valid)])
    loss_sum, right, count = accelerator.reduce(sums).tolist()
    return f"val_loss {loss_sum / count:.4f}  top1 {right / count:.3f}  images {count:g}"


def main() -> None:
    args, stop = parse(), Stop()
    half = torch.cuda.is_available() and not args.cpu
    accelerator = Accelerator(cpu=args.cpu, mixed_precision="bf16" if half else "no")
    train, val = make_loaders(args, accelerator)
    torch.manual_seed(0)
    net = SmallResNet(len(train.dataset.classes))
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=5e-5)
    model, optimizer, train, val = accelerator.prepare(net, optimizer, train, val)
    accelerator.register_for_checkpointing(train)
    checkpoint = str(args.out / "checkpoint")
    if args.resume:
        accelerator.load_state(checkpoint)
    steps = 0
    for epoch in range(train.state_dict()["epoch"], args.epochs):
        model.train()
        for images, target in train:
            with accelerator.autocast():
                loss = nn.functional.cross_entropy(model(images), target, label_smoothing=0.1)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps % args.save_every == 0:
                accelerator.save_state(checkpoint)
            if steps == args.max_steps:
                return
            if stop.agreed(steps, accelerator.device):
                accelerator.save_state(checkpoint)
                stop.leave(f"saved after step {steps} of this run; --resume goes on from there")
        accelerator.print(f"epoch {epoch}  {evaluate(accelerator, model, val)}")
        accelerator.save_state(checkpoint)
    accelerator.end_training()


if __name__ == "__main__":
    main()
