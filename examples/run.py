"""What recipes share: arguments, processes, progress, metrics, checkpoints, and a run that goes on where it stopped.

A recipe keeps its own loop::

    run = Run(args, device, loader, {"model": model}, optimizer)
    network = wrapped(model, args, device)
    for _ in run.epochs():
        for images, labels in run.steps():
            with run.autocast():
                loss = criterion(network(images), labels)
            run.step(loss)
        run.end_epoch(accuracy=evaluate(run.averaged(model)), best="accuracy")
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from common import Help, Stop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gpupipe import DataLoader, Shard, World
from gpupipe.errors import StateError
from gpupipe.testing.photos import make_photos

__all__ = ["Run", "arguments", "knn_accuracy", "parameters", "photographs", "prepared", "start", "total", "wrapped"]

Model = TypeVar("Model", bound=nn.Module)
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "none": torch.float32}


def arguments(
    description: str | None,
    name: str,
    *,
    epochs: int,
    batch_size: int,
    size: int | None = None,
    lr: float,
    weight_decay: float = 0.05,
    ema: bool = True,
) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every recipe and these defaults.

    Args:
        size: ``None`` for images of any size.
        ema: whether the recipe evaluates :meth:`Run.averaged`.
    """
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
    amp = "bfloat16" if here == "cuda" else "none"
    p.add_argument("--amp", default=amp, choices=[*TYPES], help="type of automatic mixed precision")
    p.add_argument("--accumulate", type=int, default=1, help="batches whose gradients change the weights together")
    p.add_argument("--clip", type=float, help="largest norm of the gradients")
    if ema:
        p.add_argument(
            "--ema", type=float, help="evaluate a moving average of the weights with this decay, such as 0.9999"
        )
    p.add_argument("--sync-bn", action="store_true", help="batch norm over all processes")
    p.add_argument("--compile", action="store_true", help="torch.compile the model")
    p.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation")
    p.add_argument("--save-every", type=int, default=500, help="steps between checkpoints within an epoch")
    p.add_argument("--max-steps", type=int, help="stop after this many steps, as if the process had been killed")
    p.add_argument("--tensorboard", action="store_true", help="also write for TensorBoard")
    return p


def start(args: argparse.Namespace) -> tuple[Shard, torch.device]:
    """Return this process's rank and device. Under torchrun and srun all processes meet here."""
    if args.tensorboard and find_spec("tensorboard") is None:
        raise SystemExit("--tensorboard: TensorBoard is not installed; pip install tensorboard")
    if args.sync_bn and args.device == "cpu":
        raise SystemExit("--sync-bn: torch synchronizes batch norm on GPUs only")
    world = World.here()
    device = world.device if args.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world.world_size > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=world.rank, world_size=world.world_size)
    return world.shard, device


