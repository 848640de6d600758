"""Operations on images that a script's own code calls with numbers: methods of Pillow, and functions of torchvision.

``image.crop(box)`` and ``functional.hflip(image)`` return pending results while a script's dataset runs. An engine does
these operations later, with the numbers that the code has chosen. torchvision's functions of PIL images call Pillow's
methods, so recording these records both. Resizing to the nearest pixel is never recorded: it is what code does to
masks, whose values it needs at once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from .. import transforms as ours
from ..transforms import ops
from ..transforms.matrices import rotation_warp
from ..transforms.numbers import i32
from ..transforms.ops import Op
from ..transforms.transform import Images
from .noting import written, written_as
from .pending import PendingTensor
from .replaced import is_foreign
from .swapping import Maker, Swapped

_here = threading.local()
_ON = np.ones(1, np.bool_)
_FILTERS = {
    Image.Resampling.BILINEAR: "bilinear",
    Image.Resampling.BICUBIC: "bicubic",
    Image.Resampling.LANCZOS: "lanczos",
}
_FLIPS: dict[Any, Literal["horizontal", "vertical"]] = {
    Image.Transpose.FLIP_LEFT_RIGHT: "horizontal",
    Image.Transpose.FLIP_TOP_BOTTOM: "vertical",
}
_QUARTERS = {Image.Transpose.ROTATE_90: 90.0, Image.Transpose.ROTATE_180: 180.0, Image.Transpose.ROTATE_270: 270.0}


@contextmanager
def recording_calls() -> Iterator[None]:
    """Context in which this thread gets pending results of the operations. In other threads they run as usual."""
    outer, _here.on = getattr(_here, "on", False), True
    with _CALLS.within():
        try:
            yield
        finally:
            _here.on = outer


def _is_here() -> bool:
    return getattr(_here, "on", False)


# ---- methods of PIL images: each function returns the op of a call, or None if there is none


def _one(value: Any) -> Any:
    return i32(np.array([value]))


def _is_whole(*values: Any) -> bool:
    return all(isinstance(value, (int, np.integer)) for value in values)


def _crop(height: int, width: int, box: Any = None) -> Op | None:
    if box is None or len(box) != 4:
        return None
    left, top, right, bottom = map(round, box)  # as Pillow does
    if right <= left or bottom <= top:
        return None
    padded = left < 0 or top < 0 or right > width or bottom > height
    return ops.Crop(_one(top), _one(left), _one(bottom - top), _one(right - left), padded=padded)


def _resize(
    height: int, width: int, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None
) -> Op | None:
    # Bicubic is Pillow's default for RGB and L.
    how = _FILTERS.get(Image.Resampling.BICUBIC if resample is None else resample)
    if how is None or box is not None or reducing_gap is not None or len(size) != 2 or not _is_whole(*size):
        return None
    to_width, to_height = map(int, size)
    return ops.Resize(_one(to_height), _one(to_width), how) if min(to_width, to_height) > 0 else None


def _transpose(height: int, width: int, method: Any) -> Op | None:
    if method in _FLIPS:
        return ops.Flip(_ON, _FLIPS[method])
    return _rotated(height, width, _QUARTERS[method], True) if method in _QUARTERS else None


def _rotate(
    height: int,
    width: int,
    angle: float,
    resample: Any = Image.Resampling.NEAREST,
    expand: Any = 0,
    center: Any = None,
    translate: Any = None,
    fillcolor: Any = None,
) -> Op | None:
    if center is not None or translate:
        return None
    return _rotated(height, width, float(angle), bool(expand), resample, fillcolor)


def _rotated(
    height: int, width: int, angle: float, expand: bool, resample: Any = Image.Resampling.NEAREST, fillcolor: Any = None
) -> Op | None:
    nearest = {Image.Resampling.NEAREST: "nearest"}
    # Pillow rotates with the nearest pixel, bilinear or bicubic only.
    how = ({**_FILTERS, **nearest} if resample != Image.Resampling.LANCZOS else nearest).get(resample)
    fill = _color(fillcolor)
    if how is None or fill is None:
        return None
    images = Images(np.array([[height, width]], np.int64))
    return rotation_warp(images, _ON, angle=angle, expand=expand, interpolation=how, fill=fill)


def _filter(height: int, width: int, filter: Any) -> Op | None:
    kind = filter() if isinstance(filter, type) else filter
    if type(kind) is not ImageFilter.GaussianBlur or not isinstance(kind.radius, (int, float)):
        return None
    return ops.BoxBlur(_ON, np.array([float(kind.radius)]))


def _expand(height: int, width: int, border: Any = 0, fill: Any = 0) -> Op | None:
    sides = border if isinstance(border, tuple) else (border,)
    if len(sides) not in (1, 2, 4) or not _is_whole(*sides) or min(sides) < 0:
        return None
    left, top, right, bottom = sides * (4 // len(sides))
    color = _color(fill)
    if color is None:
        return None
    to_height, to_width = top + height + bottom, left + width + right
    return ops.Crop(_one(-top), _one(-left), _one(to_height), _one(to_width), padded=True, fill=color)


def _color(fill: Any) -> tuple[float, ...] | None:
    """Return a fill color as ops have it. One number means black and shades of red in RGB, so only zero is known."""
    if fill is None or fill == 0:
        return (0.0,)
    known = isinstance(fill, tuple) and len(fill) in (1, 3) and all(isinstance(v, (int, np.integer)) for v in fill)
    return tuple(map(float, fill)) if known else None


_METHODS: dict[str, Callable[..., Op | None]] = {
    "crop": _crop,
    "filter": _filter,
    "resize": _resize,
    "rotate": _rotate,
    "transpose": _transpose,
}


def _known(read: Callable[..., Op | None], *, keeps_info: bool) -> Callable[[Any], Any]:
    """Return what makes the replacement of a function whose first argument is an image."""

    def make(really: Any) -> Any:
        if is_foreign("", really):  # a function of the script has taken its place
            return really

        def call(image: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_here():
                made = written(
                    image,
                    lambda height, width: _tried(read, height, width, *args, **kwargs),
                    lambda value: really(value, *args, **kwargs),
                    keeps_info=keeps_info,
                )
                if made is not NotImplemented:
                    return made
            return really(image, *args, **kwargs)

        return call

    return make


def _tried(read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return ``None`` for arguments that nothing here understands. The function itself will say what it thinks."""
    try:
        return read(*args, **kwargs)
    except Exception:
        return None


