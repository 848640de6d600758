"""A package with the calls of albumentations 2, for where that is not installed."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch


class BasicTransform:
    def __init__(self, p: float = 1.0):
        self.p = p

    def __call__(self, *, image: Any) -> dict[str, Any]:
        return {"image": self.apply(image) if random.random() < self.p else image}

    def apply(self, image: Any) -> Any:
        raise NotImplementedError


class Compose(BasicTransform):
    def __init__(self, transforms: list[Any], p: float = 1.0, save_applied_params: bool = False):
        super().__init__(p)
        self.transforms, self.save_applied_params = transforms, save_applied_params
        self.processors: dict[str, Any] = {}
        self.additional_targets: dict[str, Any] = {}

    def apply(self, image: Any) -> Any:
        for t in self.transforms:
            image = t(image=image)["image"]
        return image


class ReplayCompose(Compose):
    pass


class _Crop(BasicTransform):
    def __init__(
        self,
        height: int,
        width: int,
        pad_if_needed: bool = False,
        pad_position: str = "center",
        border_mode: int = 0,
        fill: float = 0,
        fill_mask: float = 0,
        p: float = 1.0,
    ):
        super().__init__(p)
        self.height, self.width, self.pad_if_needed = height, width, pad_if_needed

    def at(self, margin: int) -> int:
        raise NotImplementedError

    def apply(self, image: Any) -> Any:
        top, left = (self.at(n - m) for n, m in zip(image.shape, (self.height, self.width), strict=False))
        return image[top : top + self.height, left : left + self.width]


class RandomCrop(_Crop):
    def at(self, margin: int) -> int:
        return random.randint(0, margin)


class CenterCrop(_Crop):
    def at(self, margin: int) -> int:
        return margin // 2


class HorizontalFlip(BasicTransform):
    def __init__(self, p: float = 0.5):
        super().__init__(p)

    def apply(self, image: Any) -> Any:
        return image[:, ::-1]


class ToTensorV2(BasicTransform):
    def __init__(self, transpose_mask: bool = False, p: float = 1.0):
        super().__init__(p)

    def apply(self, image: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))


class CoarseDropout(BasicTransform):
    def apply(self, image: Any) -> Any:
        return image


_CLASSES = (
    BasicTransform, CenterCrop, CoarseDropout, Compose, HorizontalFlip, RandomCrop, ReplayCompose, ToTensorV2,
)  # fmt: skip
for _cls in (*_CLASSES, _Crop):
    _cls.__module__ = "albumentations.core"


def package() -> Any:
    """In the place of the imported package."""
    return SimpleNamespace(**{cls.__name__: cls for cls in _CLASSES})
