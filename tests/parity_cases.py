"""Pipelines to compare engines and devices with: one for each op that may differ, and the recipes.

:mod:`parity_measure` measures them. Every row of the table of promises has a case.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

from gpupipe import transforms as T
from gpupipe.transforms.timm import Levels, Step, TimmRandAugment

__all__ = ["CASES", "FINISH", "PAGE", "RECIPES", "Make"]

Make = Callable[[], T.Compose]

SIDE = 96
_AFFINE: dict[str, Any] = {"degrees": 40, "translate": (0.1, 0.1), "scale": (0.7, 1.2), "shear": 10}


def _pil(*steps: Callable[[], T.Transform]) -> Make:
    """Return a pipeline with steps on PIL images of one size."""
    return lambda: T.Compose([T.CenterCrop(SIDE), *(step() for step in steps), T.PILToTensor()])


def _tensor(*steps: Callable[[], T.Transform]) -> Make:
    """Return a pipeline with steps on uint8 tensors."""
    return lambda: T.Compose([T.CenterCrop(SIDE), T.PILToTensor(), *(step() for step in steps)])


def _float(*steps: Callable[[], T.Transform], dtype: Any = "float32") -> Make:
    """Return a pipeline with steps on floats."""

    def make() -> T.Compose:
        first = [T.CenterCrop(SIDE), T.PILToTensor(), T.ToDtype(dtype, scale=True)]
        return T.Compose([*first, *(step() for step in steps)])

    return make


def _normalize() -> T.Transform:
    return T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _recipe(module: str, function: str, *arguments: Any, **options: Any) -> Make:
    """Return a ready-made pipeline."""

    def make() -> T.Compose:
        made: T.Compose = getattr(importlib.import_module(f"gpupipe.pipelines.{module}"), function)(
            *arguments, **options
        )
        return made

    return make


def _resizes() -> dict[str, Make]:
    found: dict[str, Make] = {}
    for name in ("nearest", "bilinear", "bicubic", "lanczos"):
        for side in (60, 250):
            label = f"resize {name} to {side}"
            found[label] = lambda n=name, s=side: T.Compose([T.Resize((s, s + 7), n), T.PILToTensor()])  # type: ignore[misc]
            if name in ("bilinear", "bicubic"):
                found[f"{label}, floats"] = lambda n=name, s=side: T.Compose([T.ToTensor(), T.Resize((s, s + 7), n)])  # type: ignore[misc]
    found["resize bilinear, no antialias"] = lambda: T.Compose([T.PILToTensor(), T.Resize((60, 67), antialias=False)])
    found["resize bilinear, no antialias, floats"] = lambda: T.Compose(
        [T.ToTensor(), T.Resize((60, 67), antialias=False)]
    )
    return found


def _warps() -> dict[str, Make]:
    found: dict[str, Make] = {}
    for name in ("nearest", "bilinear"):
        for of, where, fill in (("pil", _pil, 7.0), ("uint8 tensor", _tensor, 7.0), ("floats", _float, 0.03)):
            found[f"rotate {name}, {of}"] = where(lambda n=name, f=fill: T.RandomRotation(60, n, fill=f))  # type: ignore[misc]
            found[f"affine {name}, {of}"] = where(lambda n=name: T.RandomAffine(**_AFFINE, interpolation=n))  # type: ignore[misc]
            found[f"perspective {name}, {of}"] = where(
                lambda n=name, f=fill: T.RandomPerspective(0.5, 1.0, n, fill=f)  # type: ignore[misc]
            )
    return found


def _colors() -> dict[str, Make]:
    steps: dict[str, Callable[[], T.Transform]] = {
        "brightness": lambda: T.ColorJitter(brightness=0.5),
        "contrast": lambda: T.ColorJitter(contrast=0.5),
        "saturation": lambda: T.ColorJitter(saturation=0.5),
        "hue": lambda: T.ColorJitter(hue=0.3),
        "color jitter": lambda: T.ColorJitter(0.4, 0.4, 0.4, 0.1),
        "gray": lambda: T.RandomGrayscale(0.5),
        "gray, one channel": lambda: T.Grayscale(1),
        "channel permutation": lambda: T.RandomPhotometricDistort((1, 1), (1, 1), (1, 1), (0, 0), 1.0),
        "invert": lambda: T.RandomInvert(0.5),
        "posterize": lambda: T.RandomPosterize(3, 0.5),
        "solarize": lambda: T.RandomSolarize(128, 0.5),
        "sharpness": lambda: T.RandomAdjustSharpness(2, 0.5),
        "autocontrast": lambda: T.RandomAutocontrast(0.5),
        "equalize": lambda: T.RandomEqualize(0.5),
        "blur": lambda: T.GaussianBlur(9, (0.3, 2.0)),
    }
    found: dict[str, Make] = {}
    for name, step in steps.items():
        found[f"{name}, pil"] = _pil(step)
        found[f"{name}, uint8 tensor"] = _tensor(step)
    found["blur, floats"] = _float(steps["blur"])
    found["solarize add, timm"] = _pil(_timm("SolarizeAdd"))
    found["box blur, timm"] = _pil(_timm("GaussianBlur"))
    return found


def _timm(name: str) -> Callable[[], T.Transform]:
    """Return one operation of timm's policies, applied to most images with any strength."""
    return lambda: TimmRandAugment([Step(name, 0.8, 10.0)], num_layers=1, levels=Levels(magnitude_std=math.inf))


