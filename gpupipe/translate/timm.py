"""Translation of what timm's ``create_transform`` returns, beside torchvision's classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import transforms as ours
from ..transforms import Transform, timm
from .same_names import PIL_FILTERS, UnsupportedError, interpolation


def _random_resized_crop(t: Any) -> list[Transform]:
    return [ours.RandomResizedCrop(t.size, t.scale, t.ratio, interpolation(t.interpolation))]


def _random_erasing(t: Any) -> list[Transform]:
    if t.num_splits > 1:
        raise UnsupportedError(f"it has num_splits={t.num_splits}, but gpupipe does not split batches; leave it out")
    # timm's modes: zeros, one color for a window, or noise. The empty name means zeros, too.
    value: Any = {"const": 0.0, "": 0.0, "rand": "color", "pixel": "random"}[t.mode]
    # timm stores logarithms.
    ratio = tuple(map(math.exp, t.log_aspect_ratio))
    area = (t.min_area, t.max_area)
    return [ours.RandomErasing(t.probability, area, ratio, value, count=(t.min_count, t.max_count))]


def _levels(steps: list[Any]) -> timm.Levels:
    """Return settings that timm stores in every step, though all steps have the same."""
    first = steps[0]
    h, resample = first.hparams, first.kwargs["resample"]
    modes = resample if isinstance(resample, (tuple, list)) else (resample,)
    # The numbers are timm's own defaults.
    return timm.Levels(
        magnitude_std=float(first.magnitude_std),
        magnitude_max=float(first.magnitude_max or 10),
        translate_const=float(h.get("translate_const", 250)),
        translate_pct=float(h.get("translate_pct", 0.45)),
        fill=first.kwargs["fillcolor"],
        interpolation=tuple(PIL_FILTERS[int(m)] for m in modes),
    )


def _steps(steps: Any) -> list[tuple[str, float, float]]:
    return [(s.name, s.prob, s.magnitude) for s in steps]


def _rand_augment(t: Any) -> list[Transform]:
    weights = None if t.choice_weights is None else [float(w) for w in t.choice_weights]
    return [timm.TimmRandAugment(_steps(t.ops), t.num_layers, weights, _levels(t.ops))]


def _auto_augment(t: Any) -> list[Transform]:
    return [timm.TimmAutoAugment([_steps(p) for p in t.policy], _levels([s for p in t.policy for s in p]))]


def _aug_mix(t: Any) -> list[Transform]:
    if t.blended:
        raise UnsupportedError("it has the blended mode (b1), which timm calls not well tested; leave it out")
    return [timm.TimmAugMix(_steps(t.ops), t.alpha, t.width, t.depth, _levels(t.ops))]


TIMM: dict[str, Callable[[Any], list[Transform]]] = {
    "AugMixAugment": _aug_mix,
    "AutoAugment": _auto_augment,
    "MaybePILToTensor": lambda t: [ours.ToImage()],
    "MaybeToTensor": lambda t: [ours.ToTensor()],
    "RandAugment": _rand_augment,
    "RandomErasing": _random_erasing,
    "RandomResizedCropAndInterpolation": _random_resized_crop,
}
"""Translations by class name, for classes of timm."""
