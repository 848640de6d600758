"""torchvision's random transforms, policies and containers as gpupipe's: one rule for each class name.

The arguments are those that both generations of torchvision keep in their objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import transforms as ours
from ..transforms import Transform

__all__ = ["CONTAINERS", "PIL_FILTERS", "RULES", "Refused", "fill_of", "filter_of"]

PIL_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


class Refused(Exception):
    """A transform, or one of its parameters, that has no form here; the message says why."""


def filter_of(t: Any) -> str:
    """The name of an interpolation that was given as torchvision's enum, as a name, or as PIL's number."""
    value = getattr(t.interpolation, "value", t.interpolation)
    return PIL_FILTERS.get(value, str(value)) if isinstance(value, int) else str(value)


def fill_of(t: Any) -> Any:
    """A number or three."""
    if t.fill is None:
        return 0
    values = list(t.fill) if isinstance(t.fill, (list, tuple)) else [t.fill]
    if not all(isinstance(v, (int, float)) for v in values):
        raise Refused(f"fill={t.fill!r}; it can be a number or three")
    return t.fill if isinstance(t.fill, (int, float)) else tuple(values)


def _policy_fill(t: Any) -> Any:
    """As :func:`fill_of`, but ``None`` stays: on tensors it is not the same as 0."""
    return None if t.fill is None else fill_of(t)


def _color_jitter(t: Any) -> Transform:
    return ours.ColorJitter(t.brightness, t.contrast, t.saturation, t.hue)


def _random_affine(t: Any) -> Transform:
    return ours.RandomAffine(t.degrees, t.translate, t.scale, t.shear, filter_of(t), fill_of(t), t.center)


def _random_erasing(t: Any) -> Transform:
    # The second generation stores None for "random", and lists.
    value = "random" if t.value is None else t.value
    return ours.RandomErasing(t.p, t.scale, t.ratio, tuple(value) if isinstance(value, list) else value)


def _auto_augment(t: Any) -> Transform:
    return ours.AutoAugment(t.policy.value, filter_of(t), _policy_fill(t))


def _aug_mix(t: Any) -> Transform:
    return ours.AugMix(t.severity, t.mixture_width, t.chain_depth, t.alpha, t.all_ops, filter_of(t), _policy_fill(t))


def _rand_augment(t: Any) -> Transform:
    return ours.RandAugment(t.num_ops, t.magnitude, t.num_magnitude_bins, filter_of(t), _policy_fill(t))


def _lambda(t: Any) -> Transform:
    if getattr(t, "types", (object,)) != (object,):
        raise Refused("a Lambda for some types only; leave types out, the images are all that passes")
    return ours.Lambda(t.lambd)


def _label_mixing(t: Any, cls: type[Any]) -> Transform:
    if t._labels_getter.__name__ != "_find_labels_default_heuristic":
        raise Refused("with its own labels_getter; targets are what the dataset gives, so leave it out")
    return cls(alpha=t.alpha, num_classes=t.num_classes)  # type: ignore[no-any-return]


RULES: dict[str, Callable[[Any], Transform]] = {
    "AugMix": _aug_mix,
    "AutoAugment": _auto_augment,
    "ColorJitter": _color_jitter,
    "CutMix": lambda t: _label_mixing(t, ours.CutMix),
    "ElasticTransform": lambda t: ours.ElasticTransform(t.alpha, t.sigma, filter_of(t), fill_of(t)),
    "FiveCrop": lambda t: ours.FiveCrop(t.size),
    "GaussianBlur": lambda t: ours.GaussianBlur(t.kernel_size, t.sigma),
    "GaussianNoise": lambda t: ours.GaussianNoise(t.mean, t.sigma, t.clip),
    "JPEG": lambda t: ours.JPEG(t.quality),
    "Lambda": _lambda,
    "MixUp": lambda t: _label_mixing(t, ours.MixUp),
    "RandAugment": _rand_augment,
    "RandomAdjustSharpness": lambda t: ours.RandomAdjustSharpness(t.sharpness_factor, t.p),
    "RandomAffine": _random_affine,
    "RandomAutocontrast": lambda t: ours.RandomAutocontrast(t.p),
    "RandomEqualize": lambda t: ours.RandomEqualize(t.p),
    "RandomErasing": _random_erasing,
    "RandomInvert": lambda t: ours.RandomInvert(t.p),
    "RandomPerspective": lambda t: ours.RandomPerspective(t.distortion_scale, t.p, filter_of(t), fill_of(t)),
    "RandomPosterize": lambda t: ours.RandomPosterize(t.bits, t.p),
    "RandomRotation": lambda t: ours.RandomRotation(t.degrees, filter_of(t), t.expand, t.center, fill_of(t)),
    "RandomShortestSize": lambda t: ours.RandomShortestSize(
        t.min_size, t.max_size, filter_of(t), antialias=bool(t.antialias)
    ),
    "RandomSolarize": lambda t: ours.RandomSolarize(t.threshold, t.p),
    "RandomZoomOut": lambda t: ours.RandomZoomOut(fill_of(t), t.side_range, t.p),
    "ScaleJitter": lambda t: ours.ScaleJitter(t.target_size, t.scale_range, filter_of(t), antialias=bool(t.antialias)),
    "TenCrop": lambda t: ours.TenCrop(t.size, t.vertical_flip),
    "TrivialAugmentWide": lambda t: ours.TrivialAugmentWide(t.num_magnitude_bins, filter_of(t), _policy_fill(t)),
}

CONTAINERS: dict[str, Callable[[Any, list[Any]], Transform]] = {
    "RandomApply": lambda t, inner: ours.RandomApply(inner, t.p),
    "RandomChoice": lambda t, inner: ours.RandomChoice(inner, t.p),
    "RandomOrder": lambda t, inner: ours.RandomOrder(inner),
}
"""What holds other transforms: (the object, what its transforms became)."""
