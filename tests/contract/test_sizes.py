"""Images of different sizes in one batch, for collate functions that take lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader

pytest.importorskip("torchvision")
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from gpupipe import DataLoader

SIZES = [(20, 31), (44, 25), (30, 30), (26, 60), (50, 22)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "class").mkdir()
    for i in range(10):
        rng = np.random.default_rng(i)
        pixels = rng.integers(0, 256, (*SIZES[i % 5], 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "class" / f"{i}.png")
    return tmp_path


class Own(torch.utils.data.Dataset[Any]):
    def __init__(self, root: Path, transform: Any):
        self.paths, self.transform = sorted((root / "class").iterdir()), transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        return self.transform(Image.open(self.paths[i]).convert("RGB")), i


def in_lists(samples: list[Any]) -> Any:
    return tuple(zip(*samples, strict=True))


@pytest.mark.parametrize("engine", ["dali", "torch"])
@pytest.mark.parametrize(("dataset", "workers"), [(ImageFolder, 0), (Own, 0), (Own, 2)])
def test_images_keep_their_sizes(root: Path, engine: Any, dataset: Any, workers: int) -> None:
    if engine == "dali":
        pytest.importorskip("nvidia.dali")
    blurred = v1.GaussianBlur(5, (1.0, 1.0))  # which would see the padding
    transform = v1.Compose([v1.Resize(24), blurred, v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)])
    options: dict[str, Any] = {"batch_size": 4, "collate_fn": in_lists, "num_workers": workers}
    loader = DataLoader(dataset(root, transform), engine=engine, device="cpu", **options)
    for (images, labels), (want, rest) in zip(loader, TorchLoader(dataset(root, transform), **options), strict=True):
        assert labels == rest and len({image.shape for image in want}) > 1
        for image, other in zip(images, want, strict=True):
            assert image.shape == other.shape and image.is_contiguous()
            assert (image - other).abs().max() <= (8.1 if engine == "dali" else 4.1) / 255, (
                "a level of the blur, and one of the resize"
            )
    loader.close()


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_random_sizes_are_those_of_the_plan(root: Path, engine: Any) -> None:
    if engine == "dali":
        pytest.importorskip("nvidia.dali")
    transform = v2.Compose([v2.RandomShortestSize(range(16, 40)), v2.RandomHorizontalFlip(), v2.ToImage()])
    made: dict[int, list[Any]] = {}
    for batch_size in (2, 5):
        options: dict[str, Any] = {"collate_fn": in_lists, "engine": engine, "device": "cpu", "seed": 3}
        with DataLoader(Own(root, transform), batch_size=batch_size, **options) as loader:
            made[batch_size] = [image for images, _ in loader for image in images]
    assert all(torch.equal(one, other) for one, other in zip(*made.values(), strict=True))


class Pairs(Own):
    """A small and a large image, as for super-resolution, through one transform."""

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.paths[i]).convert("RGB")
        other = Image.open(self.paths[i - 1]).convert("RGB")
        return {"image": self.transform(image), "other": self.transform(other), "number": i}


class Halves(Own):
    """Pairs whose first images have one size, and whose second images have another."""

    def __getitem__(self, i: int) -> Any:
        images = [Image.open(self.paths[5 * (i % 2) + k]).convert("RGB") for k in (0, 1)]
        return {"image": self.transform(images[1]), "other": self.transform(images[0]), "number": i}


@pytest.mark.parametrize("engine", ["dali", "torch"])
@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Pairs, {"batch_size": 1}),
        (Halves, {"batch_size": 4}),
        (Halves, {"batch_size": 4, "num_workers": 2}),
        (Pairs, {"batch_size": 4, "collate_fn": list}),
    ],
)
def test_the_images_of_a_sample_may_have_different_sizes(root: Path, engine: Any, dataset: Any, options: Any) -> None:
    if engine == "dali":
        pytest.importorskip("nvidia.dali")
    transform = v1.Compose([v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)])
    with DataLoader(dataset(root, transform), engine=engine, device="cpu", **options) as loader:
        for got, want in zip(loader, TorchLoader(dataset(root, transform), **options), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


def test_images_of_different_sizes_cannot_be_stacked(root: Path) -> None:
    pytest.importorskip("nvidia.dali")
    loader = DataLoader(Pairs(root, v1.ToTensor()), batch_size=4, engine="dali", device="cpu")
    with loader, pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(loader)
