"""What functions of Pillow, numpy, torch and torchvision make of stand-ins for rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .row_stand_ins import Picture, Row, StandIn, Transformed, numpy_type


def _fromarray(obj: Any, mode: str | None = None) -> Picture:
    plain = type(obj) is Row and obj.kind == "numpy" and obj.values.dtype == obj.values.array.dtype == np.uint8
    made = ("L" if obj.ndim == 2 else "RGB" if obj.shape[2:] == (3,) else "") if plain else ""
    if not made or mode not in (None, made):
        obj.run.refuse("it makes an image of something else than bytes")
    return Picture(obj.run, row=obj, mode=made)


def _to_pil_image(pic: Any, mode: str | None = None) -> Picture:
    if type(pic) is Row and pic.kind == "tensor":
        pic = (pic.permute(1, 2, 0) if pic.ndim == 3 else pic).numpy()
    return _fromarray(pic[:, :, 0] if type(pic) is Row and pic.shape[2:] == (1,) else pic, mode)


def _array(obj: Any, dtype: Any = None) -> Row:
    if type(obj) is not Row or obj.kind == "tensor":
        obj.run.refuse("it makes an array of something else than a row")
    return obj.cast(obj.values.dtype if dtype is None else np.dtype(dtype), "numpy")  # type: ignore[no-any-return]


def _tensor(data: Any, dtype: Any = None) -> Any:
    if type(data) is Transformed and dtype is None:
        step = {"before": data.before, "transform": data.transform, "origin": data.origin}
        return Transformed(data.run, image=data.image, is_tensor=True, **step)
    if type(data) is not Row or not isinstance(dtype, (torch.dtype, type(None))):
        data.run.refuse("it makes a tensor of something else than a row")
    if dtype is None and data.kind == "python" and data.values.dtype.kind == "f":
        dtype = torch.get_default_dtype()
    return data.cast(data.values.dtype if dtype is None else numpy_type(dtype), "tensor")


def _from_numpy(array: Any) -> Row:
    if type(array) is not Row or array.kind != "numpy" or not array.ndim:
        array.run.refuse("it makes a tensor of something else than an array")
    return array.cast(array.values.dtype, "tensor")  # type: ignore[no-any-return]


def _transpose(a: Any, axes: Any) -> Any:
    return a.transpose(*axes)


def _is_tensor(obj: StandIn) -> bool:
    # A sampler may give tensors as well.
    obj.run.asks_index |= type(obj) is Row and obj.is_index
    return issubclass(obj.shown(), torch.Tensor)


FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("PIL.Image", "fromarray"): _fromarray,
    ("numpy", "array"): _array,
    ("numpy", "asarray"): _array,
    ("numpy", "ascontiguousarray"): _array,
    ("numpy", "transpose"): _transpose,
    ("torch", "as_tensor"): _tensor,
    ("torch", "from_numpy"): _from_numpy,
    ("torch", "is_tensor"): _is_tensor,
    ("torch", "tensor"): _tensor,
    ("torchvision.transforms.functional", "to_pil_image"): _to_pil_image,
    ("torchvision.transforms.v2.functional", "to_pil_image"): _to_pil_image,
    ("torchvision.utils", "_Image_fromarray"): _fromarray,
}
"""Functions by module and name. The first argument is a stand-in."""
