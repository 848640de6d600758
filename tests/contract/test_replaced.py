"""What a script puts in the place of a library's function runs, as with torch's loader."""

from __future__ import annotations

import contextlib
import random
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F1
import torchvision.transforms.v2.functional as F2
from own_datasets import EVAL, Photos
from PIL import Image, ImageOps
from support import BATCH
from torch.utils.data import DataLoader as TorchLoader
from torchvision import datasets as tv, transforms as tvt
from torchvision.transforms import v2

from gpupipe import DataLoader, transforms as T
from gpupipe.errors import TranslationError
from gpupipe.interop.datasets import translate_dataset
from gpupipe.interop.transforms import translate_transform

FLIPS = tvt.Compose([tvt.Resize((16, 16)), tvt.RandomHorizontalFlip(1.0), tvt.ToTensor()])


def equal(got: Any, want: Any) -> bool:
    pairs = zip(got, want, strict=True)
    return all(torch.equal(a, x) and torch.equal(b, y) for (a, b), (x, y) in pairs)


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


def test_what_is_replaced_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    resize, flip, to_tensor = _of_the_class(monkeypatch).transforms
    assert list(translate_transform(tvt.Compose([resize, flip, to_tensor])))[1] == T.Lambda(flip)


class Counts:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, label: int) -> int:
        self.calls += 1
        return label + self.calls


_own = np.random.default_rng(0)
_left = dict.fromkeys(range(100), 0)
IMPURE = {
    "random": lambda y: (y + 1) % 4 if random.random() < 0.05 else y,
    "gauss": lambda y: int(y + random.gauss(0, 0.01)),
    "numpy": lambda y: int(np.random.randint(4)),  # noqa: NPY002
    "torch": lambda y: int(torch.rand(1) * 4),
    "own": lambda y: int(_own.integers(4)),
    "counts": Counts(),
    "pops": _left.pop,
    "sets": _left.setdefault,
    "appends": [0].append,
}


@pytest.mark.parametrize("which", IMPURE)
def test_labels_that_are_drawn_are_not_put_in_a_table(which: str, numbered: Path, rng_untouched: None) -> None:
    function = IMPURE[which]
    with contextlib.suppress(TranslationError):
        found = translate_dataset(tv.ImageFolder(str(numbered), EVAL, target_transform=function))
        assert found.labels is None and found.runs_user_code
    assert not isinstance(function, Counts) or function.calls == 0, "a trace of trials"
    assert len(_left) == 100, "a trace of trials"


@pytest.mark.parametrize("engine", ["dali", "torch"])
def test_noisy_labels_are_others_in_every_epoch(engine: str, numbered: Path) -> None:
    noisy = tv.ImageFolder(str(numbered), EVAL, target_transform=lambda y: y + 100 * (random.random() < 0.5))
    with DataLoader(noisy, BATCH, device="cpu", engine=engine) as loader:
        epochs = [torch.cat([y for _, y in loader]) for _ in range(2)]
    assert not torch.equal(*epochs)
    assert all(0 < int((labels >= 100).sum()) < len(noisy) for labels in epochs)


TABLE = {0: 3, 1: 2, 2: 1, 3: 0}


@pytest.mark.parametrize("function", [int, TABLE.get, TABLE.__getitem__, lambda y: TABLE[y], lambda y: y + 1])
def test_what_is_plainly_a_table_is_one(function: Any, numbered: Path) -> None:
    theirs = tv.ImageFolder(str(numbered), EVAL)
    kept = {y for y in theirs.targets if y in TABLE}
    subset = tv.ImageFolder(str(numbered), EVAL, target_transform=function)
    subset.samples = [(path, y) for path, y in subset.samples if y in kept]
    labels = translate_dataset(subset).labels
    assert labels is not None and labels.tolist() == [function(y) for _, y in subset.samples]


def test_a_table_that_the_script_changes(numbered: Path) -> None:
    table = dict.fromkeys(range(100), 0)
    dataset = tv.ImageFolder(str(numbered), EVAL, target_transform=table.get)
    with DataLoader(dataset, BATCH, device="cpu", engine="torch") as loader:
        list(loader)
        table[3] = 7
        assert [int(y) for _, ys in loader for y in ys].count(7) == dataset.targets.count(3) > 0


def test_a_setting_that_functions_read_and_the_script_changes(numbered: Path) -> None:
    """Progressive resizing."""
    size = [16]

    def resized(image: Any) -> Any:
        return image.resize((size[0], size[0]))

    dataset = tv.ImageFolder(str(numbered), tvt.Compose([tvt.Lambda(resized), tvt.ToTensor()]))
    with DataLoader(dataset, BATCH, device="cpu", engine="auto") as loader:
        list(loader)
        size[0] = 24
        assert [x.shape[2:] for x, _ in loader] == [(24, 24)] * len(loader)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_a_scripted_transform_is_user_code(numbered: Path) -> None:
    normalize = torch.jit.script(tvt.Normalize([0.5] * 3, [0.25] * 3))
    for end in (normalize, torch.jit.script(torch.nn.Sequential(tvt.Normalize([0.5] * 3, [0.25] * 3)))):
        dataset = tv.ImageFolder(str(numbered), tvt.Compose([tvt.CenterCrop(16), tvt.ToTensor(), end]))
        with DataLoader(dataset, BATCH, device="cpu", engine="torch") as loader:
            for (x, _), (y, _) in zip(loader, TorchLoader(dataset, BATCH), strict=True):
                assert torch.allclose(x, y, atol=0.04)


class Defaults(Photos):
    def __getitem__(self, i: int) -> Any:
        sample = defaultdict(int, x=super().__getitem__(i)[0])
        sample["y"] = i
        return sample


class Ordered(Photos):
    def __getitem__(self, i: int) -> Any:
        return OrderedDict(zip("xy", super().__getitem__(i), strict=True))


@pytest.mark.parametrize("kind", [Defaults, Ordered])
def test_mappings_stay_what_they_are(kind: Any, numbered: Path) -> None:
    with DataLoader(kind(numbered), BATCH, device="cpu", engine="torch") as loader:
        got, want = next(iter(loader)), next(iter(TorchLoader(kind(numbered), BATCH)))
    assert type(got) is type(want) and list(got) == list(want) and torch.equal(got["y"], want["y"])


class Unshown(Photos):
    def __repr__(self) -> str:
        raise RuntimeError("not now")


class UnshownTransform:
    def __repr__(self) -> str:
        raise RuntimeError("not now")

    def __call__(self, image: Any) -> Any:
        return EVAL(image)


def test_what_has_no_text_is_loaded(numbered: Path) -> None:
    for dataset in (Unshown(numbered), Photos(numbered, UnshownTransform()), Unshown(numbered, UnshownTransform()),
                    tv.ImageFolder(str(numbered), UnshownTransform())):  # fmt: skip
        with DataLoader(dataset, BATCH, device="cpu") as loader:
            assert sum(len(x) for x, _ in loader) == len(dataset)
