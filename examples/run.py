"""What recipes share: arguments, processes, progress, metrics, checkpoints, and a run that goes on where it stopped.

A recipe keeps its own loop::

    run = Run(args, device, loader, {"model": model}, optimizer)
    for _ in run.epochs():
        for images, labels in run.steps():
            with run.autocast():
                loss = criterion(model(images), labels)
            run.step(loss)
        run.end_epoch(accuracy=evaluate(model), best="accuracy")
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common import Help, Stop, cosine
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpupipe import DataLoader, Shard

__all__ = ["Run", "arguments", "knn_accuracy", "parameters", "prepared", "total", "wrapped"]


def arguments(
    description: str | None,
    name: str,
    *,
    epochs: int,
    batch_size: int,
    size: int | None = None,
    lr: float,
    weight_decay: float = 0.05,
) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every recipe and these defaults. ``size=None``: images of any size."""
    p = argparse.ArgumentParser(description=description, formatter_class=Help)
    p.add_argument("data", nargs="?", type=Path, help="folder of the data; made if it is not given")
    p.add_argument("--out", type=Path, default=Path("runs") / name, help="run folder")
    p.add_argument("--resume", action="store_true", help="go on from last.pt in the run folder")
    p.add_argument("--epochs", type=int, default=epochs, help="how many in all, counted from 0")
    p.add_argument("--batch-size", type=int, default=batch_size, help="of all processes together")
    if size is not None:
        p.add_argument("--size", type=int, default=size, help="edge of the training images in pixels")
    p.add_argument("--lr", type=float, default=lr, help="after the warm-up")
    p.add_argument("--warmup", type=float, default=1.0, help="epochs of linear warm-up")
    p.add_argument("--weight-decay", type=float, default=weight_decay, help="not of biases and norms")
    p.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="threads or processes that load")
    p.add_argument("--engine", default="auto", choices=["auto", "dali", "torch"], help="who loads")
    here = "cuda" if torch.cuda.is_available() else "cpu"
    p.add_argument("--device", default=here, choices=["cuda", "cpu"], help="what loads and trains")
    p.add_argument("--amp", action=argparse.BooleanOptionalAction, default=here == "cuda", help="bfloat16")
    p.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation")
    p.add_argument("--save-every", type=int, default=500, help="steps between checkpoints within an epoch")
    p.add_argument("--max-steps", type=int, help="stop after this many steps, as if the process had been killed")
    p.add_argument("--tensorboard", action="store_true", help="also write for TensorBoard, if it is installed")
    return p


