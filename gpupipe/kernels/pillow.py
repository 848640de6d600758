"""Pillow's ``Image.transform`` in torch, for uint8 batches on a GPU or of small images, with equal positions, filters
and truncation.

Pillow computes in float64, and affine maps with the nearest pixel in fixed point of 16 bits. The outside of the image
is filled; neighbors outside repeat the edge.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..transforms.ops.op import F64
from .device_random import on

Size = tuple[int, int]
Fill = tuple[float, ...]


def affine(x: Tensor, matrix: F64, size: Size, interpolation: str, fill: Fill) -> Tensor:
    """Map [n, C, H, W] uint8 to [n, C, *size].

    Args:
        matrix: f64[n, 6].
        interpolation: nearest, bilinear or bicubic.
    """
    if not interpolation.startswith("nearest"):
        a = on(matrix, x.device)[:, :, None, None]
        u, v = _centers(size, x.device)
        xs, ys = (a[:, k] * u + a[:, k + 1] * v + a[:, k + 2] for k in (0, 3))
        return _filtered(x, xs, ys, interpolation, fill)
    (columns, rows), scaled = _tables(matrix, size), (matrix[:, 1] == 0) & (matrix[:, 3] == 0)
    if scaled.all():
        return _nearest(x, on(columns, x.device)[:, None, :], on(rows, x.device)[:, :, None], fill)
    # Fixed point with 16 fractional bits, starting at the center of the first pixel.
    m = matrix
    fixed = [m[:, 0], m[:, 1], m[:, 2] + m[:, 0] * 0.5 + m[:, 1] * 0.5, m[:, 3], m[:, 4]]
    fixed.append(m[:, 5] + m[:, 3] * 0.5 + m[:, 4] * 0.5)
    f = on(np.floor(np.stack(fixed, axis=1) * 65536.0 + 0.5).astype(np.int64), x.device)[:, :, None, None]
    across = torch.arange(size[1], device=x.device)
    down = torch.arange(size[0], device=x.device)[:, None]
    xs, ys = (f[:, k] * across + f[:, k + 1] * down + f[:, k + 2] >> 16 for k in (0, 3))
    if scaled.any():
        flag = on(scaled, x.device)[:, None, None]
        xs = torch.where(flag, on(columns, x.device)[:, None, :], xs)
        ys = torch.where(flag, on(rows, x.device)[:, :, None], ys)
    return _nearest(x, xs, ys, fill)


def _tables(matrix: F64, size: Size) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the columns i64[n, width] and rows i64[n, height] that a map without rotation and shear reads, -1 for
    outside.

    Like Pillow, it adds the step repeatedly.
    """
    out = []
    for step, offset, count in ((matrix[:, 0], matrix[:, 2], size[1]), (matrix[:, 4], matrix[:, 5], size[0])):
        steps = np.repeat(step[:, None], count, axis=1)
        steps[:, :1] = (offset + step * 0.5)[:, None]
        at = np.cumsum(steps, axis=1)
        out.append(np.where(at < 0, -1, at).astype(np.int64))
    return out[0], out[1]


def perspective(x: Tensor, coefficients: F64, interpolation: str, fill: Fill) -> Tensor:
    """Map [n, C, H, W] uint8 to the same shape, with coefficients f64[n, 8]."""
    a = on(coefficients, x.device)[:, :, None, None]
    u, v = _centers((x.shape[-2], x.shape[-1]), x.device)
    below = a[:, 6] * u + a[:, 7] * v + 1
    xs, ys = ((a[:, k] * u + a[:, k + 1] * v + a[:, k + 2]) / below for k in (0, 3))
    if interpolation.startswith("nearest"):
        inside = (xs >= 0) & (xs < x.shape[-1]) & (ys >= 0) & (ys < x.shape[-2])
        xs, ys = (torch.where(inside, v, -1.0).to(torch.int64) for v in (xs, ys))
        return _nearest(x, xs, ys, fill)
    return _filtered(x, xs, ys, interpolation, fill)


def _centers(size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
    u, v = (torch.arange(n, dtype=torch.float64, device=device) + 0.5 for n in (size[1], size[0]))
    return u, v[:, None]


def _read(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """Return [n, C, H', W'], the pixels at i64[n, H', W'], repeating the edge outside."""
    n, channels, height, width = x.shape
    at = ys.clamp(0, height - 1) * width + xs.clamp(0, width - 1)
    flat = at.view(n, 1, -1).expand(-1, channels, -1)
    return x.reshape(n, channels, -1).gather(2, flat).view(n, channels, *at.shape[1:])


def _fill(values: Tensor, inside: Tensor, fill: Fill) -> Tensor:
    color = on(np.array(fill).astype(np.uint8), values.device).view(1, -1, 1, 1)
    return torch.where(inside[:, None], values, color)


def _nearest(x: Tensor, xs: Tensor, ys: Tensor, fill: Fill) -> Tensor:
    shape = torch.broadcast_shapes(xs.shape, ys.shape)  # type: ignore[no-untyped-call]
    xs, ys = xs.expand(shape), ys.expand(shape)
    inside = (xs >= 0) & (xs < x.shape[-1]) & (ys >= 0) & (ys < x.shape[-2])
    return _fill(_read(x, xs, ys), inside, fill)


def _filtered(x: Tensor, xs: Tensor, ys: Tensor, interpolation: str, fill: Fill) -> Tensor:
    inside = (xs >= 0) & (xs < x.shape[-1]) & (ys >= 0) & (ys < x.shape[-2])
    # Positions outside are filled later; any position inside keeps the numbers small.
    xs, ys = (torch.where(inside, at, 0.5) - 0.5 for at in (xs, ys))
    left, top = xs.floor(), ys.floor()
    dx, dy = (xs - left)[:, None], (ys - top)[:, None]
    left, top = left.to(torch.int64), top.to(torch.int64)

    def row(y: int, columns: range) -> list[Tensor]:
        return [_read(x, left + c, top + y).to(torch.float64) for c in columns]

    if interpolation == "bilinear":
        (a, b), (c, d) = (row(y, range(2)) for y in (0, 1))
        above = a + (b - a) * dx
        values = above + ((c + (d - c) * dx) - above) * dy
    else:
        rows = [_cubic(row(y, range(-1, 3)), dx) for y in range(-1, 3)]
        values = _cubic(rows, dy).clamp_(0, 255)
    return _fill(values.to(torch.uint8), inside, fill)


def _cubic(values: list[Tensor], t: Tensor) -> Tensor:
    """Interpolate between the second and the third of four values with the cubic of Pillow's ``Geometry.c``.

    Its parameter is -1, and the order of operations is Pillow's (R. Keys, *Cubic convolution interpolation for digital
    image processing*, 1981).
    """
    a, b, c, d = values
    return b + t * ((c - a) + t * ((2 * (a - b) + c - d) + t * (((b - a) - c) + d)))
