"""``dataset[i]``: what torchvision's datasets give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe import DataLoader, SampleError, datasets, transforms as T
from gpupipe.pipelines import cifar, imagenet, simclr


def test_it_is_a_row_of_a_batch(numbered: Path) -> None:
    ds = datasets.ImageFolder(numbered, imagenet.val(16, resize=20))
    with DataLoader(ds, batch_size=4, engine="torch", num_workers=0, device="cpu") as loader:
        images, target = next(iter(loader))
    for i in range(4):
        image, label = ds[i]
        assert torch.equal(image, images[i]) and label == target[i]
    assert torch.equal(ds[-1][0], ds[len(ds) - 1][0])


def test_without_a_transform_it_is_the_picture(numbered: Path) -> None:
    ds = datasets.ImageFolder(numbered)
    image, label = ds[3]
    assert image.mode == "RGB" and image.size[::-1] == tuple(ds.sizes[3]) and label == 3


def test_random_numbers_are_torchs(numbered: Path) -> None:
    ds = datasets.ImageFolder(numbered, imagenet.train(16))
    torch.manual_seed(3)
    first, second = ds[0][0], ds[0][0]
    torch.manual_seed(3)
    assert torch.equal(ds[0][0], first) and not torch.equal(first, second)


def test_views_and_what_works_on_batches(numbered: Path) -> None:
    views, _ = datasets.ImageFolder(numbered, simclr.train(16))[0]
    assert [tuple(view.shape) for view in views] == [(3, 16, 16)] * 2 and not torch.equal(*views)
    plain = [T.Resize((8, 8)), T.ToTensor()]
    mixed = datasets.ImageFolder(numbered, [*plain, T.MixUp(num_classes=64)])
    assert torch.equal(mixed[0][0], datasets.ImageFolder(numbered, plain)[0][0])
    assert type(mixed[0][1]) is int


def test_of_arrays_parts_and_own_pipelines() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    ds = datasets.Arrays(pixels, [5, 6, 7, 8], transform=cifar.val())
    part = datasets.Subset(ds, [2, 0])
    assert torch.equal(part[0][0], ds[2][0]) and part[0][1] == 7
    image, _ = datasets.Subset(ds, [2, 0], transform=[T.PILToTensor()])[0]
    assert torch.equal(image, torch.from_numpy(pixels[2]).permute(2, 0, 1))


@pytest.mark.parametrize("transform", [None, imagenet.val(16)])
def test_what_cannot_be_read_or_is_not_there(transform: Any, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "broken.jpg").write_bytes(b"not an image")
    ds = datasets.ImageFolder(tmp_path, transform)
    with pytest.raises(SampleError, match=r"sample 0 \(.*broken\.jpg\)"):
        ds[0]
    for index in (1, -2):
        with pytest.raises(IndexError, match=f"index {index} of 1 sample"):
            ds[index]