def parameters(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return what an optimizer trains: weights that decay, and biases and norms that do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed, others = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def prepared(folder: Path, shard: Shard, make: Callable[[Path], object]) -> Path:
    """Return a folder that rank 0 fills if it is not there."""
    if shard.rank == 0 and not folder.exists():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        make(partial)
        partial.rename(folder)
    if dist.is_initialized():
        dist.barrier()
    return folder


def total(values: Tensor) -> Tensor:
    """Return the sum over all ranks."""
    if dist.is_initialized():
        values = values.clone()
        dist.all_reduce(values)
    return values


def wrapped(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model whose gradients are averaged over all ranks, or itself if there is one."""
    if not dist.is_initialized():
        return model
    return DistributedDataParallel(model, [device] if device.type == "cuda" else None)


class Run:
    """A training run in a folder: ``last.pt``, ``best.pt`` and ``metrics.csv``.

    Args:
        args: parsed by :func:`arguments`.
        loader: of the training images.
        modules: everything with weights, by name; unwrapped.
        optimizer: its learning rates follow a warm-up and a cosine.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        device: torch.device,
        loader: DataLoader,
        modules: Mapping[str, nn.Module],
        optimizer: torch.optim.Optimizer,
    ):
        if len(loader) == 0:
            raise SystemExit(f"fewer training images than one batch of {args.batch_size}")
        self.args, self.device, self.loader, self.modules, self.optimizer = args, device, loader, modules, optimizer
        self.main = loader.shard.rank == 0
        self.epoch = self.step_number = 0
        self.best: float | None = None
        self._stop, self._ended = Stop(), False
        self._sums: dict[str, Tensor] = {}
        """Of this epoch so far: (sum, count) of the loss and of other values."""
        per_epoch = len(loader)
        warmup, steps = int(args.warmup * per_epoch), args.epochs * per_epoch
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, warmup, steps))
        args.out.mkdir(parents=True, exist_ok=True)
        self.last = args.out / "last.pt"
        if args.resume:
            self._load()
        self._writer: Any = None
        if args.tensorboard and self.main:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(args.out))
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}")
        self.progress = Progress(*columns, TimeRemainingColumn(), console=Console(quiet=not self.main))

    def epochs(self) -> Iterator[int]:
        """Yield the epochs that remain."""
        self.progress.console.print(self.loader)
        with self.progress, self.loader:
            while self.epoch < self.args.epochs and not self._ended:
                yield self.epoch
        if dist.is_initialized():
            dist.destroy_process_group()

    def steps(self) -> Iterator[Any]:
        """Yield the batches that remain of the epoch. Saves in between, and when the process is asked to stop."""
        count = len(self.loader)
        done = self.step_number - self.epoch * count
        task = self.progress.add_task(f"epoch {self.epoch}", total=count, completed=done, loss="")
        began, before = time.perf_counter(), self.loader.stats()
        self.loader.set_epoch(self.epoch)
        for batch in self.loader:
            # Seeded by position, so that a resumed run draws the same masks and noise.
            torch.manual_seed((self.args.seed * 1_000_003 + self.step_number) * 4096 + self.loader.shard.rank)
            yield batch
            self.step_number += 1
            if self.step_number % 20 == 0 or self.device.type == "cpu":  # on a GPU, reading the loss waits for it
                shown = "  ".join(f"{k} {(v[0] / v[1]).item():.4g}" for k, v in self._sums.items())
                self.progress.update(task, loss=shown)
            self.progress.advance(task)
            if self.step_number % self.args.save_every == 0:
                self._save(self.last)
            if self.step_number == self.args.max_steps:
                self._ended = True
                return
            if self._stop.agreed(self.step_number, self.device):
                self._save(self.last)
                self._stop.leave(f"saved after step {self.step_number}; --resume goes on from there")
        self.progress.remove_task(task)
        seconds, after = time.perf_counter() - began, self.loader.stats()
        self._speed = {
            "images_per_second": (after["samples"] - before["samples"]) * self.loader.shard.world_size / seconds,
            "waited_for_data": (after["wait_seconds"] - before["wait_seconds"]) / seconds,
        }

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.amp)

    def step(self, loss: Tensor, **metrics: Tensor) -> None:
        """Change the weights, and note the loss and other values for the mean of the epoch."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        for name, value in {"loss": loss, **metrics}.items():
            pair = torch.stack([value.detach().double(), torch.ones((), dtype=torch.float64, device=value.device)])
            self._sums[name] = self._sums.get(name, 0) + pair

    def end_epoch(self, *, best: str = "", lowest: bool = False, **metrics: float) -> None:
        """Write the metrics of an epoch, and save.

        Args:
            best: name of the metric whose highest value, or ``lowest``, is kept in ``best.pt``.
        """
        if self._ended:
            return
        sums = {name: total(pair) for name, pair in self._sums.items()}
        means = {name: (pair[0] / pair[1]).item() for name, pair in sums.items()}
        row = {"epoch": self.epoch, "step": self.step_number, **means, **metrics, **self._speed}
        self._sums.clear()
        self.epoch += 1
        value = metrics.get(best)
        if value is not None and (self.best is None or (value < self.best if lowest else value > self.best)):
            self.best = value
            self._save(self.args.out / "best.pt")
        self._save(self.last)
        self.progress.console.print("  ".join(f"{k} {v:.5g}" for k, v in row.items()))
        if not self.main:
            return
        path = self.args.out / "metrics.csv"
        is_new = not path.exists()
        with path.open("a", newline="") as f:
            writer = csv.DictWriter(f, list(row))
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        for name, number in row.items() if self._writer is not None else ():
            self._writer.add_scalar(name, number, self.epoch)

    def _save(self, path: Path) -> None:
        """Write everything that the rest of the run depends on, in one file that is never half written."""
        sums = {name: total(pair).cpu() for name, pair in self._sums.items()}
        if not self.main:
            return
        state = {
            **{name: module.state_dict() for name, module in self.modules.items()},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "loader": self.loader.state_dict(),
            "epoch": self.epoch,
            "step": self.step_number,
            "best": self.best,
            "sums": sums,
        }
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, path)

    def _load(self) -> None:
        if not self.last.exists():
            raise SystemExit(f"--resume: there is no {self.last}")
        state = torch.load(self.last, map_location=self.device, weights_only=True)
        for name, module in self.modules.items():
            module.load_state_dict(state[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.loader.load_state_dict(state["loader"])
        self.epoch, self.step_number, self.best = state["epoch"], state["step"], state["best"]
        if self.main:  # the sums are over all ranks, so one of them goes on with them
            self._sums = {name: pair.to(self.device) for name, pair in state["sums"].items()}


@torch.inference_mode()
def knn_accuracy(encoder: nn.Module, known: DataLoader, asked: DataLoader, k: int = 10) -> float:
    """Return the share of images of ``asked`` whose label most of their ``k`` nearest images of ``known`` have.

    It tells how well features separate classes that training never saw.
    """
    was_training = encoder.training
    encoder.eval()
    parts = []
    for loader in (known, asked):
        found = [(nn.functional.normalize(encoder(images)), labels) for images, labels in loader]
        parts += [torch.cat([features for features, _ in found]), torch.cat([labels for _, labels in found])]
    encoder.train(was_training)
    known_features, known_labels, features, labels = parts
    nearest = (features @ known_features.T).topk(min(k, len(known_labels))).indices
    return float((known_labels[nearest].mode(dim=1).values == labels).float().mean())
