"""Clips of frames. (torchvision's own video datasets need TorchCodec, which is not in the development environment.)"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.transforms import functional as F

from ..harness.script import Args, Epochs, script
from .common import normalize


class Segments(Dataset[Any]):
    """Folders of frames, one frame out of each of several segments."""

    def __init__(self, root: Any, list_file: str, num_segments: int, transform: Any, test_mode: bool):
        self.root, self.num_segments, self.transform, self.test_mode = root, num_segments, transform, test_mode
        with open(os.path.join(root, list_file)) as file:
            self.video_list = [line.split() for line in file]

    def __len__(self) -> int:
        return len(self.video_list)

    def __getitem__(self, index: int) -> Any:
        name, n_frames, label = self.video_list[index]
        length = int(n_frames) // self.num_segments
        shift = length // 2 if self.test_mode else np.random.randint(length, size=self.num_segments)
        offsets = np.arange(self.num_segments) * length + shift + 1
        images = [
            Image.open(os.path.join(self.root, "frames", name, f"img_{i:05d}.jpg")).convert("RGB") for i in offsets
        ]
        return self.transform(images), int(label)


@script(engine="dali")
def temporal_segments(args: Args, DataLoader: Any) -> Epochs:
    """yjxiong/tsn-pytorch: one crop and one flip for all frames of a video, stacked along the channels."""

    def group(images: list[Any]) -> torch.Tensor:
        window = transforms.RandomResizedCrop.get_params(images[0], [0.3, 1.0], [0.75, 1.33])
        flip = random.random() < 0.5
        frames = [F.resized_crop(img, *window, size=[32, 32]) for img in images]
        frames = [F.hflip(img) for img in frames] if flip else frames
        return torch.cat([normalize(F.to_tensor(img)) for img in frames])

    def center(images: list[Any]) -> torch.Tensor:
        return torch.cat([normalize(F.to_tensor(F.center_crop(img, [32, 32]))) for img in images])

    loader = DataLoader(
        Segments(args.data, "frames.txt", 3, group, False), batch_size=4, shuffle=True, num_workers=args.workers
    )
    yield from [loader] * args.epochs
    yield DataLoader(Segments(args.data, "frames.txt", 3, center, True), batch_size=4, shuffle=False)


class KeptCrop(transforms.RandomResizedCrop):
    """Draws again only when it is told to."""

    window: Any = None

    def randomize_parameters(self) -> None:
        self.window = None

    def __call__(self, img: Any) -> Any:
        self.window = self.window or self.get_params(img, self.scale, self.ratio)
        return F.resized_crop(img, *self.window, self.size, self.interpolation)


class KeptFlip:
    def __init__(self) -> None:
        self.randomize_parameters()

    def randomize_parameters(self) -> None:
        self.drawn = random.random()

    def __call__(self, img: Any) -> Any:
        return F.hflip(img) if self.drawn < 0.5 else img


class Frames(Dataset[Any]):
    """A range of frames, whose transforms keep their numbers for a clip."""

    def __init__(self, root: Any, list_file: str, duration: int, spatial_transform: Any):
        self.root, self.duration, self.spatial_transform = root, duration, spatial_transform
        with open(os.path.join(root, list_file)) as file:
            self.data = [line.split() for line in file]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        name, n_frames, label = self.data[index]
        begin = random.randint(1, int(n_frames) - self.duration + 1)
        for transform in self.spatial_transform.transforms:
            if hasattr(transform, "randomize_parameters"):
                transform.randomize_parameters()
        clip = []
        for i in range(begin, begin + self.duration):
            with open(os.path.join(self.root, "frames", name, f"img_{i:05d}.jpg"), "rb") as file:
                clip.append(self.spatial_transform(Image.open(file).convert("RGB")))
        return torch.stack(clip).permute(1, 0, 2, 3), int(label)


@script(engine="dali")
def kept_draws(args: Args, DataLoader: Any) -> Epochs:
    """kenshohara/3D-ResNets-PyTorch: transforms that keep their numbers until they are told to draw again."""
    pipeline = transforms.Compose([KeptCrop(32, (0.25, 1.0)), KeptFlip(), transforms.ToTensor(), normalize])
    dataset = Frames(args.data, "frames.txt", 4, pipeline)
    loader = DataLoader(dataset, batch_size=3, shuffle=True, num_workers=args.workers, pin_memory=True)
    yield from [loader] * args.epochs
