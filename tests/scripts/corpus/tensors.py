"""Images that are tensors before their transforms, as torchvision's second generation likes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import io, tv_tensors
from torchvision.io import ImageReadMode, decode_image, read_image
from torchvision.transforms import functional as TF, v2
from torchvision_ops import define_image_operators

from ..harness.script import Args, Epochs, script
from .common import IMAGENET_MEAN, IMAGENET_STD
from .kaggle import table

define_image_operators(io.image)

FLOATS = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
TRAIN = v2.Compose([v2.RandomResizedCrop(32, antialias=True), v2.RandomHorizontalFlip(p=0.5), *FLOATS])
VALID = v2.Compose([v2.Resize(40, antialias=True), v2.CenterCrop(32), *FLOATS])


class CustomImageDataset(Dataset[Any]):
    """A table of names and labels, a folder of images, and two transforms."""

    def __init__(self, data: Any, transform: Any = None, target_transform: Any = None):
        self.img_labels = [(row["image_id"] + ".jpg", int(row["label"])) for row in table(data / "train.csv")]
        self.img_dir = data / "images"
        self.transform, self.target_transform = transform, target_transform

    def __len__(self) -> int:
        return len(self.img_labels)

    def image(self, path: Any) -> Any:
        return decode_image(str(path), mode=ImageReadMode.RGB)

    def __getitem__(self, idx: int) -> Any:
        name, label = self.img_labels[idx]
        image: Any = self.image(self.img_dir / name)
        if self.transform:
            image = self.transform(image)
        if self.target_transform:
            label = self.target_transform(label)
        return image, label


@script(engine="some")
def tutorial_decode_image(args: Args, DataLoader: Any) -> Epochs:
    """PyTorch's tutorial on datasets: a csv of labels, decode_image, a transform and a target_transform."""
    train = DataLoader(CustomImageDataset(args.data, TRAIN), batch_size=8, shuffle=True, num_workers=args.workers)
    test = DataLoader(CustomImageDataset(args.data, VALID, lambda y: y % 5), batch_size=8, shuffle=False)
    for _ in range(args.epochs):
        yield train
        yield test


@script(engine="some")
def read_image_as_tv_tensor(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's getting-started gallery: read_image, wrapped into tv_tensors.Image, photometric changes behind."""

    class Wrapped(CustomImageDataset):
        def image(self, path: Any) -> Any:
            return tv_tensors.Image(read_image(str(path), mode=ImageReadMode.RGB))

    transforms = v2.Compose(
        [v2.RandomResizedCrop(size=(32, 32)), v2.RandomHorizontalFlip(), v2.ColorJitter(0.3, 0.3), *FLOATS]
    )
    loader = DataLoader(Wrapped(args.data, transforms), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="torch")
def tensors_of_bytes(args: Args, DataLoader: Any) -> Epochs:
    """Encoded images in memory: a uint8 tensor per file, decoded when a sample is asked for."""

    class Encoded(CustomImageDataset):
        def image(self, path: Any) -> Any:
            return io.decode_jpeg(torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8), mode="RGB")

    loader = DataLoader(Encoded(args.data, VALID), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="dali")
def pil_to_tensor_first(args: Args, DataLoader: Any) -> Epochs:
    """Pillow opens, pil_to_tensor makes a tensor of bytes, and the transforms of two views get it."""

    class TwoViews(CustomImageDataset):
        def image(self, path: Any) -> Any:
            return TF.pil_to_tensor(Image.open(path).convert("RGB"))

        def __getitem__(self, idx: int) -> Any:
            name, label = self.img_labels[idx]
            image = self.image(self.img_dir / name)
            return self.transform(image), self.transform(image), label

    loader = DataLoader(TwoViews(args.data, TRAIN), batch_size=8, shuffle=True, drop_last=True)
    yield from [loader] * args.epochs


@script(engine="torch")
def from_numpy_permuted(args: Args, DataLoader: Any) -> Epochs:
    """An array of a PIL image, turned into a tensor by hand, in a dictionary with its name."""

    class ByHand(CustomImageDataset):
        def __getitem__(self, idx: int) -> Any:
            name, label = self.img_labels[idx]
            with Image.open(self.img_dir / name) as file:
                image = torch.from_numpy(np.array(file.convert("RGB"))).permute(2, 0, 1)
            return {"pixel_values": self.transform(image), "labels": label, "name": name}

    loader = DataLoader(ByHand(args.data, TRAIN), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="torch")
def uint8_tensors_in_memory(args: Args, DataLoader: Any) -> Epochs:
    """CIFAR-like images kept as one uint8 tensor, with v2 transforms for each."""

    class Kept(Dataset[Any]):
        def __init__(self, transform: Any):
            self.images = torch.from_numpy(np.load(args.data / "images.npy")).permute(0, 3, 1, 2).contiguous()
            self.labels = torch.from_numpy(np.load(args.data / "labels.npy"))
            self.transform = transform

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, i: int) -> Any:
            return self.transform(self.images[i]), self.labels[i]

    transform = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), *FLOATS])
    loader = DataLoader(Kept(transform), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