def parameters(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return what an optimizer trains: weights that decay, and biases and norms that do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed, others = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def prepared(folder: Path, shard: Shard, make: Callable[[Path], object]) -> Path:
    """Return a folder that rank 0 fills if it is not there."""
    if shard.rank == 0 and not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(unfinished, ignore_errors=True)
        make(unfinished)
        unfinished.rename(folder)
    if dist.is_initialized():
        dist.barrier()
    return folder


def photographs(args: argparse.Namespace, shard: Shard) -> Path:
    """Return the data folder, or one with generated photographs of four classes."""
    folder: Path | None = args.data
    make = partial(make_photos, classes=4, per_class=64, seed=args.seed)
    return folder or prepared(args.out / "photos", shard, make)


def total(values: Tensor) -> Tensor:
    """Return the sum over all ranks."""
    if dist.is_initialized():
        values = values.clone()
        dist.all_reduce(values)
    return values


def wrapped(model: nn.Module, args: argparse.Namespace, device: torch.device) -> nn.Module:
    """Return what to train: the model, compiled if asked for, with gradients averaged over all ranks."""
    if args.sync_bn and dist.is_initialized():
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if args.compile:
        model = cast(nn.Module, torch.compile(model))
    if not dist.is_initialized():
        return model
    return DistributedDataParallel(model, [device] if device.type == "cuda" else None)


def learning_rate(step: int, warmup: int, steps: int) -> float:
    """Return the learning rate of a step relative to its peak: a linear warm-up, then half a cosine."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))


class Run:
    """A training run in a folder: ``last.pt``, ``best.pt`` and ``metrics.csv``.

    Args:
        args: parsed by :func:`arguments`.
        loader: of the training images.
        modules: everything with weights, by name; unwrapped. ``--ema`` averages the first.
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
        self._stop, self._ended, self._saved = Stop(), False, 0
        self._sums: dict[str, Tensor] = {}
        """Of this epoch so far: (sum, count) of the loss and of other values."""
        self._scaler = torch.amp.GradScaler(device.type, enabled=args.amp == "float16")
        self._average: AveragedModel | None = None
        self._trained = next(iter(modules.values()))
        if getattr(args, "ema", None) is not None:
            self._average = AveragedModel(self._trained, multi_avg_fn=get_ema_multi_avg_fn(args.ema), use_buffers=True)
            self.modules = {**modules, "average": self._average}
        args.out.mkdir(parents=True, exist_ok=True)
        self.last = args.out / "last.pt"
        if args.resume:
            self._load()
        self._writer: Any = None
        if args.tensorboard and self.main:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(args.out))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, TextColumn("{task.fields[shown]}"), console=Console(quiet=not self.main))

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
        task = self.progress.add_task(f"epoch {self.epoch}", total=len(self.loader), completed=self._place, shown="")
        self._began, self._before = time.perf_counter(), self.loader.stats()
        self.loader.set_epoch(self.epoch)
        for batch in self.loader:
            # Seeded by position, so that a resumed run draws the same masks and noise.
            torch.manual_seed((self.args.seed * 1_000_003 + self.step_number) * 4096 + self.loader.shard.rank)
            complete = self._completes_group
            yield batch
            self.step_number += 1
            self.progress.advance(task)
            if self.step_number % 20 == 0 or self.device.type == "cpu":  # on a GPU, reading the loss waits for it
                self.progress.update(task, shown=self._shown())
            if complete:  # a checkpoint has no gradients
                self._save_if_due()
            if self.step_number == self.args.max_steps:
                self._ended = True
                return
        self.progress.remove_task(task)
        self._speed = self._speed_so_far()

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        amp = self.args.amp
        return torch.autocast(self.device.type, TYPES[amp], enabled=amp != "none")

    def step(self, loss: Tensor, **metrics: Tensor) -> bool:
        """Add the gradients of a batch, and note the loss and other values for the mean of the epoch.

        Return whether the weights changed: they do once ``--accumulate`` batches, or the rest of the epoch, are added.
        """
        for name, value in {"loss": loss, **metrics}.items():
            pair = torch.stack([value.detach().double(), torch.ones((), dtype=torch.float64, device=value.device)])
            self._sums[name] = self._sums.get(name, 0) + pair
        self._scaler.scale(loss / self._group_size).backward()
        if not self._completes_group:
            return False
        per_epoch = len(self.loader)
        warmup, steps = int(self.args.warmup * per_epoch), self.args.epochs * per_epoch
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.lr * learning_rate(self.step_number, warmup, steps)
        if self.args.clip is not None:
            self._scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_([p for g in self.optimizer.param_groups for p in g["params"]], self.args.clip)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad()
        if self._average is not None:
            self._average.update_parameters(self._trained)
        return True

    def averaged(self, model: Model) -> Model:
        """Return what to evaluate: the moving average of the first of the modules under ``--ema``, or ``model``."""
        return model if self._average is None else cast(Model, self._average.module)

    def end_epoch(self, *, best: str = "", lowest: bool = False, **metrics: float) -> None:
        """Write the metrics of an epoch, and save.

        Args:
            best: the metric by which ``best.pt`` is chosen: its highest value, or its lowest with ``lowest=True``.
        """
        if self._ended:
            return
        sums = {name: total(pair) for name, pair in self._sums.items()}
        means = {name: (pair[0] / pair[1]).item() for name, pair in sums.items()}
        row = {"epoch": self.epoch, "step": self.step_number, **means, **metrics, **self._speed}
        self._sums.clear()
        self.epoch += 1
        value = row.get(best, math.nan)
        if not math.isnan(value) and (self.best is None or (value < self.best if lowest else value > self.best)):
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

    @property
    def _place(self) -> int:
        """How many batches of the epoch are done."""
        return self.step_number - self.epoch * len(self.loader)

    @property
    def _group_size(self) -> int:
        """How many batches change the weights together with the present one; fewer at the end of an epoch."""
        size: int = self.args.accumulate
        return min(size, len(self.loader) - self._place // size * size)

    @property
    def _completes_group(self) -> bool:
        return (self._place + 1) % self.args.accumulate == 0 or self._place + 1 == len(self.loader)

    def _speed_so_far(self) -> dict[str, float]:
        seconds, after = time.perf_counter() - self._began, self.loader.stats()
        return {
            "images_per_second": (after["samples"] - self._before["samples"]) * self.loader.shard.world_size / seconds,
            "waited_for_data": (after["wait_seconds"] - self._before["wait_seconds"]) / seconds,
        }

    def _shown(self) -> str:
        speed, waited = self._speed_so_far().values()
        means = [f"{name} {(pair[0] / pair[1]).item():.4g}" for name, pair in self._sums.items()]
        return "  ".join([*means, f"{speed:.0f} images/s", f"{waited:.0%} waiting"])

    def _save_if_due(self) -> None:
        if self._stop.agreed(self.step_number // self.args.accumulate, self.device):
            self._save(self.last)
            self._stop.leave(f"saved after step {self.step_number}; --resume goes on from there")
        if self.step_number - self._saved >= self.args.save_every:
            self._save(self.last)

    def _save(self, path: Path) -> None:
        """Write everything that the rest of the run depends on, in one file that is never half written."""
        self._saved = self.step_number
        sums = {name: total(pair).cpu() for name, pair in self._sums.items()}
        if not self.main:
            return
        state = {
            **{name: module.state_dict() for name, module in self.modules.items()},
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "loader": self.loader.state_dict(),
            "epoch": self.epoch,
            "step": self.step_number,
            "best": self.best,
            "sums": sums,
            "arguments": {name: str(value) for name, value in vars(self.args).items()},
        }
        unfinished = path.with_suffix(".partial")
        torch.save(state, unfinished)
        os.replace(unfinished, path)

    def _load(self) -> None:
        if not self.last.exists():
            raise SystemExit(f"--resume: there is no {self.last}")
        state = torch.load(self.last, map_location=self.device, weights_only=True)
        try:
            self.loader.load_state_dict(state["loader"])
        except StateError as error:
            now = {name: str(value) for name, value in vars(self.args).items()}
            other = [
                f"{name}: {was}, now {now[name]}" for name, was in state["arguments"].items() if was != now.get(name)
            ]
            raise SystemExit(f"--resume: {error}\nother arguments: {'; '.join(other)}") from None
        for name, module in self.modules.items():
            if name not in state:
                raise SystemExit(f"--resume: {self.last} was saved without --ema")
            module.load_state_dict(state[name])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        self.epoch, self.best = state["epoch"], state["best"]
        self.step_number = self._saved = state["step"]
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
