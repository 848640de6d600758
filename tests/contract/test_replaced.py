"""What a script puts in the place of a library's function runs, as with torch's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms.functional as F1
import torchvision.transforms.v2.functional as F2
from own_datasets import EVAL
from PIL import Image, ImageOps
from support import BATCH
from torch.utils.data import DataLoader as TorchLoader
from torchvision import datasets as tv, transforms as tvt
from torchvision.transforms import v2

from gpupipe import DataLoader

FLIPS = tvt.Compose([tvt.Resize((16, 16)), tvt.RandomHorizontalFlip(1.0), tvt.ToTensor()])


def equal(got: Any, want: Any) -> bool:
    pairs = zip(got, want, strict=True)
    # Two levels is the promise of a resize that DALI did.
    return all((a - x).abs().max() < 2.1 / 255 and torch.equal(b, y) for (a, b), (x, y) in pairs)


def black(image: Any, *_: Any, **__: Any) -> Any:
    return image.point(lambda _: 0)


def _of_the_class(patch: pytest.MonkeyPatch) -> Any:
    patch.setattr(tvt.RandomHorizontalFlip, "forward", lambda self, image: black(image))
    return FLIPS


def _of_the_object(patch: pytest.MonkeyPatch) -> Any:
    crop = tvt.RandomCrop(16)
    crop.get_params = lambda image, size: (0, 0, 16, 16)  # type: ignore[method-assign]
    return tvt.Compose([crop, tvt.ToTensor()])


def _of_the_second_generation(patch: pytest.MonkeyPatch) -> Any:
    crop = v2.RandomCrop(16)
    crop.make_params = lambda inputs: {  # type: ignore[method-assign]
        "needs_crop": True, "top": 0, "left": 0, "height": 16, "width": 16, "needs_pad": False, "padding": None
    }  # fmt: skip
    return tvt.Compose([crop, tvt.ToTensor()])


def _of_functional(patch: pytest.MonkeyPatch) -> Any:
    patch.setattr(F1, "hflip", black)
    return FLIPS


def _of_functional_2(patch: pytest.MonkeyPatch) -> Any:
    patch.setattr(F2, "to_image", lambda image: tvt.functional.pil_to_tensor(black(image)))
    return tvt.Compose([v2.Resize((16, 16)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


def _of_pillow(patch: pytest.MonkeyPatch) -> Any:
    really = Image.Image.resize
    patch.setattr(Image.Image, "resize", lambda self, *given, **named: ImageOps.invert(really(self, *given, **named)))
    return FLIPS


def _of_opening(patch: pytest.MonkeyPatch) -> Any:
    really = Image.open
    patch.setattr(Image, "open", lambda *given, **named: ImageOps.invert(really(*given, **named)))
    return FLIPS


def _of_the_folder(patch: pytest.MonkeyPatch) -> Any:
    patch.setattr(tv.folder, "pil_loader", lambda path: Image.new("RGB", (20, 20), (9, 8, 7)))
    return FLIPS


REPLACED = [_of_the_class, _of_the_object, _of_the_second_generation, _of_functional, _of_functional_2, _of_pillow,
            _of_opening, _of_the_folder]  # fmt: skip


@pytest.mark.parametrize("replace", REPLACED)
def test_what_is_replaced_runs(replace: Any, numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tv.ImageFolder(str(numbered), replace(monkeypatch))
    with DataLoader(dataset, BATCH, device="cpu") as loader:
        assert equal(list(loader), list(TorchLoader(dataset, BATCH)))


def test_what_is_replaced_between_epochs_runs(numbered: Path) -> None:
    dataset = tv.ImageFolder(str(numbered), tvt.Compose([tvt.Resize((16, 16)), tvt.RandomHorizontalFlip(1.0), EVAL]))
    with DataLoader(dataset, BATCH, device="cpu") as loader:
        list(loader)
        dataset.transform.transforms[1].forward = black
        assert equal(list(loader), list(TorchLoader(dataset, BATCH)))
