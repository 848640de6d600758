"""The table of functions: the ops by which an engine does the same as a call of a library.

Each function takes the size (height, width) of the image and the arguments of the call, and returns moves, or ``None``
for arguments that no op stands for. The library itself then does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import numpy as np
import torch
from PIL import Image, ImageFilter

from ..kernels.picture import PIL_FILTERS
from ..transforms import ops
from ..transforms.matrices import affine_warp, rotation_warp
from ..transforms.ops.op import Kind
from ..transforms.transform import Images
from .steps import Move

Size = tuple[int, int]
Moves = tuple[Move, ...]
P = ParamSpec("P")

_FILTERS = {filter: name for name, filter in PIL_FILTERS.items() if name != "nearest-exact"}
_ON = np.ones(1, np.bool_)
_FLIPS = {Image.Transpose.FLIP_LEFT_RIGHT: "horizontal", Image.Transpose.FLIP_TOP_BOTTOM: "vertical"}
_QUARTERS = {Image.Transpose.ROTATE_90: 1, Image.Transpose.ROTATE_180: 2, Image.Transpose.ROTATE_270: 3}
_TURNED: dict[int, tuple[Any, ...]] = {1: (0, -1, "w", 1, 0, 0), 2: (-1, 0, "w", 0, -1, "h"), 3: (0, 1, 0, -1, 0, "h")}


def found(row: Callable[P, Moves | None], *args: P.args, **kwargs: P.kwargs) -> Moves | None:
    """Return what a row says; ``None`` for arguments that it cannot read, of which the library knows what to say."""
    try:
        return row(*args, **kwargs)
    except Exception:
        return None


def whole(*values: Any) -> bool:
    return all(isinstance(value, (int, np.integer)) for value in values)


def _color(fill: Any) -> tuple[float, ...] | None:
    """Return a fill color of Pillow's as ops have it. One number means shades of red in RGB, so only zero is known."""
    if fill is None or (isinstance(fill, int) and fill == 0):
        return (0.0,)
    known = isinstance(fill, (tuple, list)) and len(fill) in (1, 3) and whole(*fill) and min(fill) >= 0
    return tuple(map(float, fill)) if known else None


def of_op(op: ops.Op, size: Size) -> Moves:
    """Return an op of one row as a move."""
    numbers = {
        name: tuple(values[0].tolist()) if values.ndim > 1 else values[0].item()
        for name, values in op.numbers().items()
        if name != "mask"
    }
    to: Any = (numbers["height"], numbers["width"]) if "height" in numbers else size
    # A window within the image has no settings; see cropped().
    settings = {} if isinstance(op, ops.Crop) and not op.padded else op.settings()
    return (Move(type(op), tuple(numbers.items()), tuple(settings.items()), to),)


# ---- moving pixels


def cropped(size: Size, top: int, left: int, height: int, width: int, **settings: Any) -> Moves | None:
    """A window, which may exceed the image."""
    if height < 1 or width < 1:
        return None
    if (top, left, height, width) == (0, 0, *size):
        return ()
    padded = top < 0 or left < 0 or top + height > size[0] or left + width > size[1]
    numbers = (("top", top), ("left", left), ("height", height), ("width", width))
    known = (("padded", padded), *settings.items()) if padded else ()
    return (Move(ops.Crop, numbers, known, (height, width)),)


def resized(
    size: Size, height: int, width: int, how: str, *, kind: Kind = "pil", antialias: bool = True
) -> Moves | None:
    """A resize by an interpolation of torchvision's name."""
    if (height, width) == size:
        return ()
    settings = (("interpolation", how), ("antialias", antialias), ("kind", kind))
    return (Move(ops.Resize, (("height", height), ("width", width)), settings, (height, width)),)


def flipped(size: Size, axis: str) -> Moves:
    return (Move(ops.Flip, (), (("axis", axis),), size),)


def crop(size: Size, box: Any = None) -> Moves | None:
    """``Image.crop``"""
    if box is None:
        return ()
    if not isinstance(box, (tuple, list)):
        return None
    left, top, right, bottom = map(round, box)  # as Pillow does
    return cropped(size, int(top), int(left), int(bottom - top), int(right - left))


