"""Training recipes in two forms: gpupipe's pipeline, and what a user writes with torchvision today."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from _common import import_torchvision

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def ours(recipe: str, size: int, **options: Any) -> Any:
    """The pipeline; ``options`` are dtype and memory_format."""
    from gpupipe import transforms as T
    from gpupipe.pipelines import dino, imagenet, simclr

    if recipe == "RandAugment":
        return T.Compose(
            [T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.RandAugment(), T.ToTensor(), T.Normalize(MEAN, STD)]
        )
    makers: dict[str, Callable[..., Any]] = {
        "train": imagenet.train,
        "train_light": imagenet.train_light,
        "train_strong": imagenet.train_strong,
        "SimCLR": simclr.train,
        "DINO": dino.train,
        "val": imagenet.val,
    }
    return makers[recipe](size, **options)


class SeveralViews:
    """Views of one picture, each by a transform of its own."""

    def __init__(self, *transforms: Callable[[Any], Any]):
        self.transforms = transforms

    def __call__(self, image: Any) -> tuple[Any, ...]:
        return tuple(transform(image) for transform in self.transforms)


def torchvisions(recipe: str, size: int) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any] | None]:
    """(transform of a PIL image, what is done to (images, labels) of a batch or ``None``)"""
    import_torchvision()
    from torchvision.transforms import v2 as V

    first = [V.RandomResizedCrop(size), V.RandomHorizontalFlip()]
    last: list[Any] = [V.PILToTensor(), V.ToDtype(_float32(), scale=True), V.Normalize(MEAN, STD)]
    if recipe == "train":
        return V.Compose([*first, *last]), None
    if recipe == "val":
        return V.Compose([V.Resize(round(size * 256 / 224)), V.CenterCrop(size), *last]), None
    if recipe == "train_light":
        return V.Compose([*first, V.ColorJitter(0.4, 0.4, 0.4), *last]), None
    if recipe == "RandAugment":
        return V.Compose([*first, V.RandAugment(), *last]), None
    if recipe == "train_strong":
        mix = V.RandomChoice([V.MixUp(alpha=0.2, num_classes=1000), V.CutMix(alpha=1.0, num_classes=1000)])
        steps = [*first, V.TrivialAugmentWide(interpolation=V.InterpolationMode.BILINEAR), *last, V.RandomErasing(0.1)]
        return V.Compose(steps), mix
    if recipe == "DINO":
        return _dino(size, last), None
    assert recipe == "SimCLR"
    jitter = V.RandomApply([V.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
    kernel = size // 10 // 2 * 2 + 1
    blur = V.RandomApply([V.GaussianBlur(kernel, (0.1, 2.0))], p=0.5)
    view = V.Compose([*first, jitter, V.RandomGrayscale(0.2), blur, *last])
    return SeveralViews(view, view), None


def _dino(size: int, last: list[Any]) -> SeveralViews:
    """DINO's ``DataAugmentationDINO``.

    It blurs with Pillow, whose approximation of the Gaussian is several times as fast as torchvision's convolution.
    ``gpupipe.pipelines.dino`` has the Gaussian itself.
    """
    from PIL import ImageFilter
    from torchvision.transforms import v2 as V

    def blurred(image: Any) -> Any:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))

    def view(edge: int, scale: tuple[float, float], blur: float, solarize: float = 0.0) -> Any:
        return V.Compose(
            [
                V.RandomResizedCrop(edge, scale=scale, interpolation=V.InterpolationMode.BICUBIC),
                V.RandomHorizontalFlip(),
                V.RandomApply([V.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
                V.RandomGrayscale(0.2),
                V.RandomApply([V.Lambda(blurred)], p=blur),
                *([V.RandomSolarize(128, solarize)] if solarize else []),
                *last,
            ]
        )

    large = view(size, (0.4, 1.0), 1.0), view(size, (0.4, 1.0), 0.1, 0.2)
    return SeveralViews(*large, *[view(96, (0.05, 0.4), 0.5)] * 8)


def _float32() -> Any:
    import torch

    return torch.float32
