"""Parts that several pipelines share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from gpupipe.errors import ConfigError
from gpupipe.transforms import (
    AugMix,
    AutoAugment,
    CutMix,
    MixUp,
    Normalize,
    RandAugment,
    RandomChoice,
    ToDtype,
    ToImage,
    ToTensor,
    Transform,
    TrivialAugmentWide,
)
from gpupipe.transforms.auto_augment import PolicyName
from gpupipe.transforms.fields import InterpolationName

__all__ = ["finish", "mixing", "policy"]

POLICIES = ("ra", "ta_wide", "augmix", "imagenet", "cifar10", "svhn")


def finish(dtype: Any, mean: Sequence[float], std: Sequence[float]) -> list[Transform]:
    """Convert to a tensor of ``dtype``, and normalize if that is a float type."""
    name = str(dtype).removeprefix("torch.")
    if name == "uint8":
        return [ToImage()]
    normalized: list[Transform] = [ToTensor(), Normalize(mean, std)]
    return normalized if name == "float32" else [*normalized, ToDtype(dtype)]


def policy(name: str | None, interpolation: InterpolationName) -> list[Transform]:
    """Return the automatic augmentation that torchvision's training scripts call ``name``."""
    if name is None:
        return []
    if name not in POLICIES:
        raise ConfigError(f"auto_augment must be None or one of {', '.join(POLICIES)}, not {name!r}")
    if name == "ra":
        return [RandAugment(interpolation=interpolation)]
    if name == "ta_wide":
        return [TrivialAugmentWide(interpolation=interpolation)]
    if name == "augmix":
        return [AugMix(interpolation=interpolation)]
    return [AutoAugment(cast("PolicyName", name), interpolation=interpolation)]


def mixing(mixup: float, cutmix: float, num_classes: int | None) -> list[Transform]:
    """Return MixUp and CutMix with these alphas; 0 omits one. Of both, each batch draws one."""
    made: list[Transform] = []
    if mixup:
        made.append(MixUp(alpha=mixup, num_classes=num_classes))
    if cutmix:
        made.append(CutMix(alpha=cutmix, num_classes=num_classes))
    return [RandomChoice(made)] if len(made) == 2 else made
