"""Transforms that a script wrote by hand, done by engines: the same pixels, followed between epochs, resumed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import ImageFilter, ImageOps
from support import BATCH, SEED, same
from torchvision import datasets as tv, transforms as tvt

from gpupipe import DataLoader
from gpupipe.interop.closed import NotClosed, outside

ENGINES = ("torch", "dali")
CHANCE = 0.5


class MaybeBlur:
    least = 0.5

    def __init__(self, p: float = 0.5):
        self.p = p

    def __call__(self, image: Any) -> Any:
        if random.random() < self.p:
            return image.filter(ImageFilter.GaussianBlur(random.uniform(self.least, 2.0)))
        return image


def maybe_invert(image: Any) -> Any:
    return ImageOps.invert(image) if torch.rand(1) < CHANCE else image


class MaybeSolarize:
    def __call__(self, image: Any) -> Any:
        return solarized(image) if random.random() < CHANCE else image


def solarized(image: Any) -> Any:
    return ImageOps.solarize(image, int(255 * CHANCE))


def pipeline(*steps: Any) -> tvt.Compose:
    return tvt.Compose([tvt.CenterCrop(16), *steps, tvt.ToTensor(), tvt.Lambda(lambda x: x * 2 - 1)])


def loader_of(numbered: Path, engine: str, *steps: Any) -> DataLoader:
    dataset = tv.ImageFolder(str(numbered), pipeline(*steps))
    return DataLoader(dataset, batch_size=BATCH, engine=engine, device="cpu", seed=SEED)  # type: ignore[arg-type]


def batches(loader: DataLoader, epoch: int = 0) -> list[Any]:
    loader.set_epoch(epoch)
    return list(loader)


def all_steps() -> tuple[Any, ...]:
    return MaybeBlur(), maybe_invert, MaybeSolarize()


def test_engines_agree_and_say_what_they_do(numbered: Path) -> None:
    ours = {engine: loader_of(numbered, engine, *all_steps()) for engine in ENGINES}
    assert same(*(batches(loader) for loader in ours.values()))
    shown = repr(ours["dali"])
    assert "Lambda(" not in shown and shown.count("HandWritten(") == 4
    assert "MaybeBlur: if u0 < 0.5: PILGaussianBlur(radius=(0.5, 2.0)) by u1; if u0 >= 0.5: nothing" in shown


@pytest.mark.parametrize("engine", ENGINES)
def test_resume(engine: str, numbered: Path) -> None:
    whole = batches(loader_of(numbered, engine, *all_steps()))
    loader = loader_of(numbered, engine, *all_steps())
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    other = loader_of(numbered, engine, *all_steps())
    other.load_state_dict(state)
    assert same(list(other), whole[2:])


@pytest.mark.parametrize("engine", ENGINES)
def test_another_attribute(engine: str, numbered: Path) -> None:
    blur = MaybeBlur()
    loader = loader_of(numbered, engine, blur)
    batches(loader)
    blur.p = 1.0
    assert same(batches(loader, 1), batches(loader_of(numbered, engine, MaybeBlur(1.0)), 1))
    assert "u0 < 0.5" not in repr(loader)


def test_another_attribute_deep_inside(numbered: Path) -> None:
    blur = MaybeBlur()
    within: Any = blur
    for _ in range(5):
        within = tvt.Compose([within])
    loader = loader_of(numbered, "torch", within)
    batches(loader)
    blur.p = 1.0
    assert same(batches(loader, 1), batches(loader_of(numbered, "torch", MaybeBlur(1.0)), 1))


def test_another_value_of_the_class(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(numbered, "torch", MaybeBlur(1.0))
    before = batches(loader, 1)
    monkeypatch.setattr(MaybeBlur, "least", 1.9)
    after = batches(loader, 1)
    assert "(1.9, 2.0)" in repr(loader) and not same(before, after)


@pytest.mark.parametrize("function", [maybe_invert, MaybeSolarize()])
def test_another_value_in_the_module(function: Any, numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what is read by a function that it calls."""
    loader = loader_of(numbered, "torch", function)
    before = batches(loader, 1)
    monkeypatch.setitem(globals(), "CHANCE", 1.0)
    after = batches(loader, 1)
    assert "if u0" not in repr(loader) and not same(before, after)


class Noted:
    @property
    def last(self) -> float:
        return 0

    @last.setter
    def last(self, value: float) -> None:
        print(value)

    def __call__(self, image: Any) -> Any:
        self.last = 1
        return ImageOps.invert(image)


def test_what_a_setter_reaches_counts() -> None:
    with pytest.raises(NotClosed, match="it uses print"):
        outside(Noted())


def test_another_method(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(numbered, "torch", MaybeBlur(1.0))
    before = batches(loader, 1)
    monkeypatch.setattr(MaybeBlur, "__call__", lambda self, image: ImageOps.invert(image))
    assert not same(batches(loader, 1), before) and "RandomInvert" in repr(loader)


def test_what_is_no_longer_known_is_user_code(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(numbered, "dali", MaybeBlur(1.0))
    batches(loader)
    monkeypatch.setattr(MaybeBlur, "__call__", lambda self, image: image.filter(ImageFilter.MaxFilter(3)))
    after = batches(loader, 1)
    assert "Lambda(" in repr(loader)
    assert same(after, batches(loader_of(numbered, "dali", MaybeBlur(1.0)), 1))
