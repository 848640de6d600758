"""torchvision's own functions, given the numbers of a plan: what the reference is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from _common import import_torchvision
from PIL import Image

from gpupipe.transforms import ops as O
from gpupipe.transforms.ops import Op

import_torchvision()

from torchvision.transforms import InterpolationMode  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402
from torchvision.transforms.v2.functional import _geometry as G  # noqa: E402

__all__ = ["FUNCTIONS", "Unknown", "apply"]


class Unknown(Exception):
    """torchvision has no function that takes this op's numbers."""


def apply(image: Any, ops: Sequence[Op], i: int) -> Any:
    """Row ``i`` of ``ops`` on a PIL image or on a tensor [C, H, W].

    Raises :class:`Unknown`.
    """
    for op in ops:
        if type(op) not in FUNCTIONS:
            raise Unknown(type(op).__name__)
        image = image if op.passes(i) else FUNCTIONS[type(op)](image, op, i)
    return image


def _fill(op: Any) -> Any:
    if op.fill is None:
        return None
    return op.fill[0] if len(op.fill) == 1 else list(op.fill)


def _crop(image: Any, op: O.Crop, i: int) -> Any:
    top, left, height, width = (int(a[i]) for a in (op.top, op.left, op.height, op.width))
    have_height, have_width = F.get_size(image)
    before = max(-left, 0), max(-top, 0)
    after = max(left + width - have_width, 0), max(top + height - have_height, 0)
    if any((*before, *after)):
        image = F.pad(image, [*before, *after], fill=_fill(op), padding_mode=op.mode)
    return F.crop(image, top + before[1], left + before[0], height, width)


def _resize(image: Any, op: O.Resize, i: int) -> Any:
    size = [int(op.height[i]), int(op.width[i])]
    return F.resize(image, size, InterpolationMode(op.interpolation), antialias=op.antialias)


def _gray(image: Any, op: O.Gray, i: int) -> Any:
    return F.rgb_to_grayscale(image, num_output_channels=op.channels)


def _warp(image: Any, op: O.Warp, i: int) -> Any:
    matrix, mode = op.matrix[i].tolist(), InterpolationMode(op.interpolation)
    height, width = int(op.height[i]), int(op.width[i])
    if isinstance(image, Image.Image):
        fill = None if op.fill is None else tuple(int(v) for v in op.fill) * (3 // len(op.fill))
        filters = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR}
        filters["bicubic"] = Image.Resampling.BICUBIC
        return image.transform(
            (width, height), Image.Transform.AFFINE, matrix, filters[op.interpolation], fillcolor=fill
        )
    have_height, have_width = image.shape[-2:]
    theta = torch.tensor(matrix, dtype=torch.float32).reshape(1, 2, 3)
    grid = G._affine_grid(theta, w=have_width, h=have_height, ow=width, oh=height)
    return (
        G._apply_grid_transform(image[None].float(), grid, mode.value, None if op.fill is None else list(op.fill))[0]
        .round_()
        .to(image.dtype)
    )


def _perspective(image: Any, op: O.Perspective, i: int) -> Any:
    return F.perspective(
        image, None, None, InterpolationMode(op.interpolation), _fill(op), coefficients=op.coefficients[i].tolist()
    )


def _blur(image: Any, op: O.Blur, i: int) -> Any:
    return F.gaussian_blur(image, list(op.kernel_size), [float(op.sigma[i])] * 2)


def _erase(image: Any, op: O.Erase, i: int) -> Any:
    if op.value is None:
        raise Unknown("Erase with noise")
    top, left, height, width = (int(a[i]) for a in (op.top, op.left, op.height, op.width))
    return F.erase(image, top, left, height, width, torch.tensor(op.value, dtype=image.dtype)[:, None, None])


FUNCTIONS: dict[type[Op], Callable[[Any, Any, int], Any]] = {
    O.AutoContrast: lambda image, op, i: F.autocontrast(image),
    O.Blur: _blur,
    O.Brightness: lambda image, op, i: F.adjust_brightness(image, float(op.factor[i])),
    O.ChannelPermutation: lambda image, op, i: F.permute_channels(image, op.permutation[i].tolist()),
    O.Contrast: lambda image, op, i: F.adjust_contrast(image, float(op.factor[i])),
    O.Crop: _crop,
    O.Equalize: lambda image, op, i: F.equalize(image),
    O.Erase: _erase,
    O.Flip: lambda image, op, i: (F.hflip if op.axis == "horizontal" else F.vflip)(image),
    O.Gray: _gray,
    O.Hue: lambda image, op, i: F.adjust_hue(image, float(op.factor[i])),
    O.Invert: lambda image, op, i: F.invert(image),
    O.Normalize: lambda image, op, i: F.normalize(image, list(op.mean), list(op.std)),
    O.Perspective: _perspective,
    O.Posterize: lambda image, op, i: F.posterize(image, int(op.bits[i])),
    O.Resize: _resize,
    O.Saturation: lambda image, op, i: F.adjust_saturation(image, float(op.factor[i])),
    O.Sharpness: lambda image, op, i: F.adjust_sharpness(image, float(op.factor[i])),
    O.Solarize: lambda image, op, i: F.solarize(image, float(op.threshold[i])),
    O.ToDtype: lambda image, op, i: F.to_dtype(F.to_image(image), getattr(torch, op.dtype), scale=op.scale),
    O.Warp: _warp,
}
