"""Affine maps and perspective: on images as in Pillow and torchvision, and on batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import grid_sample

from ..transforms import ops
from . import pillow
from .device_random import on
from .geometry import window
from .picture import PIL_FILTERS, TRANSFORM, Picture, array, chw, hwc, pil
from .registry import Form, batch_form, different_sizes, form, works_together


@form(ops.Warp)
def warp(image: Picture, op: ops.Warp, i: int) -> Picture:
    if op.turns[i] >= 0:  # no interpolation
        return np.ascontiguousarray(np.rot90(array(image), int(op.turns[i])))
    size = int(op.height[i]), int(op.width[i])
    if op.kind == "pil":
        a, b, left, c, d, top = op.matrix[i].tolist()
        if (a, b, c, d) == (1.0, 0.0, 0.0, 1.0) and left.is_integer() and top.is_integer():
            return window(image, int(top), int(left), *size, op.fill or (0.0,))  # independent of the filter
        return _transform(image, Image.Transform.AFFINE, op.matrix[i], size, op)
    x = chw(image)[None]
    return hwc(sample_grid(x, affine_grid(op.matrix[i : i + 1], size, x), op.interpolation, op.fill)[0])


@form(ops.Perspective)
def perspective(image: Picture, op: ops.Perspective, i: int) -> Picture:
    x = array(image)
    if op.kind == "pil":
        return _transform(image, Image.Transform.PERSPECTIVE, op.coefficients[i], x.shape[:2], op)
    t = chw(image)[None]
    return hwc(sample_grid(t, perspective_grid(op.coefficients[i : i + 1], t), op.interpolation, op.fill)[0])


def _transform(image: Picture, method: Image.Transform, data: Any, size: tuple[int, int], op: Any) -> Image.Image:
    picture = pil(image)
    fill = tuple(int(v) for v in op.fill or (0.0,))
    bands = len(picture.getbands())
    color = (fill * bands)[:bands] if bands > 1 else fill[0]
    return TRANSFORM(picture, size[::-1], method, data.tolist(), PIL_FILTERS[op.interpolation], fillcolor=color)


# ---- on batches

_SEVERAL, _SMALL = 24, 48 * 48
"""Fewest images, and most pixels of each, for which torch finds the nearest pixels faster than Pillow on a CPU."""


@batch_form(ops.Warp, together="nearest")
def warp_batch(x: Tensor, op: ops.Warp) -> Tensor:
    size = int(op.height[0]), int(op.width[0])
    if (op.height != size[0]).any() or (op.width != size[1]).any():
        raise different_sizes()
    is_faster = works_together(op) and len(x) >= _SEVERAL and x[0, 0].numel() <= _SMALL
    if _as_image(x) and not is_faster:
        return _images_of(x, op, warp)
    if op.kind == "pil":  # quarter turns have exact matrices
        return pillow.affine(x, op.matrix, size, op.interpolation, op.fill or (0.0,))
    out = sample_grid(x, affine_grid(op.matrix, size, x), op.interpolation, op.fill)
    for k in np.flatnonzero(op.turns >= 0):
        out[k] = torch.rot90(x[k], int(op.turns[k]), (-2, -1))
    return out


@batch_form(ops.Perspective)
def perspective_batch(x: Tensor, op: ops.Perspective) -> Tensor:
    if _as_image(x):
        return _images_of(x, op, perspective)
    if op.kind == "pil":
        return pillow.perspective(x, op.coefficients, op.interpolation, op.fill or (0.0,))
    return sample_grid(x, perspective_grid(op.coefficients, x), op.interpolation, op.fill)


def _as_image(x: Tensor) -> bool:
    """Return whether the rows of a batch use the form for images: on the CPU, in types that numpy supports."""
    return x.device.type == "cpu" and x.dtype != torch.bfloat16


def _images_of(x: Tensor, op: Any, one: Form) -> Tensor:
    """Map [n, C, H, W] to [n, C, H', W'], image by image."""
    made = [array(one(hwc(image), op, i)) for i, image in enumerate(x)]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


# ---- torchvision's grids, for several images at once


def _working(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.float32


def _places(height: int, width: int, bounds: tuple[float, ...], dtype: torch.dtype, x: Tensor) -> Tensor:
    """Return [H, W, 3]: evenly spaced x from bounds[0] to [1], y from [2] to [3], and 1."""
    grid = torch.empty(height, width, 3, dtype=dtype, device=x.device)
    grid[..., 0] = torch.linspace(bounds[0], bounds[1], steps=width, device=x.device, dtype=dtype)
    grid[..., 1] = torch.linspace(bounds[2], bounds[3], steps=height, device=x.device, dtype=dtype)[:, None]
    grid[..., 2] = 1
    return grid


def _theta(numbers: Any, dtype: torch.dtype, x: Tensor) -> Tensor:
    """Reshape [n, 6] to [n, 3, 2]."""
    return on(np.asarray(numbers, np.float64).reshape(-1, 2, 3), x.device).to(dtype).transpose(1, 2)


def affine_grid(matrix: Any, size: tuple[int, int], x: Tensor) -> Tensor:
    # Output positions are in pixels from the center; theta maps them to input positions in units of half the sides, as
    # grid_sample expects.
    dtype, (oh, ow), (h, w) = _working(x), size, x.shape[-2:]
    bounds = ((1.0 - ow) * 0.5, (ow - 1.0) * 0.5, (1.0 - oh) * 0.5, (oh - 1.0) * 0.5)
    places = _places(oh, ow, bounds, torch.float32, x).to(dtype).view(1, oh * ow, 3)
    theta = _theta(matrix, dtype, x) / on(np.array([0.5 * w, 0.5 * h]), x.device).to(dtype)
    return _product(places.expand(len(theta), -1, -1), theta).view(-1, oh, ow, 2)


def _product(places: Tensor, theta: Tensor) -> Tensor:
    """Multiply [n, P, 3] by [n, 3, 2], giving [n, P, 2]."""
    if places.device.type == "cpu":
        return places.bmm(theta)
    # No matrix product: if a script allows TF32 for its model, positions would be off by a tenth of a pixel.
    x, y, one = (places[:, :, k, None] * theta[:, k, None] for k in range(3))
    return x.add_(y).add_(one)


def perspective_grid(coefficients: Any, x: Tensor) -> Tensor:
    dtype, (h, w) = _working(x), x.shape[-2:]
    c = np.asarray(coefficients, np.float64)
    places = _places(h, w, (0.5, w - 0.5, 0.5, h - 0.5), dtype, x).view(1, h * w, 3).expand(len(c), -1, -1)
    # A perspective map is a quotient of two affine maps, with the same denominator for x and y.
    above = _theta(c[:, :6], dtype, x) / on(np.array([0.5 * w, 0.5 * h]), x.device).to(dtype)
    below = _theta(np.tile(np.concatenate([c[:, 6:], np.ones((len(c), 1))], axis=1), (1, 2)), dtype, x)
    return _product(places, above).div_(_product(places, below)).sub_(1.0).view(-1, h, w, 2)


def sample_grid(x: Tensor, grid: Tensor, mode: str, fill: tuple[float, ...] | None) -> Tensor:
    """Sample [n, C, H, W] at grid [n, H', W', 2], like torchvision's ``_apply_grid_transform``.

    With a fill, a mask goes through the same interpolation, and the border is blended with it once more.
    """
    whole = x.dtype != grid.dtype
    values = x.to(grid.dtype) if whole else x
    if fill is not None:
        values = torch.cat((values, torch.ones_like(values[:, :1])), dim=1)
    values = grid_sample(values, grid, mode=mode, padding_mode="zeros", align_corners=False)
    if fill is not None:
        values, mask = values[:, :-1], values[:, -1:]
        color = on(np.array(fill), x.device).to(values.dtype).view(1, -1, 1, 1)
        if mode == "nearest":
            values = torch.where(mask < 0.5, color, values)
        else:
            values = (values - color).mul_(mask).add_(color)
    return values.round_().to(x.dtype) if whole else values