# ---- enhancers

_ADJUSTED = {
    "Brightness": ops.Brightness,
    "Color": ops.Saturation,
    "Contrast": ops.Contrast,
    "Sharpness": ops.Sharpness,
}


def _enhancer(really: Any) -> Any:
    """Replace a class of ``ImageEnhance``, which computes a reduced image at once."""
    if not isinstance(really, type) or really.__module__ != "PIL.ImageEnhance":
        return really

    def enhancer(image: Any) -> Any:
        return _Enhancer(really, image) if _is_here() else really(image)

    return enhancer


class _Enhancer:
    """An enhancer that computes nothing until it has to."""

    def __init__(self, really: Any, image: Any):
        self._really, self.image = really, image

    def enhance(self, factor: float) -> Any:
        op = _ADJUSTED[self._really.__name__](mask=_ON, factor=np.array([float(factor)]))
        made = written(self.image, lambda height, width: op, lambda value: self._really(value).enhance(factor))
        return self._really(self.image).enhance(factor) if made is NotImplemented else made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._really(self.image), name)


# ---- functions of torchvision, which make tensors or change their values


def _fixed(read: Callable[..., ours.Transform | None]) -> Callable[[Any], Any]:
    """Return what makes the replacement of a function that stands for a transform without numbers."""

    def make(really: Any) -> Any:
        if is_foreign("", really):
            return really

        def call(image: Any, *args: Any, **kwargs: Any) -> Any:
            transform = _tried(read, image, *args, **kwargs) if _is_here() else None
            made = NotImplemented if transform is None else written_as(image, transform)
            return really(image, *args, **kwargs) if made is NotImplemented else made

        return call

    return make


def _to_tensor(image: Any) -> ours.Transform | None:
    return ours.ToTensor() if isinstance(image, Image.Image) else None


def _pil_to_tensor(image: Any) -> ours.Transform | None:
    return ours.PILToTensor() if isinstance(image, Image.Image) else None


def _convert_image_dtype(image: Any, dtype: torch.dtype = torch.float) -> ours.Transform | None:
    known = isinstance(image, PendingTensor) and dtype in (torch.float32, torch.float16, torch.bfloat16)
    return ours.ConvertImageDtype(dtype) if known else None


def _normalize(image: Any, mean: Any, std: Any, inplace: bool = False) -> ours.Transform | None:
    known = isinstance(image, PendingTensor) and not inplace and all(type(v) in (list, tuple) for v in (mean, std))
    return ours.Normalize(tuple(mean), tuple(std)) if known else None


_FUNCTIONS: dict[str, Callable[..., ours.Transform | None]] = {
    "convert_image_dtype": _convert_image_dtype,
    "normalize": _normalize,
    "pil_to_tensor": _pil_to_tensor,
    "to_tensor": _to_tensor,
}


def _makers() -> list[Maker]:
    makers: list[Maker] = [(Image.Image, name, make) for name, make in _OF_METHODS.items()]
    makers += [(ImageEnhance, name, _enhancer) for name in _ADJUSTED]
    makers.append((ImageOps, "expand", _OF_EXPAND))
    functional = sys.modules.get("torchvision.transforms.functional")
    if functional is not None:
        makers += [(functional, name, make) for name, make in _OF_FUNCTIONS.items()]
    return makers


_OF_METHODS = {name: _known(read, keeps_info=True) for name, read in _METHODS.items()}
_OF_EXPAND = _known(_expand, keeps_info=False)
_OF_FUNCTIONS = {name: _fixed(read) for name, read in _FUNCTIONS.items()}
_CALLS = Swapped(_makers, _is_here)
