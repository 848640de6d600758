"""Translation of torchvision's transforms that have other fields or another meaning than gpupipe's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import transforms as ours
from ..transforms import Transform
from .image_state import ImageState
from .same_names import CONVERTERS, UnsupportedError, interpolation, same_names


def _second_generation(t: Any) -> bool:
    return type(t).__module__.startswith("torchvision.transforms.v2")


def _random_crop(t: Any, place: ImageState) -> list[Transform]:
    padding = t.padding
    if padding is not None and _second_generation(t):
        left, right, top, bottom = padding  # v2 stores it in this order
        padding = (left, top, right, bottom)
    if padding is not None and t.pad_if_needed and t.padding_mode in ("reflect", "symmetric"):
        raise UnsupportedError(f"it mirrors twice: padding and pad_if_needed with padding_mode={t.padding_mode!r}")
    given = {"fill": fill(t, place)} if isinstance(t.fill, dict) else {}
    return [same_names(t, type(t), ours.RandomCrop, padding=padding, **given)]


def _convert_image_dtype(t: Any, place: ImageState) -> list[Transform]:
    """Translate both versions: v2's is its ToDtype, and v1's divides, which rounds differently."""
    return [ours.ToDtype(t.dtype, scale=True) if _second_generation(t) else ours.ConvertImageDtype(t.dtype)]


def _mixing(t: Any, place: ImageState) -> list[Transform]:
    if not place.for_own_dataset:
        raise UnsupportedError("it needs a batch and its targets; call it in the training loop")
    if t._labels_getter.__name__ != "_find_labels_default_heuristic":
        raise UnsupportedError("it has its own labels_getter; the dataset provides the targets, so leave it out")
    return [(ours.MixUp if type(t).__name__ == "MixUp" else ours.CutMix)(alpha=t.alpha, num_classes=t.num_classes)]


def _of_type(values: dict[Any, Any], place: ImageState) -> tuple[bool, Any]:
    """Look up the image at this place in values by type, such as ``{tv_tensors.Image: ..., "others": ...}``.

    Returns whether there is a value, and the value.
    """
    module, name = _TYPES[place.kind]
    for key, value in values.items():
        if isinstance(key, type) and key.__module__.startswith(module) and key.__name__ == name:
            return True, value
    return "others" in values, values.get("others")


_TYPES = {"pil": ("PIL.", "Image"), "image": ("torchvision.", "Image"), "tensor": ("torch", "Tensor")}


def _dtype(t: Any, place: ImageState) -> Any:
    """Return the data type that ``v2.ToDtype`` would convert to here; ``None`` for no conversion."""
    if not isinstance(t.dtype, dict):
        return t.dtype
    known, dtype = _of_type(t.dtype, place)
    if not known:
        name = _TYPES[place.kind][1]
        raise UnsupportedError(f"it names no data type for {name}, the type of the image at this place")
    return dtype


def fill(t: Any, place: ImageState) -> Any:
    """Return the value for the image at this place, of ``fill`` by type."""
    if any(isinstance(key, type) and key.__module__.startswith("PIL.") for key in t.fill):
        raise UnsupportedError(f"fill={t.fill!r} names a class of Pillow; use 'others' for images")
    return CONVERTERS["fill"](_of_type(t.fill, place)[1])


def _to_dtype(t: Any, place: ImageState) -> list[Transform]:
    dtype = _dtype(t, place)
    return [] if dtype is None else [ours.ToDtype(dtype, bool(t.scale))]


def _rgb(t: Any, place: ImageState) -> list[Transform]:
    if place.channels == 1:
        raise UnsupportedError("the image has one channel here; use Grayscale(num_output_channels=3) before it instead")
    return []  # the engines decode to RGB


def _to_pure_tensor(t: Any, place: ImageState) -> list[Transform]:
    place.kind = "tensor" if place.kind == "image" else place.kind
    return []


def _of_targets(t: Any, place: ImageState) -> list[Transform]:
    """Translate a transform of boxes or keypoints, which does not change images."""
    if place.for_own_dataset:
        raise UnsupportedError("gpupipe has no such transform")
    raise UnsupportedError("it needs bounding boxes or keypoints, but gets only an image")


def _of_boxes(t: Any, place: ImageState) -> list[Transform]:
    """Translate a transform of boxes. Those of a dataset of gpupipe's own follow the pipeline."""
    if not place.for_own_dataset:
        return _of_targets(t, place)
    if getattr(t, "labels_getter", "default") != "default":
        raise UnsupportedError("it has a labels_getter, and gpupipe removes all values of a box")
    if getattr(t, "clamping_mode", "auto") is None:
        raise UnsupportedError("it has clamping_mode=None, and does nothing; leave it out")
    # Three classes share this rule: only one has a format, another has a min_area, and ClampBoundingBoxes has neither.
    if hasattr(t, "format"):
        return [ours.ConvertBoundingBoxFormat(t.format)]
    if hasattr(t, "min_area"):
        return [ours.SanitizeBoundingBoxes(t.min_size, t.min_area)]
    return [ours.ClampBoundingBoxes()]


def _iou_crop(t: Any, place: ImageState) -> list[Transform]:
    if not place.for_own_dataset:
        _of_targets(t, place)
    limits = t.min_scale, t.max_scale, t.min_aspect_ratio, t.max_aspect_ratio
    return [ours.RandomIoUCrop(*limits, sampler_options=tuple(t.options), trials=t.trials)]


def _classification_preset(t: Any, place: ImageState) -> list[Transform]:
    """Translate what ``weights.transforms()`` of torchvision's models returns."""
    return [
        ours.Resize(t.resize_size, interpolation(t.interpolation), antialias=bool(t.antialias)),
        ours.CenterCrop(t.crop_size),
        ours.PILToTensor() if place.kind == "pil" else ours.ToImage(),
        ours.ConvertImageDtype("float32"),
        ours.Normalize(t.mean, t.std),
    ]


def _to_pil_image(t: Any, place: ImageState) -> list[Transform]:
    """Undo ToTensor()."""
    if t.mode is not None or not place.undo_to_tensor():
        raise UnsupportedError("gpupipe supports it only directly after ToTensor()")
    return []


def _to_tensor(t: Any, place: ImageState) -> list[Transform]:
    if (dtype := torch.get_default_dtype()) is not torch.float32:
        raise UnsupportedError(f"its result is {dtype}, torch's default data type")
    return [ours.ToTensor()]


RULES: dict[str, Callable[[Any, ImageState], list[Transform]]] = {
    "ClampBoundingBoxes": _of_boxes,
    "ClampKeyPoints": _of_targets,
    "ConvertBoundingBoxFormat": _of_boxes,
    "ConvertImageDtype": _convert_image_dtype,
    "CutMix": _mixing,
    "Identity": lambda t, place: [],
    "ImageClassification": _classification_preset,
    "MixUp": _mixing,
    "RGB": _rgb,
    "RandomCrop": _random_crop,
    # In place or not makes no difference here, and fingerprints of pipelines do not contain it.
    "RandomErasing": lambda t, place: [same_names(t, type(t), ours.RandomErasing, inplace=False)],
    "RandomIoUCrop": _iou_crop,
    "SanitizeBoundingBoxes": _of_boxes,
    "SanitizeKeyPoints": _of_targets,
    "SetClampingMode": _of_targets,
    "ToDtype": _to_dtype,
    "ToPILImage": _to_pil_image,
    "ToTensor": _to_tensor,
    "ToPureTensor": _to_pure_tensor,
}
"""Translations by class name. Transforms that are not listed have fields of the same names as gpupipe's."""
