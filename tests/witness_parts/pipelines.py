"""Every recipe, and a pipeline of each family of transforms."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image

from gpupipe import datasets, transforms as T
from gpupipe.pipelines import cifar, dino, imagenet, simclr

from .case import Case, noisy, photos, plain
from .inputs import COUNT, Inputs, package

__all__ = ["full_size", "recipes", "timm", "transforms"]


def recipes() -> Iterator[Case]:
    made: dict[str, Callable[..., T.Compose]] = {
        "imagenet.train": lambda **o: imagenet.train(32, **o),
        "imagenet.val": lambda **o: imagenet.val(32, 40, **o),
        "imagenet.train_light": lambda **o: imagenet.train_light(32, **o),
        "imagenet.train_strong": lambda **o: imagenet.train_strong(32, num_classes=7, **o),
        "imagenet.train_strong plain": lambda **o: imagenet.train_strong(32, mixup=0, cutmix=0, **o),
        "cifar.train": lambda **o: cifar.train(**o),
        "cifar.train all": lambda **o: cifar.train(auto_augment="cifar10", erase=0.5, mixup=0.3, cutmix=1.0, **o),
        "cifar.val": lambda **o: cifar.val(24, **o),
        "simclr.train": lambda **o: simclr.train(32, **o),
        "dino.train": lambda **o: dino.train(32, small_size=16, small=2, **o),
    }
    formats = ("contiguous_format", "channels_last")
    for name, make in made.items():
        source = _small if name.startswith("cifar") else photos
        yield plain(f"recipe/{name}", source(make()))
        for dtype, memory in itertools.product(("uint8", "float16", "bfloat16", "float32"), formats):
            if (dtype, memory) == ("float32", "contiguous_format"):
                continue
            if dtype == "uint8" and name in ("imagenet.train_strong", "cifar.train all"):
                continue  # erasing and mixing need floats
            if dtype in ("float16", "bfloat16") and memory == "contiguous_format" and name != "imagenet.train":
                continue
            if name == "dino.train" and (dtype, memory) != ("float16", "channels_last"):
                continue  # it takes longest
            options = {"dtype": getattr(torch, dtype), "memory_format": getattr(torch, memory)}
            yield plain(f"recipe/{name} {dtype} {memory}", source(make(**options)))
    for policy in ("ra", "augmix", "imagenet", "cifar10", "svhn"):
        strong = imagenet.train_strong(32, auto_augment=policy, num_classes=7)
        yield plain(f"recipe/imagenet.train_strong {policy}", photos(strong))
    yield plain("recipe/imagenet.train bicubic", photos(imagenet.train(32, interpolation="bicubic")))
    yield plain("recipe/imagenet.val nearest", photos(imagenet.val(32, 40, interpolation="nearest")))
    yield plain("recipe/simclr.train no blur", photos(simclr.train(32, views=3, strength=0.5, blur=0)))


def _small(transform: Any) -> Callable[[Inputs], Any]:
    return lambda inputs: datasets.Arrays(inputs.small, np.arange(COUNT) % 10, transform=transform)


def full_size() -> Iterator[Case]:
    """Plans of a thousand images of an ordinary size: numbers that hide behind rounding in small ones show here."""
    made: dict[str, Any] = {
        "imagenet.train": imagenet.train(),
        "imagenet.val": imagenet.val(),
        "imagenet.train_light": imagenet.train_light(),
        "imagenet.train_strong": imagenet.train_strong(),
        "simclr.train": simclr.train(),
        "dino.train": dino.train(),
        "MixUp": [T.CenterCrop(224), T.ToTensor(), T.MixUp(alpha=0.2, num_classes=10)],
        "CutMix": [T.CenterCrop(224), T.ToTensor(), T.CutMix(num_classes=10)],
        "RandomErasing": [T.CenterCrop(224), T.ToTensor(), T.RandomErasing(value="random")],
    }
    made |= {name: [transform, T.CenterCrop(224), T.PILToTensor()] for name, transform in _anywhere().items()}
    for name, transform in made.items():

        def make(_: Inputs, transform: Any = transform) -> Any:
            pixels = np.broadcast_to(np.uint8(0), (1000, 375, 500, 3))  # takes no memory
            return datasets.Arrays(pixels, np.arange(1000) % 10, transform=transform)

        yield plain(f"plan/{name}", make, ("null",), epochs=1, batch_size=50)


def _anywhere() -> dict[str, T.Transform]:
    """Those that PIL images and tensors can have."""
    return {
        "RandAugment": T.RandAugment(),
        "RandAugment bilinear": T.RandAugment(3, 14, interpolation="bilinear", fill=(9, 80, 200)),
        "TrivialAugmentWide": T.TrivialAugmentWide(),
        "AutoAugment imagenet": T.AutoAugment(),
        "AutoAugment svhn": T.AutoAugment("svhn", interpolation="bilinear"),
        "AugMix": T.AugMix(),
        "AugMix part": T.AugMix(5, 2, 2, all_ops=False),
        "RandomRotation": T.RandomRotation(30),
        "RandomRotation expand": T.RandomRotation(30, "bilinear", expand=True, fill=100),
        "RandomAffine": T.RandomAffine(15, (0.1, 0.1), (0.9, 1.1), 10, "bilinear"),
        "RandomAffine shear": T.RandomAffine((5, 25), shear=(-5, 5, -9, 9), interpolation="nearest", center=(9, 4)),
        "RandomPerspective": T.RandomPerspective(p=0.7),
        "ColorJitter no hue": T.ColorJitter(0.4, (0.5, 1.2), 0.9),
        "Grayscale": T.Grayscale(),
        "RandomGrayscale": T.RandomGrayscale(0.5),
        "RandomInvert": T.RandomInvert(),
        "RandomPosterize": T.RandomPosterize(3),
        "RandomSolarize": T.RandomSolarize(128),
        "RandomAdjustSharpness": T.RandomAdjustSharpness(2),
        "RandomAutocontrast": T.RandomAutocontrast(),
        "RandomEqualize": T.RandomEqualize(),
        "GaussianBlur": T.GaussianBlur((5, 9)),
        "Pad": T.Pad((3, 4, 5, 6), (1, 2, 3)),
        "Pad reflect": T.Pad(7, padding_mode="reflect"),
        "RandomCrop": T.RandomCrop(70, 3, pad_if_needed=True, fill=(40, 50, 60)),
        "RandomCrop edge": T.RandomCrop(70, 3, pad_if_needed=True, padding_mode="edge"),
        "RandomVerticalFlip": T.RandomVerticalFlip(),
        "Resize": T.Resize(45, max_size=90),
        "Resize bicubic": T.Resize((44, 51), "bicubic"),
        "Resize not antialiased": T.Resize((44, 51), antialias=False),
        "ScaleJitter": T.ScaleJitter((60, 60), (0.8, 1.5)),
        "RandomShortestSize": T.RandomShortestSize([42, 50, 61], 100),
        "RandomResize": T.RandomResize(42, 62),
        "RandomZoomOut": T.RandomZoomOut((5, 6, 7), (1.0, 2.0)),
        "FixedSizeCrop": T.FixedSizeCrop((40, 100), (5, 6, 7)),
        "RandomApply": T.RandomApply([T.RandomRotation(20), T.ColorJitter(0.3)], 0.6),
        "RandomChoice": T.RandomChoice(
            [T.RandomInvert(1.0), [T.RandomCrop(46), T.Pad(2)], T.GaussianBlur(3)], [1, 2, 1]
        ),
    }


def transforms() -> Iterator[Case]:
    for name, transform in _anywhere().items():
        yield plain(f"transform/{name}", photos([transform, T.CenterCrop(40), T.PILToTensor()]))
        yield plain(f"transform/{name} of tensors", photos([T.ToImage(), transform, T.CenterCrop(40)]))
    after: dict[str, T.Transform] = {  # DALI's graph ends here, and torch does the rest on the batch
        "ColorJitter": T.ColorJitter(0.4, 0.4, 0.4, 0.1),
        "RandomAffine bicubic": T.RandomAffine(20, (0.1, 0.2), interpolation="bicubic", fill=30),
    }
    for name, transform in after.items():
        yield plain(f"transform/{name}", photos([T.RandomCrop(40), transform, T.PILToTensor()]))
        yield plain(f"transform/{name} before the crop", photos([transform, T.RandomCrop(40), T.PILToTensor()]))
    crop = T.RandomResizedCrop(32, (0.3, 1.0), interpolation="bicubic", antialias=False)
    floats: dict[str, list[Any]] = {
        "RandomErasing": [T.RandomErasing(0.7, value=(0.1, 0.2, 0.3))],
        "RandomErasing random": [T.RandomErasing(0.7, value="random", count=(1, 3))],
        "MixUp": [T.MixUp(alpha=0.4, num_classes=4)],
        "CutMix": [T.CutMix(num_classes=4)],
        "RandomChoice of mixing": [T.RandomChoice([T.MixUp(num_classes=3), T.CutMix(num_classes=3)], [0.3, 0.7])],
        "dtypes": [T.Normalize([0.5], [0.2]), T.ConvertImageDtype(torch.float16), T.ToDtype(torch.float32, scale=True)],
        "ColorJitter of floats": [T.ColorJitter(0.4, 0.4, 0.4, 0.1)],
    }
    for name, rest in floats.items():
        yield plain(f"transform/{name}", photos([crop, T.ToTensor(), *rest]))
    views: dict[str, list[Any]] = {
        "MultiView": [
            T.RandomHorizontalFlip(),
            T.MultiView([[T.RandomResizedCrop(20), T.RandomGrayscale(0.5)], [T.Resize((30, 24)), T.RandomInvert()]]),
            T.ToTensor(),
            T.RandomErasing(0.5),
        ],
        "MultiView twice": [T.MultiView([T.RandomResizedCrop(24), T.ColorJitter(0.5), T.PILToTensor()], 2)],
    }
    for name, transforms in views.items():
        yield plain(f"transform/{name}", photos(transforms))
    calls: dict[str, list[Any]] = {
        "Lambda": [
            T.CenterCrop(40),
            mirrored,
            T.ToTensor(),
            T.Lambda(noisy),
        ],
        "Lambda in RandomApply": [
            T.CenterCrop(40),
            T.RandomApply([T.Lambda(mirrored), T.RandomInvert()]),
            T.ToTensor(),
        ],
    }
    for name, transforms in calls.items():
        yield plain(f"transform/{name}", photos(transforms))


def mirrored(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def timm() -> Iterator[Case]:
    made: dict[str, dict[str, Any]] = {
        "rand": {"is_training": True, "auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.5, "re_mode": "pixel"},
        "rand weights": {"is_training": True, "auto_augment": "rand-m7-n3-mstd101", "interpolation": "random"},
        "augmix": {"is_training": True, "auto_augment": "augmix-m5-w4-d2", "interpolation": "bilinear"},
        "original": {"is_training": True, "auto_augment": "original-mstd0.5", "color_jitter": None},
        "v0": {"is_training": True, "auto_augment": "v0", "hflip": 0.3, "vflip": 0.2},
        "3a": {"is_training": True, "auto_augment": "3a"},
        "jitter": {"is_training": True, "color_jitter": 0.4, "re_prob": 0.5, "re_mode": "rand"},
        "eval": {"is_training": False, "interpolation": "bicubic", "crop_pct": 0.9},
    }
    for name, options in made.items():

        def make(inputs: Inputs, options: dict[str, Any] = options) -> Any:
            transform = package("timm.data").create_transform(32, **options)
            return package("torchvision.datasets").ImageFolder(inputs.photos, transform)

        yield plain(f"timm/{name}", make)
