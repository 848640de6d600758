"""Train a video classifier on a folder of classes, and evaluate it on several clips of every video.

    python examples/train_video.py                                             # no data needed: makes clips
    python examples/train_video.py /data/kinetics --model r2plus1d_18 --epochs 45 --batch-size 16
    torchrun --nproc-per-node 8 examples/train_video.py /data/kinetics --model r2plus1d_18 --batch-size 16
    python examples/train_video.py --resume                                    # goes on where it stopped

The data folder holds ``train/<class>/*`` and ``val/<class>/*``, videos of any length. It needs
``gpupipe-loader[video]``. The run folder gets ``checkpoint.pt`` and one line per epoch in ``metrics.jsonl``.

What is worth copying: ``clips=`` and ``dataset.clip_ids`` with ``loader.sampler`` and ``loader.valid``, which average
the scores of a video's clips exactly, on any number of GPUs; and the loader's state in the checkpoint, so that a run
that was killed in the middle of an epoch goes on with the very next clip.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from common import Help, Stop
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gpupipe
from gpupipe import DataLoader, datasets
from gpupipe.pipelines import kinetics
from gpupipe.testing.photos import photograph

MOTIONS = {"left": (0, 3), "right": (0, -3), "up": (3, 0), "down": (-3, 0)}
"""Classes of the clips that are made here, which a single frame does not tell apart: rows, columns per frame."""


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    p.add_argument("data", nargs="?", type=Path, help="folder with train/ and val/; made if it is not given")
    p.add_argument("--out", type=Path, default=Path("runs/video"), help="run folder")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint in the run folder")
    p.add_argument("--model", default="small", help='"small" (built in), or one of torchvision such as "r2plus1d_18"')
    p.add_argument("--epochs", type=int, default=8, help="how many in all, counted from 0")
    p.add_argument("--batch-size", type=int, default=8, help="clips, per process")
    p.add_argument("--frames", type=int, default=8, help="frames of a clip")
    p.add_argument("--stride", type=int, default=2, help="frames from one to the next")
    p.add_argument("--size", type=int, default=112, help="edge of the frames in pixels")
    p.add_argument("--val-clips", type=int, default=3, help="clips of each video whose scores are averaged")
    p.add_argument("--videos", type=int, default=24, help="of each class, if they are made")
    p.add_argument("--lr", type=float, default=0.02, help="learning rate")
    p.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="threads that decode")
    p.add_argument("--engine", default="auto", choices=["auto", "dali", "torch"], help="who loads")
    here = "cuda" if torch.cuda.is_available() else "cpu"
    p.add_argument("--device", default=here, choices=["cuda", "cpu"], help="what loads and trains")
    p.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation")
    p.add_argument("--save-every", type=int, default=200, help="steps between checkpoints within an epoch")
    p.add_argument("--max-steps", type=int, help="stop after this many steps, as if the process had been killed")
    return p.parse_args()


def make_videos(root: Path, per_class: int, seed: int) -> None:
    """H.264 videos of 96x128 pixels and 24 to 40 frames: photographs that move."""
    import av

    rng = np.random.default_rng(seed)
    for name, (down, right) in MOTIONS.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            picture = photograph(96, 128, seed * 10_000 + 100 * i + len(name))
            with av.open(str(root / name / f"{i:03d}.mp4"), "w") as out:
                stream: Any = out.add_stream("libx264", rate=25, options={"preset": "ultrafast"})
                stream.height, stream.width, stream.pix_fmt, stream.thread_count = 96, 128, "yuv420p", 1
                for k in range(int(rng.integers(24, 41))):
                    moved = np.ascontiguousarray(np.roll(picture, (-k * down, -k * right), (0, 1)))
                    out.mux(stream.encode(av.VideoFrame.from_ndarray(moved, format="rgb24")))
                out.mux(stream.encode(None))


class Small3D(nn.Module):
    """Four 3D convolutions; sees motion at once, and is fast on a CPU."""

    def __init__(self, classes: int, width: int = 12):
        super().__init__()
        layers: list[nn.Module] = []
        widths = [3, width, 2 * width, 4 * width, 4 * width]
        strides = [(1, 4, 4), (2, 2, 2), (2, 2, 2), (1, 2, 2)]
        for before, after, stride in zip(widths, widths[1:], strides, strict=False):
            layers += [nn.Conv3d(before, after, 3, stride, 1, bias=False), nn.BatchNorm3d(after), nn.ReLU(True)]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten())
        self.head = nn.Linear(4 * width, classes)

    def forward(self, clips: Tensor) -> Tensor:
        """f32[B, 3, T, H, W] to f32[B, classes]."""
        out: Tensor = self.head(self.features(clips))
        return out


def total(values: Tensor) -> Tensor:
    """The sum over all ranks."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