def resize(size: Size, to: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Moves | None:
    """``Image.resize``, whose default for RGB and L is bicubic."""
    width, height = to
    how = _FILTERS.get(Image.Resampling.BICUBIC if resample is None else resample)
    known = how is not None and box is None and reducing_gap is None and whole(width, height) and min(width, height) > 0
    return resized(size, int(height), int(width), str(how)) if known else None


def transpose(size: Size, method: Any) -> Moves | None:
    """``Image.transpose``"""
    if method in _FLIPS:
        return flipped(size, _FLIPS[method])
    turns = _QUARTERS.get(method)
    if turns is None:
        return None
    height, width = size[::-1] if turns % 2 else size
    of = {"h": size[0], "w": size[1]}
    matrix = tuple(float(of.get(value, value)) for value in _TURNED[turns])
    return _warped(size, matrix, (height, width), turns, "nearest", (0.0,))


def _warped(
    size: Size,
    matrix: tuple[float, ...],
    to: Size,
    turns: int,
    how: str,
    fill: tuple[float, ...] | None,
    kind: Kind = "pil",
) -> Moves:
    numbers = (("matrix", matrix), ("height", to[0]), ("width", to[1]), ("source", size), ("turns", turns))
    return (Move(ops.Warp, numbers, (("interpolation", how), ("fill", fill), ("kind", kind)), to),)


def transform(
    size: Size, to: Any, method: Any, data: Any = None, resample: Any = 0, fill: Any = 1, fillcolor: Any = None
) -> Moves | None:
    """``Image.transform``, which ``Image.rotate`` calls too. Without a color the outside is black."""
    how, color = _FILTERS.get(resample), _color(fillcolor)
    if how not in ("nearest", "bilinear", "bicubic") or color is None or not whole(*to) or min(to) < 1 or not fill:
        return None
    numbers = tuple(map(float, data))
    if method == Image.Transform.AFFINE:
        return _warped(size, numbers[:6], (int(to[1]), int(to[0])), -1, how, color)
    if method != Image.Transform.PERSPECTIVE or tuple(to) != size[::-1]:
        return None
    settings = (("interpolation", how), ("fill", color))
    return (Move(ops.Perspective, (("coefficients", numbers[:8]),), settings, size),)


def expand(size: Size, border: Any = 0, fill: Any = 0) -> Moves | None:
    """``ImageOps.expand``"""
    sides = tuple(border) if isinstance(border, (tuple, list)) else (border,)
    color = _color(fill)
    if len(sides) not in (1, 2, 4) or not whole(*sides) or min(sides) < 0 or color is None:
        return None
    left, top, right, bottom = map(int, sides * (4 // len(sides)))
    return cropped(size, -top, -left, top + size[0] + bottom, left + size[1] + right, fill=color)


def pad(
    size: Size, padding: Any, fill: Any = 0, padding_mode: str = "constant", *, floats: bool = False
) -> Moves | None:
    """torchvision's ``pad``. Negative numbers crop."""
    sides = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,)
    if len(sides) not in (1, 2, 4) or not whole(*sides):
        return None
    left, top, right, bottom = map(int, sides * (4 // len(sides)))
    if padding_mode != "constant" and min(left, top, right, bottom) < 0:
        return None
    values = tuple(fill) if isinstance(fill, (tuple, list)) else (0 if fill is None else fill,)
    if len(values) not in (1, 3) or padding_mode not in ("constant", "edge", "reflect", "symmetric"):
        return None
    # torchvision truncates colors of images of bytes.
    color = tuple(float(value if floats else int(value)) for value in values)
    return cropped(size, -top, -left, top + size[0] + bottom, left + size[1] + right, fill=color, mode=padding_mode)


# ---- colors


def _one(op: type[ops.Op], size: Size, kind: Kind | None = None, **numbers: Any) -> Moves:
    """Return an op that keeps the size."""
    return (Move(op, tuple(numbers.items()), () if kind is None else (("kind", kind),), size),)


def gray(size: Size, kind: Kind = "pil") -> Moves:
    """``Image.convert("L")``, and torchvision's gray of tensors, in three equal channels."""
    return (Move(ops.Gray, (), (("channels", 3), ("kind", kind)), size),)


ADJUSTED: dict[str, type[ops.Op]] = {
    "Brightness": ops.Brightness,
    "Color": ops.Saturation,
    "Contrast": ops.Contrast,
    "Sharpness": ops.Sharpness,
}


def adjusted(size: Size, name: str, factor: Any, kind: Kind = "pil") -> Moves | None:
    """``ImageEnhance``, by the name of its class."""
    return _one(ADJUSTED[name], size, kind, factor=float(factor))


def adjust_hue(size: Size, hue_factor: Any, kind: Kind = "pil") -> Moves | None:
    """torchvision's ``adjust_hue``"""
    return _one(ops.Hue, size, kind, factor=float(hue_factor)) if -0.5 <= hue_factor <= 0.5 else None


def filter(size: Size, filter: Any) -> Moves | None:
    """``Image.filter`` with a Gaussian blur"""
    found = filter() if isinstance(filter, type) else filter
    if type(found) is not ImageFilter.GaussianBlur or not isinstance(found.radius, (int, float)):
        return None
    return _one(ops.BoxBlur, size, radius=float(found.radius))


def permuted(size: Size, permutation: Any) -> Moves | None:
    """torchvision's ``permute_channels`` of three channels"""
    order = tuple(map(int, permutation))
    return _one(ops.ChannelPermutation, size, permutation=order) if sorted(order) == [0, 1, 2] else None


def posterize(size: Size, bits: Any) -> Moves | None:
    """``ImageOps.posterize``"""
    return _one(ops.Posterize, size, bits=int(bits)) if whole(bits) and 1 <= bits <= 8 else None


def solarize(size: Size, threshold: Any = 128) -> Moves | None:
    """``ImageOps.solarize``"""
    return _one(ops.Solarize, size, threshold=float(threshold))


def invert(size: Size) -> Moves:
    """``ImageOps.invert``"""
    return _one(ops.Invert, size)


def autocontrast(
    size: Size,
    cutoff: Any = 0,
    ignore: Any = None,
    mask: Any = None,
    preserve_tone: bool = False,
    *,
    kind: Kind = "pil",
) -> Moves | None:
    """``ImageOps.autocontrast``"""
    known = cutoff == 0 and ignore is None and mask is None and not preserve_tone
    return _one(ops.AutoContrast, size, kind) if known else None


def equalize(size: Size, mask: Any = None, *, kind: Kind = "pil") -> Moves | None:
    """``ImageOps.equalize``"""
    return _one(ops.Equalize, size, kind) if mask is None else None


def to_grayscale(size: Size, num_output_channels: Any = 1) -> Moves | None:
    """torchvision's ``to_grayscale`` of PIL images to three channels"""
    return gray(size) if num_output_channels == 3 else None


def gaussian_blur(size: Size, kernel_size: Any, sigma: Any = None, kind: Kind = "pil") -> Moves | None:
    """torchvision's ``gaussian_blur``"""
    sizes = [kernel_size] * 2 if isinstance(kernel_size, int) else list(kernel_size) * (3 - len(kernel_size))
    if sigma is None:
        return None
    sigmas = [sigma] if isinstance(sigma, (int, float)) else list(sigma)
    known = len(sizes) == 2 and all(n > 0 and n % 2 for n in sizes) and len({*sigmas}) == 1 and sigmas[0] > 0
    settings = (("kernel_size", tuple(map(int, sizes))), ("kind", kind))
    return (Move(ops.Blur, (("sigma", float(sigmas[0])),), settings, size),) if known else None


# ---- tensors


def _images(size: Size) -> Images:
    return Images(np.array([size], np.int64), kind="tensor")


def _tensor_fill(fill: Any) -> tuple[float, ...] | None:
    """Return torchvision's fill of tensors as ops have it, where ``None`` differs from zero."""
    if fill is None:
        return None
    values = fill if isinstance(fill, (tuple, list)) else (fill,)
    return tuple(float(value) for value in values)


def _how(interpolation: Any) -> str:
    how = getattr(interpolation, "value", interpolation)
    if how not in ("nearest", "bilinear"):
        raise ValueError(how)
    return str(how)


def affine_image(
    size: Size, angle: Any, translate: Any, scale: Any, shear: Any, interpolation: Any = "nearest", fill: Any = None,
    center: Any = None,
) -> Moves | None:  # fmt: skip
    """v2's ``affine_image``"""
    given = tuple(map(float, shear)) if isinstance(shear, (tuple, list)) else (float(shear), 0.0)
    sheared = given[0], given[-1]
    op = affine_warp(
        _images(size), _ON, angle=float(angle), scale=float(scale),
        translate=(float(translate[0]), float(translate[1])),
        shear=sheared, center=None if center is None else tuple(center), interpolation=_how(interpolation),
        fill=_tensor_fill(fill),
    )  # fmt: skip
    return of_op(op, size)


def rotate_image(
    size: Size, angle: Any, interpolation: Any = "nearest", expand: bool = False, center: Any = None, fill: Any = None
) -> Moves | None:
    """v2's ``rotate_image``"""
    op = rotation_warp(
        _images(size), _ON, angle=float(angle), expand=bool(expand), center=None if center is None else tuple(center),
        interpolation=_how(interpolation), fill=_tensor_fill(fill),
    )  # fmt: skip
    return of_op(op, size)


def perspective_image(
    size: Size, startpoints: Any, endpoints: Any, interpolation: Any = "bilinear", fill: Any = None,
    coefficients: Any = None,
) -> Moves | None:  # fmt: skip
    """v2's ``perspective_image`` with given coefficients"""
    if coefficients is None or startpoints is not None:
        return None
    settings = (("interpolation", _how(interpolation)), ("fill", _tensor_fill(fill)), ("kind", "tensor"))
    return (Move(ops.Perspective, (("coefficients", tuple(map(float, coefficients))),), settings, size),)


def affine(size: Size, matrix: Any, interpolation: Any = "nearest", fill: Any = None) -> Moves | None:
    """v1's ``affine`` of tensors, with the matrix of a map between positions relative to the center"""
    matrix = tuple(map(float, matrix))
    return _warped(size, matrix, size, -1, _how(interpolation), _tensor_fill(fill), "tensor")


def perspective(size: Size, coefficients: Any, interpolation: Any = "bilinear", fill: Any = None) -> Moves | None:
    """v1's ``perspective`` of tensors"""
    return perspective_image(size, None, None, interpolation, fill, coefficients)


def resize_image(
    size: Size, to: Any, interpolation: Any = "bilinear", max_size: Any = None, antialias: Any = True
) -> Moves | None:
    """``resize_image`` of v2, and v1's function of tensors, with both edges given"""
    how = getattr(interpolation, "value", interpolation)
    known = len(to) == 2 and max_size is None and how in ("nearest", "nearest-exact", "bilinear", "bicubic")
    if not known or antialias not in (True, False):
        return None
    return resized(size, int(to[0]), int(to[1]), how, kind="tensor", antialias=antialias)


def erase(size: Size, i: Any, j: Any, h: Any, w: Any, v: Any, inplace: bool = False) -> Moves | None:
    """torchvision's ``erase`` with one color"""
    value = torch.as_tensor(v)
    if inplace or value.numel() not in (1, 3) or value.numel() != max(1, *value.shape[:1]):
        return None
    numbers = (("top", int(i)), ("left", int(j)), ("height", int(h)), ("width", int(w)), ("seed", 0))
    return (Move(ops.Erase, numbers, (("value", tuple(map(float, value.flatten().tolist()))),), size),)


def to_dtype(size: Size, dtype: torch.dtype, *, scale: bool, kind: Kind) -> Moves:
    settings = (("dtype", str(dtype).removeprefix("torch.")), ("scale", scale), ("kind", kind))
    return (Move(ops.ToDtype, (), settings, size),)


def normalize(size: Size, mean: Any, std: Any, inplace: bool = False) -> Moves | None:
    """torchvision's ``normalize`` of three channels"""
    means, stds = (tuple(float(value) for value in values) for values in (mean, std))
    if len(means) not in (1, 3) or len(stds) not in (1, 3) or 0.0 in stds:
        return None
    return (Move(ops.Normalize, (), (("mean", means), ("std", stds)), size),)


def arranged(moves: Sequence[Move]) -> tuple[Move, ...]:
    """Return moves with a first crop before changes of color of single pixels, so that only its window is decoded."""
    first = next((n for n, move in enumerate(moves) if move.op is not ops.Gray), len(moves))
    if 0 < first < len(moves) and moves[first].op is ops.Crop and not moves[first].settings:
        return moves[first], *moves[:first], *moves[first + 1 :]
    return tuple(moves)