def _policies() -> dict[str, Make]:
    policies: dict[str, Callable[[], T.Transform]] = {
        "AutoAugment": T.AutoAugment,
        "RandAugment": T.RandAugment,
        "TrivialAugmentWide": T.TrivialAugmentWide,
        "AugMix": T.AugMix,
    }
    return {name: _pil(policy) for name, policy in policies.items()}


CASES: dict[str, Make] = {
    "crop": _pil(),
    "random crop": lambda: T.Compose([T.RandomCrop(SIDE), T.PILToTensor()]),
    "pad": _pil(lambda: T.Pad((3, 5), fill=9)),
    "flips": _pil(T.RandomHorizontalFlip, T.RandomVerticalFlip),
    **_resizes(),
    **_warps(),
    **_colors(),
    "erasing": _float(lambda: T.RandomErasing(0.7)),
    "erasing with noise": _float(lambda: T.RandomErasing(0.7, value="random")),
    "zoom out": lambda: T.Compose([T.RandomZoomOut(p=0.7), T.Resize((SIDE, SIDE)), T.PILToTensor()]),
    "views": lambda: T.Compose([T.MultiView(T.RandomCrop(60), 5), T.PILToTensor()]),
    "applied at random": _pil(lambda: T.RandomApply([T.GaussianBlur(5)], p=0.5)),
    "one of several": _pil(lambda: T.RandomChoice([T.RandomRotation(10), T.RandomHorizontalFlip(1.0)])),
    **_policies(),
    **{f"normalize, {dtype}": _float(_normalize, dtype=dtype) for dtype in ("float32", "float16", "bfloat16")},
    "mixup": _float(_normalize, lambda: T.MixUp(alpha=0.4, num_classes=1000)),
    "cutmix": _float(_normalize, lambda: T.CutMix(alpha=1.0, num_classes=1000)),
}
"""Pipelines for each op that may differ, created on demand."""

RECIPES: dict[str, Make] = {
    "imagenet.train": _recipe("imagenet", "train", SIDE),
    "imagenet.train, float16, channels last": _recipe(
        "imagenet", "train", SIDE, dtype="float16", memory_format="channels_last"
    ),
    "imagenet.train, uint8": _recipe("imagenet", "train", SIDE, dtype="uint8"),
    "imagenet.train_light": _recipe("imagenet", "train_light", SIDE),
    "imagenet.train_strong": _recipe("imagenet", "train_strong", SIDE),
    "imagenet.val": _recipe("imagenet", "val", SIDE, 112),
    "simclr.train": _recipe("simclr", "train", SIDE),
    "dino.train": _recipe("dino", "train"),
    "cifar.train": _recipe("cifar", "train"),
}

FINISH = (T.ToImage(), T.ToDtype("float32", scale=True))
"""Steps in front of transforms of tensors."""

PAGE: dict[str, tuple[T.Transform, ...]] = {
    "Resize(256)": (T.Resize(256), T.CenterCrop(224)),
    'Resize(256, "bicubic")': (T.Resize(256, "bicubic"), T.CenterCrop(224)),
    "RandomResizedCrop(160)": (T.RandomResizedCrop(160),),
    "RandomCrop(192, padding=8)": (T.RandomCrop(192, padding=8),),
    "Pad(7, fill=90)": (T.Pad(7, fill=90),),
    "RandomHorizontalFlip": (T.RandomHorizontalFlip(1.0),),
    "RandomVerticalFlip": (T.RandomVerticalFlip(1.0),),
    "RandomGrayscale": (T.RandomGrayscale(1.0),),
    "ColorJitter(brightness=0.4)": (T.ColorJitter(brightness=0.4),),
    "ColorJitter(contrast=0.4)": (T.ColorJitter(contrast=0.4),),
    "ColorJitter(saturation=0.4)": (T.ColorJitter(saturation=0.4),),
    "ColorJitter(hue=0.1)": (T.ColorJitter(hue=0.1),),
    "ColorJitter(0.4, 0.4, 0.4, 0.1)": (T.ColorJitter(0.4, 0.4, 0.4, 0.1),),
    "RandomInvert": (T.RandomInvert(1.0),),
    "RandomPosterize(4)": (T.RandomPosterize(4, 1.0),),
    "RandomSolarize(128)": (T.RandomSolarize(128, 1.0),),
    "RandomAdjustSharpness(2)": (T.RandomAdjustSharpness(2, 1.0),),
    "RandomAutocontrast": (T.RandomAutocontrast(1.0),),
    "RandomEqualize": (T.RandomEqualize(1.0),),
    "GaussianBlur(23)": (T.GaussianBlur(23),),
    "RandomRotation(30)": (T.RandomRotation(30),),
    'RandomRotation(30, "bilinear")': (T.RandomRotation(30, "bilinear"),),
    'RandomAffine(15, (0.1, 0.1), (0.9, 1.1), 10, "bilinear")': (
        T.RandomAffine(15, (0.1, 0.1), (0.9, 1.1), 10, "bilinear"),
    ),
    "RandomPerspective": (T.RandomPerspective(p=1.0),),
    "RandomZoomOut": (T.RandomZoomOut(p=1.0), T.CenterCrop(224)),
    "RandomErasing": (*FINISH, T.RandomErasing(p=1.0)),
    "RandAugment": (T.RandAugment(),),
    'RandAugment(interpolation="bilinear")': (T.RandAugment(interpolation="bilinear"),),
    "TrivialAugmentWide": (T.TrivialAugmentWide(),),
    "AutoAugment": (T.AutoAugment(),),
    "AugMix": (T.AugMix(),),
}
"""Rows of ``docs/transforms.md``: each transform is applied with certainty to photographs of 320 x 320 pixels."""