class Trainer:
    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.stop = Stop()
        self.device = torch.device(args.device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(self.device)
        if "RANK" in os.environ:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        self.shard = gpupipe.Shard.from_env()
        args.out.mkdir(parents=True, exist_ok=True)
        self.make_loaders(self.data_folder())
        classes = len(self.val_set.classes)
        torch.manual_seed(args.seed)  # the same weights on every rank
        if args.model == "small":
            model: nn.Module = Small3D(classes)
        else:
            from torchvision.models import get_model

            model = get_model(args.model, num_classes=classes)
        self.raw_model = model.to(self.device)
        self.optimizer = torch.optim.SGD(self.raw_model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
        steps = args.epochs * len(self.train_loader)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, max(1, steps))
        self.step = self.epoch = 0
        self.checkpoint = args.out / "checkpoint.pt"
        if args.resume:
            self.load()
        self.model: nn.Module = self.raw_model
        if dist.is_initialized():
            self.model = DistributedDataParallel(model, [self.device] if self.device.type == "cuda" else None)

    def data_folder(self) -> Path:
        if self.args.data is not None:
            return Path(self.args.data)
        root: Path = self.args.out / "videos"
        if self.shard.rank == 0 and not (root / "val").is_dir():
            make_videos(root / "train", self.args.videos, self.args.seed)
            make_videos(root / "val", max(1, self.args.videos // 4), self.args.seed + 1)
        if dist.is_initialized():
            dist.barrier()
        return root

    def make_loaders(self, root: Path) -> None:
        a = self.args
        clip = {"frames": a.frames, "stride": a.stride}
        # Mirrored, "left" would be "right". With scale=(0.5, 1) there is something to see in every window.
        train = [t for t in kinetics.train(a.size, scale=(0.5, 1.0)) if "Flip" not in type(t).__name__]
        val = kinetics.val(a.size, round(a.size * 256 / 224))
        self.val_set = datasets.VideoFolder(root / "val", **clip, clips=a.val_clips, sampling="uniform", transform=val)
        common: dict[str, Any] = {
            "batch_size": a.batch_size, "num_workers": a.workers, "device": self.device, "engine": a.engine,
            "seed": a.seed, "shard": self.shard,
        }  # fmt: skip
        train_set = datasets.VideoFolder(root / "train", **clip, transform=train)
        self.train_loader = DataLoader(train_set, shuffle=True, drop_last=True, on_error="replace", **common)
        self.val_loader = DataLoader(self.val_set, **common)
        if not len(self.train_loader):
            raise SystemExit(f"fewer training videos than one batch of {a.batch_size} on every rank")

    def save(self) -> None:
        if self.shard.rank:
            return
        state = {
            "model": self.raw_model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "loader": self.train_loader.state_dict(),
            "epoch": self.epoch,
            "step": self.step,
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.checkpoint)

    def load(self) -> None:
        if not self.checkpoint.exists():
            raise SystemExit(f"--resume: there is no {self.checkpoint}")
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        for name in ("model", "optimizer", "scheduler", "loader"):
            part: Any = {"model": self.raw_model, "loader": self.train_loader}.get(name) or getattr(self, name)
            part.load_state_dict(state[name])
        self.epoch, self.step = state["epoch"], state["step"]

    def train_epoch(self) -> bool:
        """The rest of the present epoch. Returns False if ``--max-steps`` ended it early."""
        self.model.train()
        self.train_loader.set_epoch(self.epoch)
        for clips, target in self.train_loader:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                loss = nn.functional.cross_entropy(self.model(clips), target)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
            if self.step % self.args.save_every == 0:
                self.save()
            if self.step == self.args.max_steps:
                return False
            if self.stop.agreed(self.step, self.device):
                self.save()
                self.stop.leave(f"saved after step {self.step}; --resume goes on from there")
        return True

    @torch.inference_mode()
    def evaluate(self) -> dict[str, float]:
        """Every clip exactly once, whatever the number of ranks; then one answer for each video."""
        self.model.eval()
        ids = torch.from_numpy(self.val_set.clip_ids).long()  # [N, 2]: which video a sample is of, and which clip
        scores = torch.zeros(self.val_set.video_count, len(self.val_set.classes) + 1, device=self.device)
        mine = iter(self.val_loader.sampler)  # this rank's samples, in the order of its batches
        for clips, target in self.val_loader:
            samples = torch.tensor(list(itertools.islice(mine, len(target))))
            real = self.val_loader.valid  # what comes after pads the batch to the size of the other ranks'
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                logits = self.raw_model(clips)[:real].float()
            counted = torch.cat([logits.softmax(1), torch.ones_like(logits[:, :1])], dim=1)
            scores.index_add_(0, ids[samples[:real], 0].to(self.device), counted)
        scores = total(scores).cpu()
        first = np.flatnonzero(self.val_set.clip_ids[:, 1] == 0)
        labels = torch.from_numpy(np.asarray(self.val_set.labels)[first])
        right = (scores[:, :-1].argmax(1) == labels).float().mean()
        return {"videos": len(labels), "clips": int(scores[:, -1].sum()), "top1": float(right)}

    def run(self) -> None:
        main = self.shard.rank == 0
        if main:
            print(self.train_loader)
        while self.epoch < self.args.epochs:
            if not self.train_epoch():
                return
            row = {"epoch": self.epoch, "step": self.step, **self.evaluate()}
            self.epoch += 1
            self.save()
            if main:
                with (self.args.out / "metrics.jsonl").open("a") as f:
                    f.write(json.dumps(row) + "\n")
                print("  ".join(f"{k} {v:.5g}" for k, v in row.items()))

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
