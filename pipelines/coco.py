"""Pipelines for object detection and instance segmentation, with the settings of torchvision's reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpupipe.errors import ConfigError
from gpupipe.transforms import (
    Compose,
    ConvertBoundingBoxFormat,
    FixedSizeCrop,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomPhotometricDistort,
    RandomShortestSize,
    RandomZoomOut,
    SanitizeBoundingBoxes,
    ScaleJitter,
    ToDtype,
    ToImage,
    Transform,
)

__all__ = ["MEAN", "train", "val"]

MEAN = (123.0, 117.0, 104.0)
"""Mean color of photographs, with which torchvision's reference fills what lies outside of them."""

_PRESETS: dict[str, Callable[[Sequence[float]], list[Transform]]] = {
    "hflip": lambda mean: [],
    "lsj": lambda mean: [ScaleJitter((1024, 1024)), FixedSizeCrop(1024, mean)],
    "multiscale": lambda mean: [RandomShortestSize(range(480, 801, 32), max_size=1333)],
    "ssd": lambda mean: [RandomPhotometricDistort(), RandomZoomOut(mean), RandomIoUCrop()],
    "ssdlite": lambda mean: [RandomIoUCrop()],
}


def train(
    data_augmentation: str = "hflip",
    *,
    hflip_prob: float = 0.5,
    mean: Sequence[float] = MEAN,
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Augment as a preset of torchvision's reference does, flip, and remove boxes without area with their objects.

    Images are in [0, 1] and not normalized, because torchvision's detection models do that.

    Args:
        data_augmentation: ``"hflip"``: nothing else. ``"multiscale"``: the shorter edge gets one of eleven sizes from
            480 to 800, and the longer one at most 1333. ``"lsj"``: large scale jitter, then a crop of 1024 x 1024.
            ``"ssd"``: changes of color, a larger canvas, and windows that depend on boxes. ``"ssdlite"``: only those
            windows.
        hflip_prob: probability of a horizontal flip.
        mean: color outside the image.
        dtype: ``float32``, or ``uint8`` for images in [0, 255].
        memory_format: ``contiguous_format`` or ``channels_last``.

    Returns:
        A pipeline whose images ``dtype[3, H, W]`` differ in size, except with ``"lsj"``. Use
        ``collate_fn=gpupipe.collate.as_lists``.

    Raises:
        ConfigError: there is no such preset, or the data type is another one.
    """
    if data_augmentation not in _PRESETS:
        raise ConfigError(f"data_augmentation must be one of {', '.join(_PRESETS)}, not {data_augmentation!r}")
    steps = [*_PRESETS[data_augmentation](mean), RandomHorizontalFlip(hflip_prob), *_finish(dtype)]
    return Compose([*steps, ConvertBoundingBoxFormat("XYXY"), SanitizeBoundingBoxes()], memory_format=memory_format)


def val(*, dtype: Any = "float32", memory_format: Any = "contiguous_format") -> Compose:
    """Convert images to tensors in [0, 1].

    Returns:
        A pipeline whose images ``dtype[3, H, W]`` differ in size. Use ``collate_fn=gpupipe.collate.as_lists``.
    """
    return Compose(_finish(dtype), memory_format=memory_format)


def _finish(dtype: Any) -> list[Transform]:
    name = str(dtype).removeprefix("torch.")
    if name not in ("float32", "uint8"):
        raise ConfigError(f"dtype must be float32 or uint8, not {dtype!r}")
    return [ToImage(), ToDtype("float32", scale=True)] if name == "float32" else [ToImage()]
