"""Translation of albumentations' transforms, which work on arrays.

albumentations draws from generators of its own. The translated transforms draw from the same distributions, with the
plan's random numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .. import transforms as ours
from ..transforms import Transform, albumentations as theirs
from ..transforms.fields import InterpolationName
from .classes import changed_methods, exact_name
from .same_names import UnsupportedError

MODULE = "albumentations"
_FILTERS: dict[int, InterpolationName] = {0: "nearest", 1: "bilinear"}
"""Names of the interpolations, by OpenCV's number."""


def parts(t: Any) -> list[Any] | None:
    """Return the transforms of a ``Compose`` that only works on images, in order; ``None`` for anything else."""
    # With p below 1, a Compose applies all of its transforms or none. A flat list of them would lose that.
    if exact_name(t, MODULE) != "Compose" or t.p < 1:
        return None
    return None if t.processors or t.additional_targets or t.save_applied_params else list(t.transforms)


def of_albumentations(t: Any, cls: type) -> list[Transform]:
    """Translate a transform. Raise :class:`UnsupportedError` if there is no rule for it or for one of its arguments."""
    if cls.__name__ == "Compose":
        raise UnsupportedError(
            "it has p below 1, boxes, keypoints, additional targets, saved parameters, or methods of its own",
            "transform-argument",
        )
    rule, arguments = _RULES.get(cls.__name__, (None, ""))
    if rule is None:
        raise UnsupportedError("gpupipe has no such transform of albumentations", "unknown-transform")
    if changed := changed_methods(t, cls):
        raise UnsupportedError(f"it is a subclass of {cls.__name__} with its own {', '.join(changed)}", "own-methods")
    # A release with other arguments may also behave differently.
    if unknown := set(inspect.signature(cls).parameters) ^ {*arguments.split(), "p"}:
        raise UnsupportedError(
            f"this release of albumentations differs in {', '.join(sorted(unknown))}", "transform-argument"
        )
    made = rule(t)
    # The rules of the flips have used p already.
    if isinstance(made, (ours.RandomHorizontalFlip, ours.RandomVerticalFlip)) or t.p >= 1:
        return [made]
    # One batch cannot hold arrays of some samples and tensors of others.
    if cls.__name__ == "ToTensorV2" or t.p <= 0:
        raise UnsupportedError(f"p={t.p} applies it to some images only; leave p out", "transform-argument")
    return [ours.RandomApply([made], p=t.p)]


def _filter(t: Any) -> InterpolationName:
    if t.area_for_downscale is not None:
        raise UnsupportedError(
            f"it has area_for_downscale={t.area_for_downscale!r}; leave it out", "transform-argument"
        )
    if t.interpolation not in _FILTERS:
        raise UnsupportedError(
            f"it has interpolation={t.interpolation}; use cv2.INTER_LINEAR or cv2.INTER_NEAREST", "transform-argument"
        )
    return _FILTERS[t.interpolation]


def _random_resized_crop(t: Any) -> Transform:
    return ours.RandomResizedCrop(t.size, t.scale, t.ratio, _filter(t), antialias=False)


def _max_size(kind: type[theirs.SmallestMaxSize] | type[theirs.LongestMaxSize]) -> Callable[[Any], Transform]:
    def rule(t: Any) -> Transform:
        if type(t.max_size) is not int:
            raise UnsupportedError(
                "gpupipe supports one number for max_size, not a list or max_size_hw", "transform-argument"
            )
        return kind(t.max_size, _filter(t))

    return rule


def _crop(kind: type[ours.RandomCrop] | type[theirs.CenterCrop]) -> Callable[[Any], Transform]:
    def rule(t: Any) -> Transform:
        if t.pad_if_needed:
            raise UnsupportedError("it has pad_if_needed=True; put a SmallestMaxSize before it", "transform-argument")
        return kind((t.height, t.width))

    return rule


def _normalize(t: Any) -> Transform:
    if t.normalization != "standard":
        raise UnsupportedError(f"its normalization={t.normalization!r} depends on the image", "transform-argument")
    # albumentations multiplies by denominator = 1 / (std * max_pixel_value); mean_np is scaled likewise.
    mean, factor = t.mean_np.reshape(-1).tolist(), t.denominator.reshape(-1).tolist()
    return theirs.Normalize(mean, [1 / f for f in factor])


def _to_float(t: Any) -> Transform:
    if t.max_value not in (None, 255):
        raise UnsupportedError(f"it has max_value={t.max_value}, and that of bytes is 255", "transform-argument")
    return theirs.ToFloat()


_RESIZES = "interpolation mask_interpolation area_for_downscale"
_CROPS = "height width pad_if_needed pad_position border_mode fill fill_mask"

_RULES: dict[str, tuple[Callable[[Any], Transform], str]] = {
    "CenterCrop": (_crop(theirs.CenterCrop), _CROPS),
    "HorizontalFlip": (lambda t: ours.RandomHorizontalFlip(t.p), ""),
    "LongestMaxSize": (_max_size(theirs.LongestMaxSize), f"max_size max_size_hw {_RESIZES}"),
    "Normalize": (_normalize, "mean std max_pixel_value normalization"),
    "RandomCrop": (_crop(ours.RandomCrop), _CROPS),
    "RandomResizedCrop": (_random_resized_crop, f"size scale ratio {_RESIZES}"),
    "Resize": (
        lambda t: ours.Resize((t.height, t.width), _filter(t), antialias=False),
        f"height width {_RESIZES}",
    ),
    "SmallestMaxSize": (_max_size(theirs.SmallestMaxSize), f"max_size max_size_hw {_RESIZES}"),
    "ToFloat": (_to_float, "max_value"),
    "ToTensorV2": (lambda t: theirs.ToTensorV2(), "transpose_mask"),
    "VerticalFlip": (lambda t: ours.RandomVerticalFlip(t.p), ""),
}
"""Rules by class name: a function that translates, and the arguments that the class takes beside ``p``."""
