"""Datasets of small clips, and pipelines for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpupipe import transforms as T
from gpupipe.datasets import VideoList
from gpupipe.pipelines import kinetics

NAMES = ("bframes.mp4", "vfr.mp4", "cropped.mp4", "open.mkv", "vfr.mkv", "cfr.mp4", "late.mp4", "odd.mkv")
"""H.264 with B-frames and open groups, constant and varying rates, several sizes; see ``videos.py``."""
FRAMES = 5
"""Of a clip."""
BATCH = 3
SEED = 4
ENGINES = ("torch", "dali")
TENSOR = [T.ToTensor(), T.Normalize(kinetics.MEAN, kinetics.STD)]
TRAIN = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), *TENSOR])
GRAY = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.RandomGrayscale(0.5), *TENSOR])
"""Takes a graph of DALI on the CPU; what the others need is done to frames where they are decoded."""
RAW = T.Compose([T.RandomCrop(24), T.RandomHorizontalFlip(), T.PILToTensor()])
"""Exact in both engines."""


def clips(files: list[Path], transform: T.Compose = TRAIN, **arguments: Any) -> VideoList:
    """The label of a video is its number."""
    given = {"frames": FRAMES, "stride": 3, "labels": list(range(len(files))), "transform": transform, **arguments}
    return VideoList(files, **given)
