"""torch's DataLoader, with torchvision and with Pillow alone, as ``gpupipe bench`` measures it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gpupipe import datasets, transforms as T
from gpupipe.bench.candidates import build
from gpupipe.bench.pillow_steps import PillowSteps
from gpupipe.bench.torchs_loader import PILLOW, TITLES, TORCHVISION, translated, usual
from gpupipe.errors import ConfigError, MissingDependency, PipelineError
from gpupipe.pipelines import imagenet
from gpupipe.testing.photos import photograph


@pytest.mark.parametrize(
    "steps",
    [
        imagenet.val(32, 40),
        T.Compose([T.Resize((30, 50)), T.RandomHorizontalFlip(1.0), T.CenterCrop(40), T.ToTensor()]),
        T.Compose([T.RandomResizedCrop(24, scale=(1, 1), ratio=(4 / 3, 4 / 3)), T.RandomHorizontalFlip(0.0)]),
        T.Compose([T.RandomResizedCrop(24, scale=(4, 5)), T.ToTensor()]),  # none of ten windows fits
    ],
)
@pytest.mark.parametrize("size", [(60, 80), (80, 60)])
def test_steps_with_pillow_are_those_of_torchvision(steps: T.Compose, size: tuple[int, int]) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    image = Image.fromarray(photograph(*size, 1)).resize((80, 60) if size == (60, 80) else (60, 80))
    theirs = transforms.Compose([translated(t, transforms) for t in steps])(image)
    assert np.array_equal(np.asarray(PillowSteps(steps)(image)), np.asarray(theirs))


def test_windows_with_pillow_are_drawn_like_torchvisions() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    crop = T.RandomResizedCrop((1, 1), scale=(0.1, 0.9))
    ramp = Image.fromarray(np.repeat(np.arange(240, dtype=np.uint8)[None, :, None], 3, axis=2).repeat(180, axis=0))
    sides = []
    for make in (PillowSteps(T.Compose([crop])), translated(crop, transforms)):
        found = np.array([np.asarray(make(ramp))[0, 0, 0] for _ in range(1500)], np.float64)
        sides.append((found.mean(), found.std()))  # the center of the window, in pixels
    assert np.allclose(*sides, atol=5)


def test_steps_that_are_not_written_with_pillow() -> None:
    for step in (T.ColorJitter(0.4), T.Resize(20, max_size=30), T.Resize(20, "bicubic")):
        with pytest.raises(PipelineError, match="not among the steps written with Pillow"):
            PillowSteps(T.Compose([step]))(Image.new("RGB", (40, 30)))


@pytest.mark.slow
@pytest.mark.parametrize("name", TITLES)
def test_torchs_loader_does_the_same_work(name: str, photos: Path) -> None:
    if name == TORCHVISION:
        pytest.importorskip(name)
    steps = imagenet.train(24)
    with build([name], datasets.ImageFolder(photos), steps, batch_size=8, num_workers=1, device="cpu") as found:
        assert not found.left_out
        images, target = next(iter(found.start[name]()))
    assert images.shape == (8, 3, 24, 24) and images.dtype == torch.float32 and target.shape == (8,)
    assert 0.2 < images.std() < 3 and abs(images.mean()) < 2.5


def test_torchs_loader_says_what_it_cannot_do(photos: Path) -> None:
    images = datasets.ImageFolder(photos)
    work: dict[str, Any] = {"batch_size": 8, "num_workers": 0, "device": "cpu"}
    steps = T.Compose([T.ColorJitter(0.4), T.Resize((20, 20)), T.ToTensor()])
    with build([PILLOW, "null"], images, steps, **work) as found:
        assert set(found.left_out) == {PILLOW} and "not among the steps" in found.left_out[PILLOW]
    with pytest.raises(PipelineError, match="not among the steps"):
        build([PILLOW], images, steps, **work, required=True)
    arrays, plain = datasets.Arrays(np.zeros((9, 8, 8, 3), np.uint8)), T.Compose([T.ToTensor()])
    with pytest.raises(ConfigError, match="on files of images only"):
        build([PILLOW], arrays, plain, **work, required=True)


def test_pillow_takes_the_place_of_torchvision(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    assert usual() == PILLOW
    work: dict[str, Any] = {"batch_size": 8, "num_workers": 0, "device": "cpu", "required": True}
    with pytest.raises(MissingDependency, match="torchvision cannot be imported"):
        build([TORCHVISION], datasets.ImageFolder(photos), imagenet.train(24), **work)
