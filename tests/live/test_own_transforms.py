"""gpupipe's own transforms in a script's own Dataset."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader, Dataset
from torchvision import transforms as tv

from gpupipe import DataLoader, pipelines, transforms as T

from .beside import jpeg


class Own(Dataset[torch.Tensor]):
    def __init__(self, transform: T.Compose):
        self.transform = transform

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(Image.open(io.BytesIO(jpeg(index, 40, 48))))


def test_they_make_an_image_at_once() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 48, 3), np.uint8))
    ours = T.Compose([T.Resize(32), T.CenterCrop(24), T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3)])
    theirs = tv.Compose([tv.Resize(32), tv.CenterCrop(24), tv.ToTensor(), tv.Normalize([0.5] * 3, [0.25] * 3)])
    assert torch.equal(ours(image), theirs(image))
    assert ours(image.convert("L")).shape == (3, 24, 24)
    with pytest.raises(TypeError, match="take a PIL image, not ndarray"):
        ours(np.asarray(image))


PIPELINES = {
    "train": T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()]),
    "colors": T.Compose([T.RandomCrop(20), T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.3), T.PILToTensor()]),
    "padded": T.Compose([T.RandomCrop(44, padding=4, fill=9), T.RandomRotation(20), T.ToTensor()]),
    "imagenet": pipelines.imagenet.train(24),
    "policy": T.Compose([T.RandAugment(), T.Resize(32), T.CenterCrop(24), T.ToTensor(), T.RandomErasing(0.5)]),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", PIPELINES)
def test_batches_are_torchs(name: str, workers: int, exact: None) -> None:
    dataset, epochs = Own(PIPELINES[name]), []
    for kind in (TorchLoader, DataLoader):
        torch.manual_seed(0)
        given: Any = {} if kind is TorchLoader else {"device": "cpu"}
        make: Any = kind
        epochs.append(list(loader := make(dataset, batch_size=3, shuffle=True, num_workers=workers, **given)))
    assert all(torch.equal(a, b) for a, b in zip(*epochs, strict=True))
    assert name == "policy" or loader.stats().images["waited"] == len(dataset)


def test_dali_makes_them() -> None:
    dataset, epochs = Own(PIPELINES["imagenet"]), []
    for kind in (TorchLoader, DataLoader):
        torch.manual_seed(0)
        given: Any = {} if kind is TorchLoader else {"device": "cpu"}
        make: Any = kind
        epochs.append(torch.cat(list(loader := make(dataset, batch_size=3, shuffle=True, **given))))
    assert loader.stats().images["waited"] == len(dataset)
    assert (epochs[0] - epochs[1]).abs().max() < 0.05
