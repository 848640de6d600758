"""Pipelines as a script writes them with Pillow and torch alone, by torchvision's rules."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import PipelineError
from ..transforms import CenterCrop, Normalize, RandomHorizontalFlip, RandomResizedCrop, Resize, ToTensor
from ..transforms.compose import Compose
from ..transforms.transform import Transform

Step = Callable[[Any], Any]


class PillowSteps:
    """Functions for one image, in order. Can be sent to worker processes.

    Raises:
        PipelineError: a transform has no function here.
    """

    def __init__(self, pipeline: Compose):
        # Fail here rather than in a worker.
        for transform in pipeline:
            _function(transform)
        self.pipeline = tuple(pipeline)

    def __call__(self, image: Image.Image) -> Any:
        made: Any = image
        for transform in self.pipeline:
            made = _function(transform)(transform, made)
        return made


def _function(transform: Transform) -> Callable[[Any, Any], Any]:
    function = _FUNCTIONS.get(type(transform))
    interpolation = getattr(transform, "interpolation", "bilinear")
    if function is None or interpolation != "bilinear":
        raise PipelineError(f"{transform!r} is not among the steps written with Pillow")
    return function


def drawn_window(t: RandomResizedCrop, width: int, height: int) -> tuple[int, int, int, int]:
    """Draw (left, top, width, height) of a window, as torchvision's ``RandomResizedCrop.get_params``."""
    for _ in range(t.ATTEMPTS):
        area = width * height * random.uniform(*t.scale)
        ratio = math.exp(random.uniform(math.log(t.ratio[0]), math.log(t.ratio[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    # torchvision's three cases in two lines: at most one of the limits applies.
    w = min(width, round(height * t.ratio[1]))
    h = min(height, round(width / t.ratio[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def _random_resized_crop(t: RandomResizedCrop, image: Image.Image) -> Image.Image:
    left, top, w, h = drawn_window(t, *image.size)
    cropped = image.crop((left, top, left + w, top + h))
    return cropped.resize((t.size[1], t.size[0]), Image.Resampling.BILINEAR)


def _resize(t: Resize, image: Image.Image) -> Image.Image:
    if isinstance(t.size, tuple):
        return image.resize((t.size[1], t.size[0]), Image.Resampling.BILINEAR)
    if t.size is None or t.max_size is not None:
        raise PipelineError(f"{t!r} is not among the steps written with Pillow")
    width, height = image.size
    short, long = t.size, int(t.size * max(image.size) / min(image.size))
    return image.resize((short, long) if width <= height else (long, short), Image.Resampling.BILINEAR)


def _center_crop(t: CenterCrop, image: Image.Image) -> Image.Image:
    height, width = t.size
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def _flip(t: RandomHorizontalFlip, image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < t.p else image


def _to_tensor(t: ToTensor, image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.float32).div_(255)


def _normalize(t: Normalize, image: Tensor) -> Tensor:
    mean, std = (torch.tensor(value).view(-1, 1, 1) for value in (t.mean, t.std))
    return image.sub_(mean).div_(std)


_FUNCTIONS: dict[type, Callable[[Any, Any], Any]] = {
    RandomResizedCrop: _random_resized_crop,
    Resize: _resize,
    CenterCrop: _center_crop,
    RandomHorizontalFlip: _flip,
    ToTensor: _to_tensor,
    Normalize: _normalize,
}
