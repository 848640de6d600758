"""``gpupipe why`` compares the batches of a live loader with torch's from the same seed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchvision")

from PIL import Image
from support import pictures
from torchvision import transforms as T

from gpupipe.why.compare import _apart, compared


class Photographs(torch.utils.data.Dataset[Any]):
    def __init__(self, folder: Path):
        for number, picture in enumerate(pictures(8, 40, 48)):
            Image.fromarray(picture).save(folder / f"{number}.jpg", quality=95)
        self.files = sorted(folder.glob("*.jpg"))
        self.transform = T.Compose([T.RandomCrop(24), T.ToTensor()])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.files[index]).convert("RGB")), index


class WithAGenerator(Photographs):
    """Its generator goes on where it is, which no seed sets back."""

    draws = random.Random(0)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0], self.draws.random()


class Failing(Photographs):
    def __getitem__(self, index: int) -> Any:
        raise LookupError("no such label")


def test_what_it_says(tmp_path: Path) -> None:
    given = {"batch_size": 4, "shuffle": True}
    state = torch.get_rng_state()
    ok, other, failing = ({"dataset": kind(tmp_path), **given} for kind in (Photographs, WithAGenerator, Failing))
    assert compared(ok, ok).startswith("2 batches are torch's from the same seed; ")
    assert compared(other, other).startswith("batch 0 is not torch's")
    assert compared(failing, failing) == "not compared with torch's: LookupError: no such label"
    assert torch.equal(torch.get_rng_state(), state)


def test_how_far_images_are_apart() -> None:
    """As a share of the image's range. Anything else than an image has to be equal."""
    image, label = torch.linspace(0, 2, 3 * 8 * 8).view(1, 3, 8, 8), torch.tensor([5])
    assert _apart([image + 0.5, label], [image, label]) == pytest.approx(0.25)
    assert _apart([image, label], [image, label]) == 0
    assert _apart([image, label + 1], [image, label]) is None
