"""torch's DataLoader with torchvision, as ``gpupipe bench`` measures it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe import datasets, transforms as T
from gpupipe.bench.candidates import build
from gpupipe.bench.torchs_loader import TORCHVISION, usual
from gpupipe.demo import run as demo_module
from gpupipe.errors import ConfigError, MissingDependency, PipelineError
from gpupipe.pipelines import imagenet


@pytest.mark.slow
def test_torchs_loader_does_the_same_work(photos: Path) -> None:
    pytest.importorskip("torchvision")
    steps = imagenet.train(24)
    with build([TORCHVISION], datasets.ImageFolder(photos), steps, batch_size=8, num_workers=1, device="cpu") as found:
        assert not found.left_out
        images, target = next(iter(found.start[TORCHVISION]()))
    assert images.shape == (8, 3, 24, 24) and images.dtype == torch.float32 and target.shape == (8,)
    assert 0.2 < images.std() < 3 and abs(images.mean()) < 2.5


def test_torchs_loader_says_what_it_cannot_do(photos: Path) -> None:
    images = datasets.ImageFolder(photos)
    work: dict[str, Any] = {"batch_size": 8, "num_workers": 0, "device": "cpu"}
    steps = T.Compose([T.CenterCrop(20), T.ToImage(), T.ToDtype("float32", scale=True)])
    with build([TORCHVISION, "null"], images, steps, **work) as found:
        assert set(found.left_out) == {TORCHVISION} and "has no equivalent" in found.left_out[TORCHVISION]
    with pytest.raises(PipelineError, match="has no equivalent"):
        build([TORCHVISION], images, steps, **work, required=True)
    arrays, plain = datasets.Arrays(np.zeros((9, 8, 8, 3), np.uint8)), T.Compose([T.ToTensor()])
    with pytest.raises(ConfigError, match="on files of images only"):
        build([TORCHVISION], arrays, plain, **work, required=True)


def test_the_reference_takes_the_place_of_torchvision(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    assert usual() == "torch"
    work: dict[str, Any] = {"batch_size": 8, "num_workers": 0, "device": "cpu", "required": True}
    with pytest.raises(MissingDependency, match="torchvision cannot be imported"):
        build([TORCHVISION], datasets.ImageFolder(photos), imagenet.train(24), **work)
    monkeypatch.setattr(demo_module, "installed", lambda: False)
    with pytest.raises(ConfigError, match="install DALI or torchvision"):
        demo_module.run()
