"""Matrices of affine maps for a whole batch, computed as in torchvision, and the ops that carry them.

Trigonometric functions are libm's, one number at a time. Pillow and torchvision use libm too; numpy's functions differ
in the last bit on some processors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .ops import Kind, Warp
from .ops.op import F64, I32, I64, Mask
from .transform import Images

Center = tuple[float, float] | None
Fill = tuple[float, ...] | None


def _each(function: Callable[[float], float], values: F64) -> F64:
    return np.array([function(v) for v in values.tolist()], np.float64)


def _centers(center: Center, sizes: I64, kind: Kind) -> tuple[F64, F64]:
    """Return (x, y), each f64[B], of the fixed point: from the upper left corner for PIL images, from the center for
    tensors."""
    half_h, half_w = (sizes * 0.5).astype(np.float64).T
    if kind == "tensor":
        return (half_w * 0, half_h * 0) if center is None else (center[0] - half_w, center[1] - half_h)
    return (half_w, half_h) if center is None else (half_w * 0 + center[0], half_h * 0 + center[1])


def affine_matrix(angle: F64, translate: F64, scale: F64, shear: F64, center: Center, sizes: I64, kind: Kind) -> F64:
    """Return matrices that map output positions to input positions: rotation, shear, scale, then translation.

    The formula and its order of operations are those of torchvision's ``_get_inverse_affine_matrix``.

    Args:
        angle: f64[B], degrees clockwise.
        translate: [B, 2], pixels to the right and down.
        scale: f64[B].
        shear: f64[B, 2], degrees along x and y.
        center: (x, y) of the fixed point in pixels from the upper left corner, or ``None`` for the center of the image.
        sizes: i64[B, 2], height and width of the images.
        kind: ``"pil"`` measures positions from the upper left corner, as ``Image.transform`` does; ``"tensor"`` from
            the center of the image, as torchvision's grid does.

    Returns:
        f64[B, 6]: ``x_in = m[0] x + m[1] y + m[2]``, ``y_in = m[3] x + m[4] y + m[5]``.
    """
    # Points map by T(center + shift) · R(rotation) · shear along y and x · scale · T(-center). Pixels are looked up in
    # the opposite direction, so we need the inverse. The inverse of the linear part is [d, -b; -c, a] / scale, because
    # its determinant without the scale is 1. The offset follows from the position that maps to the center.
    rot, sx, sy = (_each(math.radians, v) for v in (angle, shear[:, 0], shear[:, 1]))
    cx, cy = _centers(center, sizes, kind)
    tx, ty = cx + translate[:, 0], cy + translate[:, 1]
    cos_sy, tan_sx = _each(math.cos, sy), _each(math.tan, sx)
    a = _each(math.cos, rot - sy) / cos_sy
    b = -(a * tan_sx + _each(math.sin, rot))
    c = _each(math.sin, rot - sy) / cos_sy
    d = _each(math.cos, rot) - c * tan_sx
    m0, m1, m3, m4 = d / scale, -b / scale, -c / scale, a / scale
    return np.stack([m0, m1, cx - m0 * tx - m1 * ty, m3, m4, cy - m3 * tx - m4 * ty], axis=1)


def rotation_matrix(angle: F64, expand: bool, center: Center, sizes: I64, kind: Kind) -> tuple[F64, I64, I32]:
    """Return matrices of rotations: as ``Image.rotate`` for PIL images, as torchvision's ``rotate`` for tensors.

    Args:
        angle: f64[B], degrees anticlockwise.
        expand: whether to enlarge the output so that it holds the whole rotated image.
        center, sizes, kind: as in :func:`affine_matrix`.

    Returns:
        Matrices f64[B, 6] as in :func:`affine_matrix`, i64[B, 2] height and width of the output, and i32[B] ``turns``
        as in :class:`~gpupipe.transforms.ops.Warp`.
    """
    # Both libraries reduce the angle before they look for quarter turns.
    angle = angle % 360.0
    h, w = sizes[:, 0], sizes[:, 1]
    turns = np.full(len(angle), -1, np.int32)
    if center is None:
        # torchvision does not interpolate half turns, nor other quarter turns if the turned image fits.
        upright = expand | (h == w)
        for k in range(4):
            turns[(angle == 90 * k) & (upright if k % 2 else True)] = k
    if kind == "pil":
        matrix, out = _pillow_rotation(angle, expand, center, sizes)
    else:
        zero = np.zeros((len(angle), 2))
        # affine_matrix() turns clockwise.
        matrix = affine_matrix(-angle, zero, np.ones(len(angle)), zero, center, sizes, kind)
        out = _torch_expanded(matrix, sizes) if expand else sizes
    return _quarters(matrix, out, turns, sizes, kind)


def _pillow_rotation(angle: F64, expand: bool, center: Center, sizes: I64) -> tuple[F64, I64]:
    h, w = sizes.astype(np.float64).T
    cx, cy = _centers(center, sizes, "pil")
    radians = -_each(math.radians, angle)
    # Pillow rounds to 15 digits, so that matrices of quarter turns contain exact zeros.
    cos, sin = (np.array([round(f(r), 15) for r in radians.tolist()]) for f in (math.cos, math.sin))
    a, b, d, e = cos, sin, -sin, cos

    def places(x: F64, y: F64, c: F64, f: F64) -> tuple[F64, F64]:
        return a * x + b * y + c, d * x + e * y + f

    zero = np.zeros(len(angle))
    # Keep the center fixed by subtracting its rotated position, first for the image, then for the larger canvas.
    c, f = places(-cx, -cy, zero, zero)
    c, f = c + cx, f + cy
    if expand:
        corners = [places(x, y, c, f) for x, y in ((zero, zero), (w, zero), (w, h), (zero, h))]
        xs, ys = (np.stack(values) for values in zip(*corners, strict=True))
        new_w, new_h = (np.ceil(v.max(axis=0)) - np.floor(v.min(axis=0)) for v in (xs, ys))
        c, f = places(-(new_w - w) / 2.0, -(new_h - h) / 2.0, c, f)
        sizes = np.stack([new_h, new_w], axis=1).astype(np.int64)
    return np.stack([a, b, c, d, e, f], axis=1), sizes


def _torch_expanded(matrix: F64, sizes: I64) -> I64:
    """Return the size of a rotated tensor as torchvision computes it, in float32 with a tolerance of 1e-4 pixels."""
    m = matrix.astype(np.float32)
    half = sizes[:, ::-1].astype(np.float32) * np.float32(0.5)
    size = []
    for axis in (1, 0):  # height, then width
        a, b, c = (m[:, 3 * axis + k] for k in range(3))
        at = np.stack([x * half[:, 0] * a + y * half[:, 1] * b + c for x in (-1, 1) for y in (-1, 1)])
        high, low = at.max(axis=0) + half[:, axis], at.min(axis=0) + half[:, axis]
        steps, step = np.float32(1e4), np.float32(1e-4)
        size.append(np.ceil(np.trunc(high * steps) * step) - np.floor(np.trunc(low * steps) * step))
    return np.stack(size, axis=1).astype(np.int64)


def _quarters(matrix: F64, out: I64, turns: I32, sizes: I64, kind: Kind) -> tuple[F64, I64, I32]:
    """Replace matrices and sizes of quarter turns by exact ones; Pillow and torchvision transpose the pixels."""
    h, w = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    zero, one = np.zeros(len(h)), np.ones(len(h))
    # x_in and y_in for turns by 0, 90, 180 and 270 degrees anticlockwise
    exact = np.array([[one, zero, zero, zero, one, zero], [zero, -one, w, one, zero, zero],
                      [-one, zero, w, zero, -one, h], [zero, one, zero, -one, zero, h]])  # fmt: skip
    if kind == "tensor":
        exact[:, 2::3] = 0  # from the center
    turned = turns >= 0
    rows = np.arange(len(turns))
    # -1, for no quarter turn, is no index and also odd. Rows with it keep their values.
    matrix = np.where(turned[:, None], exact[np.maximum(turns, 0), :, rows], matrix)
    swapped = np.where((turns % 2 == 1)[:, None], sizes[:, ::-1], sizes)
    return matrix, np.where(turned[:, None], swapped, out), turns


def affine_warp(
    images: Images, mask: Mask, *, angle: F64 | float = 0.0, translate: F64 | tuple[float, float] = (0.0, 0.0),
    scale: F64 | float = 1.0, shear: F64 | tuple[float, float] = (0.0, 0.0), center: Center = None,
    interpolation: str = "nearest", fill: Fill = (0.0,), always: bool = False,
) -> Warp:  # fmt: skip
    """Return torchvision's ``affine`` as an op.

    Arguments are those of :func:`affine_matrix`, given once or per sample. As in torchvision, ``fill=None`` differs
    from zero on tensors: the border is blended once and not twice.
    """
    n = len(images.sizes)
    matrix = affine_matrix(
        np.broadcast_to(np.asarray(angle, np.float64), n), np.broadcast_to(np.asarray(translate, np.float64), (n, 2)),
        np.broadcast_to(np.asarray(scale, np.float64), n), np.broadcast_to(np.asarray(shear, np.float64), (n, 2)),
        center, images.sizes, images.kind,
    )  # fmt: skip
    return _warp(images, mask, matrix, images.sizes, np.full(n, -1, np.int32), interpolation, fill, always)


def rotation_warp(
    images: Images, mask: Mask, *, angle: F64 | float, expand: bool = False, center: Center = None,
    interpolation: str = "nearest", fill: Fill = (0.0,), always: bool = False,
) -> Warp:  # fmt: skip
    """Return torchvision's ``rotate`` as an op, with the arguments of :func:`rotation_matrix` and
    :func:`affine_warp`."""
    angle = np.broadcast_to(np.asarray(angle, np.float64), len(images.sizes))
    matrix, out, turns = rotation_matrix(angle, expand, center, images.sizes, images.kind)
    if expand:
        # An image that passes keeps its size.
        out = np.where(mask[:, None], out, images.sizes)
    return _warp(images, mask, matrix, out, turns, interpolation, fill, always)


def _warp(
    images: Images, mask: Mask, matrix: F64, out: I64, turns: I32, interpolation: str, fill: Fill, always: bool
) -> Warp:
    return Warp(
        mask,
        matrix,
        out[:, 0].astype(np.int32),
        out[:, 1].astype(np.int32),
        images.sizes.astype(np.int32),
        turns,
        interpolation=interpolation,
        fill=fill,
        kind=images.kind,
        always=always,
    )
