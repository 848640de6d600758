"""The ready-made pipelines: what they are made of, and what comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpupipe import transforms as T
from gpupipe.errors import ConfigError
from gpupipe.pipelines import cifar, dino, imagenet, kinetics, simclr
from gpupipe.transforms.ops import Blur, Op, Solarize, Views
from gpupipe.transforms.ops.op import Masked


def names(pipeline: T.Compose) -> list[str]:
    return [type(t).__name__ for t in pipeline]


RECIPES: dict[str, tuple[Any, list[Any]]] = {
    "strong": (imagenet.train_strong, [(176, 176)]),
    "light": (imagenet.train_light, [(224, 224)]),
    "cifar train": (cifar.train, [(32, 32)]),
    "cifar val": (cifar.val, [(32, 32)]),
    "simclr": (simclr.train, [(224, 224)] * 2),
    "dino": (dino.train, [(224, 224)] * 2 + [(96, 96)] * 8),
}


@pytest.mark.parametrize("name", RECIPES)
def test_outputs(name: str) -> None:
    make, sizes = RECIPES[name]
    for dtype in ("float32", "float16", "bfloat16"):
        pipeline = make(dtype=dtype, memory_format="channels_last")
        assert [o.size for o in pipeline.outputs] == sizes
        assert {(o.channels, o.dtype) for o in pipeline.outputs} == {(3, dtype)}
        assert pipeline.memory_format == "channels_last"
    plain = {"mixup": 0, "cutmix": 0} if name == "strong" else {}
    assert make(dtype="uint8", **plain).outputs[0].dtype == "uint8"


def test_strong_is_torchvisions_recipe() -> None:
    pipeline = imagenet.train_strong()
    assert names(pipeline) == [
        "RandomResizedCrop", "RandomHorizontalFlip", "TrivialAugmentWide", "ToTensor", "Normalize", "RandomErasing",
        "RandomChoice",
    ]  # fmt: skip
    assert pipeline[2] == T.TrivialAugmentWide(interpolation="bilinear")
    assert pipeline[5] == T.RandomErasing(0.1)
    assert repr(pipeline[6]) == repr(
        T.RandomChoice([T.MixUp(alpha=0.2, num_classes=1000), T.CutMix(alpha=1.0, num_classes=1000)])
    )


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("ra", "RandAugment"),
        ("ta_wide", "TrivialAugmentWide"),
        ("augmix", "AugMix"),
        ("imagenet", "AutoAugment"),
        ("cifar10", "AutoAugment"),
        ("svhn", "AutoAugment"),
    ],
)
def test_policies_by_name(name: str, want: str) -> None:
    found = imagenet.train_strong(auto_augment=name)[2]
    assert type(found).__name__ == want
    assert getattr(found, "policy", name) == name


def test_parts_can_be_left_out() -> None:
    bare = imagenet.train_strong(auto_augment=None, erase=0, mixup=0, cutmix=0)
    assert bare == imagenet.train(176)
    assert names(imagenet.train_strong(cutmix=0))[-1] == "MixUp"
    assert names(imagenet.train_strong(mixup=0))[-1] == "CutMix"
    assert names(cifar.train(auto_augment="cifar10", erase=0.5, cutmix=1.0))[2:] == [
        "AutoAugment", "ToTensor", "Normalize", "RandomErasing", "CutMix",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="auto_augment must be None or one of ra, ta_wide, augmix, imagenet"):
        imagenet.train_strong(auto_augment="rand")


def test_light_has_no_hue() -> None:
    assert imagenet.train_light()[2] == T.ColorJitter(0.4, 0.4, 0.4)
    assert names(imagenet.train_light())[:2] == ["RandomResizedCrop", "RandomHorizontalFlip"]


def test_cifar_pads() -> None:
    assert cifar.train()[0] == T.RandomCrop(32, padding=4)
    ops, *_ = cifar.train().resolve(0, 0, np.arange(2000, dtype=np.uint64), np.full((2000, 2), 32))
    assert set(ops[0].numbers()["top"].tolist()) == set(range(-4, 5))


def test_kinetics() -> None:
    train, val = kinetics.train(112), kinetics.val(112, 128, dtype="float16", mean=(0.45,) * 3, std=(0.225,) * 3)
    assert names(train) == ["RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize"]
    assert train.output.size == (112, 112) and train.output.dtype == "float32"
    assert val.output.size == (112, 112) and val.output.dtype == "float16"
    assert kinetics.train(dtype="uint8").output.size == (224, 224)
    assert "0.43216" in repr(train) and "0.225" in repr(val)


def views_of(pipeline: T.Compose, n: int = 4000) -> tuple[tuple[Op, ...], ...]:
    (views,), *_ = pipeline.resolve(0, 0, np.arange(n, dtype=np.uint64), np.tile((300, 400), (n, 1)))
    assert isinstance(views, Views)
    return views.branches


def share(branch: tuple[Op, ...], kind: type[Op]) -> float:
    found = [op for op in branch if isinstance(op, kind)]
    return float(found[0].mask.mean()) if found and isinstance(found[0], Masked) else 0.0


def test_simclr_views() -> None:
    first, second = views_of(simclr.train())
    assert not np.array_equal(first[0].numbers()["top"], second[0].numbers()["top"])
    for view in (first, second):
        assert share(view, Blur) == pytest.approx(0.5, abs=0.03)
        (blur,) = (op for op in view if isinstance(op, Blur))
        assert blur.kernel_size == (23, 23)
        assert blur.sigma[blur.mask].min() >= 0.1 and blur.sigma[blur.mask].max() <= 2
    assert "0.4" in repr(simclr.train(strength=0.5)) and "GaussianBlur" not in repr(simclr.train(32, blur=0))
    assert len(simclr.train(views=4).outputs) == 4


def test_dino_views() -> None:
    branches = views_of(dino.train(small=3), 3000)
    assert [share(b, Blur) for b in branches] == pytest.approx([1, 0.1, 0.5, 0.5, 0.5], abs=0.04)
    assert [share(b, Solarize) for b in branches] == pytest.approx([0, 0.2, 0, 0, 0], abs=0.03)
    area = [b[0].numbers()["height"] * b[0].numbers()["width"] / 120_000 for b in branches]
    assert all(a.max() <= 0.41 for a in area[2:]) and all(a.min() >= 0.39 for a in area[:2])
    assert all(a.min() < 0.1 for a in area[2:])
