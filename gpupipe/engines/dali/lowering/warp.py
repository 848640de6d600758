"""Affine maps and perspective.

On the CPU ``warp_perspective`` does both: with float images it is as exact as ``warp_affine``, and a third faster. On a
GPU it uses another library, so affine maps use ``warp_affine`` there.

Pillow checks whether a position lies inside the image, fills it if not, takes neighbors from the edge, and truncates.
This is reproduced by the image with its edge repeated, half a level less and rounded, under a mask that is the same map
with nearest pixels of a white image. Torch blends with black outside, and then with the fill by a mask that was blended
in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....transforms import ops
from ....transforms.ops.op import Array
from ..api import fn, types
from .canvas import Selected
from .color import CUT_OFF
from .geometry import size_of
from .registry import lowering


def _is_another_filter(op: ops.Warp | ops.Perspective) -> bool:
    return op.interpolation not in ("nearest", "nearest-exact", "bilinear")


@lowering(ops.Warp, far=True, unless=_is_another_filter)
def warp(drawn: Selected, op: ops.Warp) -> Any:
    return _mapped(drawn, op, _affine_matrix, affine=True)


@lowering(ops.Perspective, far=True, unless=_is_another_filter)
def perspective(drawn: Selected, op: ops.Perspective) -> Any:
    return _mapped(drawn, op, _perspective_matrix, affine=False)


def _affine_matrix(op: ops.Warp) -> Array:
    """f32[B, 3, 3] from the corner of the output to that of the input."""
    m = op.matrix.reshape(-1, 2, 3).copy()
    if op.kind == "tensor":
        # From the middle of the images to their corners, on both sides.
        middle = np.stack([op.width, op.height, np.zeros(len(m))], axis=1)[:, :, None] * 0.5
        m[:, :, 2] += op.source[:, ::-1] * 0.5 - (m @ middle)[:, :, 0]
    elif op.interpolation.startswith("nearest"):
        # Pillow's fixed point of 16 bits; half a step more, so that whole numbers do not become the number before
        turned = (m[:, 0, 1] != 0) | (m[:, 1, 0] != 0)
        fixed = np.floor(m * 65536 + 0.5) / 65536
        first = np.floor((m[:, :, 2] + m[:, :, :2].sum(axis=2) * 0.5) * 65536 + 0.5) / 65536
        fixed[:, :, 2] = first - fixed[:, :, :2].sum(axis=2) * 0.5 + 0.5 / 65536
        m = np.where(turned[:, None, None], fixed, m)
    return _square(m)


def _perspective_matrix(op: ops.Perspective) -> Array:
    rows = np.concatenate([op.coefficients, np.ones((len(op.coefficients), 1))], axis=1)
    return rows.reshape(-1, 3, 3).astype(np.float32)


def _square(m: Array) -> Array:
    last = np.broadcast_to(np.array([0.0, 0.0, 1.0]), (len(m), 1, 3))
    return np.concatenate([m, last], axis=1).astype(np.float32)


def _mapped(drawn: Selected, op: Any, matrix: Callable[[Any], Array], *, affine: bool) -> Any:
    nearest = op.interpolation != "bilinear"
    canvas, image = drawn.canvas, drawn.image
    use_affine = affine and canvas.device == "gpu"
    read = (lambda op: matrix(op)[:, :2]) if use_affine else matrix
    maps = drawn.number("matrix", types.FLOAT, 2, read)
    # A perspective map keeps the size.
    size: dict[str, Any] = {}
    if affine:
        size["size"] = drawn.number("size", types.FLOAT, 1, size_of)

    def mapped(x: Any, *, filled: bool, nearest: bool) -> Any:
        kind = types.INTERP_NN if nearest else types.INTERP_LINEAR
        options: dict[str, Any] = {"matrix": maps, "interp_type": kind, **size}
        if use_affine:
            return fn.warp_affine(x, **options, **({"fill_value": 0.0} if filled else {}))  # type: ignore[call-overload]
        options |= {"border_mode": "constant", "fill_value": [0.0]} if filled else {"border_mode": "replicate"}
        return fn.experimental.warp_perspective(x, pixel_origin="corner", **options)

    whole = canvas.dtype == "uint8"
    fill = _fill(drawn, op, whole)
    # One channel of the same size, at the highest value: mapped, it shows what lies inside.
    white = fn.reshape(fn.slice(image, start=[0], shape=[1], axes=[2]), layout="HWC")
    white = white | np.uint8(255) if whole else white * np.float32(0) + np.float32(1)
    if nearest:
        out = mapped(image, filled=True, nearest=True)
        if fill is not None:
            # Nearest pixels of white are 0 or 255, so bit operations select.
            inside = mapped(white, filled=True, nearest=True)
            out = out + ((inside ^ np.uint8(255)) & fill if whole else (np.float32(1) - inside) * fill)
    elif op.kind == "pil":
        out = mapped(fn.cast(image, dtype=types.FLOAT), filled=False, nearest=False)
        out = fn.brightness_contrast(out, brightness_shift=CUT_OFF / 255, dtype=types.UINT8)
        inside = mapped(white, filled=True, nearest=True)
        out = out & inside
        if fill is not None:
            out = out + ((inside ^ np.uint8(255)) & fill)
    else:
        out = mapped(fn.cast(image, dtype=types.FLOAT) if whole else image, filled=True, nearest=False)
        if op.fill is not None:
            share = mapped(fn.cast(white, dtype=types.FLOAT) if whole else white, filled=True, nearest=False)
            share = share * np.float32(1 / 255) if whole else share
            # torchvision's out * share + fill * (1 - share).
            out = out * share if fill is None else (out - fill) * share + fill
        out = fn.cast(out, dtype=types.UINT8) if whole else out
    return fn.reshape(out, layout="HWC")


def _fill(drawn: Selected, op: Any, whole: bool) -> Any:
    """Return the fill of the outside, in the type in which it is added; ``None`` if it is zero."""
    values = op.fill or (0.0,)
    bits = whole and (op.kind == "pil" or op.interpolation != "bilinear")  # inserted by bit operations
    kind, name = (np.uint8, types.UINT8) if bits else (np.float32, types.FLOAT)
    numbers = np.array(values).astype(kind)
    if not numbers.any():
        return None
    if len(numbers) == 1:
        return kind(numbers[0])
    return drawn.beside(drawn.number("fill", name, 3, lambda op: np.tile(numbers, (len(op.mask), 1, 1, 1))))
