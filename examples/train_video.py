"""Train a video classifier on a folder of classes, and evaluate it on several clips of every video.

    python examples/train_video.py                                             # no data needed: makes clips
    python examples/train_video.py /data/kinetics --model r2plus1d_18 --epochs 45 --batch-size 16
    torchrun --nproc-per-node 8 examples/train_video.py /data/kinetics --model r2plus1d_18 --batch-size 128
    python examples/train_video.py --resume                                    # goes on where it stopped

The data folder holds ``train/<class>/*`` and ``val/<class>/*``, videos of any length. It needs
``gpupipe-loader[video]``. The run folder gets ``best.pt``, ``last.pt`` and ``metrics.csv``.

What is worth copying: ``clips=`` and ``dataset.clip_ids`` with ``loader.sampler`` and ``loader.valid``, which average
the scores of a video's clips exactly, on any number of GPUs; and the loader's state in the checkpoint, so that a run
that was killed in the middle of an epoch goes on with the very next clip.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from run import Run, arguments, parameters, prepared, start, total, wrapped
from torch import Tensor, nn

from gpupipe import DataLoader, Shard, datasets
from gpupipe.pipelines import kinetics
from gpupipe.testing.photos import photograph

MOTIONS = {"left": (0, 3), "right": (0, -3), "up": (3, 0), "down": (-3, 0)}
"""Classes of the clips that are made here, which a single frame does not tell apart: rows, columns per frame."""


def parse() -> argparse.Namespace:
    p = arguments(__doc__, "video", epochs=8, batch_size=8, size=112, lr=0.02, weight_decay=1e-4)
    p.add_argument("--model", default="small", help='"small" (built in), or one of torchvision such as "r2plus1d_18"')
    p.add_argument("--frames", type=int, default=8, help="frames of a clip")
    p.add_argument("--stride", type=int, default=2, help="frames from one to the next")
    p.add_argument("--val-clips", type=int, default=3, help="clips of each video whose scores are averaged")
    p.add_argument("--videos", type=int, default=24, help="of each class, if they are made")
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


def make_loaders(args: argparse.Namespace, shard: Shard, device: torch.device) -> tuple[DataLoader, DataLoader]:
    def make(root: Path) -> None:
        make_videos(root / "train", args.videos, args.seed)
        make_videos(root / "val", max(1, args.videos // 4), args.seed + 1)

    root = args.data or prepared(args.out / "videos", shard, make)
    clip = {"frames": args.frames, "stride": args.stride}
    # Mirrored, "left" would be "right". With scale=(0.5, 1) there is something to see in every window.
    train = [t for t in kinetics.train(args.size, scale=(0.5, 1.0)) if "Flip" not in type(t).__name__]
    val = kinetics.val(args.size, round(args.size * 256 / 224))
    common: dict[str, Any] = {
        "global_batch_size": args.batch_size, "num_workers": args.workers, "device": device, "engine": args.engine,
        "seed": args.seed, "shard": shard,
    }  # fmt: skip
    train_set = datasets.VideoFolder(root / "train", **clip, transform=train)
    val_set = datasets.VideoFolder(root / "val", **clip, clips=args.val_clips, sampling="uniform", transform=val)
    return (
        DataLoader(train_set, shuffle=True, drop_last=True, on_error="replace", **common),
        DataLoader(val_set, **common),
    )


def make_model(args: argparse.Namespace, classes: int) -> nn.Module:
    torch.manual_seed(args.seed)  # the same weights on every rank
    if args.model == "small":
        return Small3D(classes)
    from torchvision.models import get_model

    return get_model(args.model, num_classes=classes)  # type: ignore[no-any-return]


@torch.inference_mode()
def evaluate(run: Run, model: nn.Module, loader: DataLoader) -> tuple[float, int, int]:
    """Return the share of right videos, and numbers of videos and clips: every clip once on any number of ranks, then
    one answer for each video."""
    model.eval()
    videos = loader.dataset
    ids = torch.from_numpy(videos.clip_ids).long()  # [N, 2]: which video a sample is of, and which clip
    scores = torch.zeros(videos.video_count, len(videos.classes) + 1, device=run.device)
    mine = iter(loader.sampler)  # this rank's samples, in the order of its batches
    for clips, target in loader:
        samples = torch.tensor(list(itertools.islice(mine, len(target))))
        real = loader.valid  # what comes after pads the batch to the size of the other ranks'
        with run.autocast():
            logits = model(clips)[:real].float()
        counted = torch.cat([logits.softmax(1), torch.ones_like(logits[:, :1])], dim=1)
        scores.index_add_(0, ids[samples[:real], 0].to(run.device), counted)
    scores = total(scores).cpu()
    first = np.flatnonzero(videos.clip_ids[:, 1] == 0)
    labels = torch.from_numpy(np.asarray(videos.labels)[first])
    right = (scores[:, :-1].argmax(1) == labels).float().mean()
    return float(right), len(labels), int(scores[:, -1].sum())


def main() -> None:
    args = parse()
    shard, device = start(args)
    loader, evaluation = make_loaders(args, shard, device)
    model = make_model(args, len(evaluation.dataset.classes)).to(device)
    optimizer = torch.optim.SGD(parameters(model, args.weight_decay), args.lr, momentum=0.9)
    run = Run(args, device, loader, {"model": model}, optimizer)
    network = wrapped(model, args, device)
    for _ in run.epochs():
        network.train()
        for clips, target in run.steps():
            with run.autocast():
                loss = nn.functional.cross_entropy(network(clips), target)
            run.step(loss)
        top1, videos, count = evaluate(run, run.averaged(model), evaluation)
        run.end_epoch(top1=top1, videos=videos, clips=count, best="top1")


if __name__ == "__main__":
    main()
