"""Train an image classifier on a folder of classes: a complete recipe to start from.

    python examples/train_imagenet.py                                          # no data needed: makes photographs
    python examples/train_imagenet.py /data/imagenet --model resnet50 --epochs 90 --batch-size 256
    torchrun --nproc-per-node 8 examples/train_imagenet.py /data/imagenet --model resnet50 --batch-size 256
    sbatch examples/train_imagenet.slurm /data/imagenet --model resnet50 --batch-size 256
    python examples/train_imagenet.py --resume                                 # goes on where it stopped

The data folder holds ``train/<class>/*`` and ``val/<class>/*``. On a GPU it trains in bfloat16. The run folder gets
``checkpoint.pt`` (read it with ``torch.load(..., weights_only=True)``) and one line per epoch in ``metrics.jsonl``.

What is worth copying: the loader's state goes into the checkpoint beside the model's, so a run that was killed in the
middle of an epoch goes on with the very next batch; and ``loader.valid`` makes the evaluation exact on any number of
GPUs, although every rank gets the same number of samples.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import Help, Stop, cosine, start
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from small_resnet import SmallResNet
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gpupipe
from gpupipe import DataLoader, datasets
from gpupipe.pipelines import imagenet
from gpupipe.testing.photos import make_photos


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    p.add_argument("data", nargs="?", type=Path, help="folder with train/ and val/; made if it is not given")
    p.add_argument("--out", type=Path, default=Path("runs/imagenet"), help="run folder")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint in the run folder")
    p.add_argument("--model", default="small", help='"small" (built in), or a name of torchvision such as "resnet50"')
    p.add_argument("--compile", action="store_true", help="torch.compile the model")
    p.add_argument("--epochs", type=int, default=5, help="how many in all, counted from 0")
    p.add_argument("--batch-size", type=int, default=32, help="per process")
    p.add_argument("--size", type=int, default=224, help="edge of the training images in pixels")
    p.add_argument("--lr", type=float, default=0.5, help="for a global batch of 256; scaled linearly")
    p.add_argument("--warmup", type=float, default=1.0, help="epochs of linear warm-up")
    p.add_argument("--weight-decay", type=float, default=5e-5, help="not of biases and norms")
    p.add_argument("--label-smoothing", type=float, default=0.1, help="share of the target that goes to all classes")
    p.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="threads or processes that load")
    p.add_argument("--engine", default="auto", choices=["auto", "dali", "torch"], help="who loads")
    here = "cuda" if torch.cuda.is_available() else "cpu"
    p.add_argument("--device", default=here, choices=["cuda", "cpu"], help="what loads and trains")
    p.add_argument("--on-error", default="replace", choices=["raise", "replace"], help="what a bad image does")
    p.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation")
    p.add_argument("--save-every", type=int, default=500, help="steps between checkpoints within an epoch")
    p.add_argument("--max-steps", type=int, help="stop after this many steps, as if the process had been killed")
    return p.parse_args()


def total(values: Tensor) -> Tensor:
    """The sum over all ranks."""
    if dist.is_initialized():
        values = values.clone()
        dist.all_reduce(values)
    return values


def data_folder(args: argparse.Namespace, rank: int) -> Path:
    if args.data is not None:
        return Path(args.data)
    root: Path = args.out / "photos"
    if rank == 0 and not (root / "val").is_dir():
        make_photos(root / "train", classes=4, per_class=64, seed=args.seed)
        make_photos(root / "val", classes=4, per_class=16, seed=args.seed + 1)
    if dist.is_initialized():
        dist.barrier()
    return root


def make_loaders(
    args: argparse.Namespace, root: Path, shard: gpupipe.Shard, device: torch.device
) -> tuple[DataLoader, DataLoader]:
    train = imagenet.train(args.size, memory_format="channels_last")
    val = imagenet.val(args.size, resize=round(args.size * 256 / 224), memory_format="channels_last")
    common: dict[str, Any] = {
        "batch_size": args.batch_size,
        "num_workers": args.workers,
        "device": device,
        "engine": args.engine,
        "seed": args.seed,
        "shard": shard,
    }
    return (
        DataLoader(
            datasets.ImageFolder(root / "train", train), shuffle=True, drop_last=True, on_error=args.on_error, **common
        ),
        DataLoader(datasets.ImageFolder(root / "val", val), **common),
    )


def make_model(args: argparse.Namespace, classes: int, device: torch.device) -> nn.Module:
    torch.manual_seed(args.seed)  # the same weights on every rank
    if args.model == "small":
        model: nn.Module = SmallResNet(classes)
    else:
        from torchvision.models import get_model

        model = get_model(args.model, num_classes=classes)
    return model.to(device).to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


def make_optimizer(args: argparse.Namespace, model: nn.Module, world_size: int) -> torch.optim.Optimizer:
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]  # biases and norms
    groups = [{"params": decay, "weight_decay": args.weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
    lr = args.lr * args.batch_size * world_size / 256
    return torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True)


class Trainer:
    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.stop = Stop()
        self.shard, self.device = start(args)
        self.main = self.shard.rank == 0
        self.console = Console(quiet=not self.main)
        args.out.mkdir(parents=True, exist_ok=True)
        root = data_folder(args, self.shard.rank)
        self.train_loader, self.val_loader = make_loaders(args, root, self.shard, self.device)
        if len(self.train_loader) == 0:
            raise SystemExit(f"fewer training images than one batch of {args.batch_size} on every rank")
        self.raw_model = make_model(args, len(self.train_loader.dataset.classes), self.device)
        self.optimizer = make_optimizer(args, self.raw_model, self.shard.world_size)
        epoch_steps = len(self.train_loader)
        warmup, steps = int(args.warmup * epoch_steps), args.epochs * epoch_steps
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: cosine(s, warmup, steps))
        self.loss = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
        self.step = 0
        self.epoch = 0
        # Sum of the losses and number of images, of this epoch so far.
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        self.checkpoint = args.out / "checkpoint.pt"
        if args.resume:
            self.load()
        model: nn.Module = torch.compile(self.raw_model) if args.compile else self.raw_model  # type: ignore[assignment]
        if dist.is_initialized():
            model = DistributedDataParallel(model, [self.device] if self.device.type == "cuda" else None)
        self.model = model

    def save(self) -> None:
        """Everything that the rest of the run depends on, in one file that is never half written."""
        sums = total(self.sums)
        if not self.main:
            return
        state = {
            "model": self.raw_model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "loader": self.train_loader.state_dict(),
            "epoch": self.epoch,
            "step": self.step,
            "sums": sums.cpu(),
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.checkpoint)

    def load(self) -> None:
        if not self.checkpoint.exists():
            raise SystemExit(f"--resume: there is no {self.checkpoint}")
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        self.raw_model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.train_loader.load_state_dict(state["loader"])
        self.epoch, self.step = state["epoch"], state["step"]
        if self.main:  # the sums are over all ranks, so one of them goes on with them
            self.sums.copy_(state["sums"])

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def train_step(self, images: Tensor, target: Tensor) -> Tensor:
        # Seeded by position, so that a resumed run draws the same dropout masks.
        torch.manual_seed((self.args.seed * 1_000_003 + self.step) * self.shard.world_size + self.shard.rank)
        with self.autocast():
            loss: Tensor = self.loss(self.model(images), target)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        loss = loss.detach()
        self.sums += torch.stack([loss.double() * len(target), torch.full_like(loss, len(target)).double()])
        return loss

    def train_epoch(self, progress: Progress) -> bool:
        """The rest of the present epoch. Returns False if ``--max-steps`` ended it early."""
        self.model.train()
        steps = len(self.train_loader)
        done = self.step - self.epoch * steps
        task = progress.add_task(f"epoch {self.epoch}", total=steps, completed=done, loss=math.nan)
        self.train_loader.set_epoch(self.epoch)
        for images, target in self.train_loader:
            loss = self.train_step(images, target)
            if self.step % 20 == 0 or self.device.type == "cpu":  # on a GPU, reading the loss waits for it
                progress.update(task, loss=loss.item())
            progress.advance(task)
            if self.step % self.args.save_every == 0:
                self.save()
            if self.step == self.args.max_steps:
                return False
            if self.stop.agreed(self.step, self.device):
                self.save()
                self.stop.leave(f"saved after step {self.step}; --resume goes on from there")
        progress.remove_task(task)
        return True

    @torch.inference_mode()
    def evaluate(self) -> dict[str, float]:
        """Over the whole validation set, every image exactly once, whatever the number of ranks."""
        self.model.eval()
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        for images, target in self.val_loader:
            real = self.val_loader.valid  # what comes after pads the batch to the size of the other ranks'
            with self.autocast():
                logits = self.model(images)[:real].float()
            target = target[:real]
            top = logits.topk(min(5, logits.shape[1])).indices == target[:, None]
            loss = nn.functional.cross_entropy(logits, target, reduction="sum")
            sums += torch.stack([loss.double(), top[:, 0].sum().double(), top.sum().double(), loss.new_tensor(real)])
        loss_sum, top1, top5, count = total(sums).tolist()
        return {"val_loss": loss_sum / count, "top1": top1 / count, "top5": top5 / count, "val_images": count}

    def run(self) -> None:
        self.console.print(self.train_loader)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, disable=not self.main) as progress:
            while self.epoch < self.args.epochs:
                began, before = time.perf_counter(), self.train_loader.stats()
                if not self.train_epoch(progress):
                    return
                seconds, after = time.perf_counter() - began, self.train_loader.stats()
                loss_sum, images = total(self.sums).tolist()
                row = {"epoch": self.epoch, "step": self.step, "loss": loss_sum / images, **self.evaluate()}
                here = (after["samples"] - before["samples"]) * self.shard.world_size
                row["images_per_second"] = here / seconds
                row["waited_for_data"] = (after["wait_seconds"] - before["wait_seconds"]) / seconds
                self.epoch += 1
                self.sums.zero_()
                self.save()
                if self.main:
                    with (self.args.out / "metrics.jsonl").open("a") as f:
                        f.write(json.dumps(row) + "\n")
                progress.console.print("  ".join(f"{k} {v:.5g}" for k, v in row.items()))
        if self.train_loader.report().samples:
            self.console.print(self.train_loader.report())

    def close(self) -> None:
        self.train_loader.close()
        self.val_loader.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def main() -> None:
    trainer = Trainer(parse())
    try:
        trainer.run()
    finally:
        trainer.close()


if __name__ == "__main__":
    main()
