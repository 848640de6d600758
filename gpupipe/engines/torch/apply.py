"""What every op does, in Pillow and torch, bit by bit as torchvision does it where the numbers are the same."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from ...datasets.base import Dataset
from ...errors import PipelineError
from ...planning import resolve_plan
from ...transforms.compose import Compose
from ...transforms.ops import Crop, Flip, Gray, Normalize, Op, Resize, ToDtype
from ...types import Plan
from .decode import open_rgb

__all__ = ["FORMS", "apply_sample", "apply_tail", "reference", "split"]

Array: TypeAlias = npt.NDArray[Any]
Picture: TypeAlias = Array | Image.Image
"""Within :func:`apply_sample` what was encoded stays a PIL image while it can: conversions cost a copy each."""

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "nearest-exact": Image.Resampling.NEAREST,  # the name of another rule for tensors; Pillow has this one
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
}


def split(ops: Sequence[Op]) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """(ops for each sample, tail for the batch): the tail is the longest suffix of ToDtype and Normalize.

    Mirroring and cutting out commute with arithmetic on single values, so they are moved before it: a pipeline that
    flips after ``ToTensor`` still ships bytes from the workers instead of floats.
    """
    head: list[Op] = []
    tail: list[Op] = []
    for op in ops:
        if isinstance(op, (ToDtype, Normalize)):
            tail.append(op)
        elif isinstance(op, Flip) or (isinstance(op, Crop) and not op.padded):
            head.append(op)
        else:
            head += [*tail, op]
            tail = []
    return tuple(head), tuple(tail)


def apply_sample(image: Picture, ops: Sequence[Op], i: int) -> Array:
    """Row ``i`` of ``ops`` on one image.

    Args:
        image: u8 or f32[H, W, C], or a PIL image in mode RGB or L.
        ops: any, in order; see :func:`split` for those that are cheaper on the batch.
        i: which row of the ops' arrays.

    Returns:
        u8, f16 or f32[H', W', C'], possibly a view of ``image``.
    """
    for op in ops:
        image = FORMS[type(op)](image, op, i)
    return _array(image)


def apply_tail(batch: Tensor, ops: Sequence[Op], memory_format: str = "contiguous_format") -> Tensor:
    """ToDtype and Normalize ``ops`` on a whole batch, on its device.

    Args:
        batch: [B, H, W, C]; left as it is.
        ops: the second part of :func:`split`.
        memory_format: ``"contiguous_format"`` or ``"channels_last"``.

    Returns:
        [B, C, H, W] in that memory format.
    """
    layout = getattr(torch, memory_format)
    x = batch.permute(0, 3, 1, 2)
    for op in ops:
        x = _arithmetic(x, op, layout=layout, inplace=x.data_ptr() != batch.data_ptr())
    return x.contiguous(memory_format=layout)


def reference(dataset: Dataset, plan: Plan, pipeline: Compose) -> Tensor:
    """What the plan's batch must be: decode and apply, in this process, on the CPU.

    Returns [B, C, H, W]. Raises :class:`~gpupipe.engines.torch.decode.Undecodable` at the first bad sample.
    """
    images = [open_rgb(dataset.fetch(int(i))[0], exif=dataset.exif) for i in plan.indices]
    if plan.ops is None:
        plan = resolve_plan(plan, pipeline, np.array([size_of(image) for image in images], np.int32))
    assert plan.ops is not None
    head, tail = split(plan.ops)
    batch = np.stack([apply_sample(image, head, i) for i, image in enumerate(images)])
    return apply_tail(torch.from_numpy(batch), tail, pipeline.memory_format)


def size_of(image: Picture) -> tuple[int, int]:
    """(height, width) in pixels."""
    if isinstance(image, np.ndarray):
        return image.shape[0], image.shape[1]
    return image.height, image.width


def _array(image: Picture) -> Array:
    if isinstance(image, np.ndarray):
        return image
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _pil(image: Picture) -> Image.Image:
    if isinstance(image, np.ndarray):
        return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    return image


def _chw(image: Picture) -> Tensor:
    """[C, H, W] on the same memory, or on a copy where torch cannot take it as it is."""
    array = _array(image)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array).permute(2, 0, 1)


def _hwc(image: Tensor) -> Array:
    return image.permute(1, 2, 0).numpy()


def _crop(image: Picture, op: Crop, i: int) -> Picture:
    top, left, height, width = (int(a[i]) for a in (op.top, op.left, op.height, op.width))
    have_height, have_width = size_of(image)
    if (top, left, height, width) == (0, 0, have_height, have_width):
        return image
    if min(top, left) >= 0 and top + height <= have_height and left + width <= have_width:
        if isinstance(image, np.ndarray):
            return image[top : top + height, left : left + width]
        return image.crop((left, top, left + width, top + height))
    array = _array(image)
    if op.mode != "constant":
        rows = _reach(top, height, have_height, op.mode)
        columns = _reach(left, width, have_width, op.mode)
        return array[rows][:, columns]
    out = np.empty((height, width, array.shape[2]), array.dtype)
    out[:] = np.array(op.fill).astype(array.dtype)  # a fraction of a grey level is cut off, as by torchvision
    y0, x0 = max(top, 0), max(left, 0)
    inside = array[y0 : max(top + height, 0), x0 : max(left + width, 0)]
    out[y0 - top : y0 - top + inside.shape[0], x0 - left : x0 - left + inside.shape[1]] = inside
    return out


def _reach(start: int, length: int, have: int, mode: str) -> npt.NDArray[np.int64]:
    """Which of ``have`` pixels lies at each of ``length`` places from ``start`` on: i64[length]."""
    at = np.arange(start, start + length)
    if mode == "edge" or have == 1:
        return np.clip(at, 0, have - 1)
    if mode == "reflect":
        at = np.abs(at) % (2 * have - 2)
        return np.minimum(at, 2 * have - 2 - at)
    at %= 2 * have
    return np.minimum(at, 2 * have - 1 - at)


def _resize(image: Picture, op: Resize, i: int) -> Picture:
    height, width = int(op.height[i]), int(op.width[i])
    if size_of(image) == (height, width):
        return image
    if op.kind == "pil":
        return _pil(image).resize((width, height), _FILTERS[op.interpolation])
    return _hwc(_interpolate(_chw(image), height, width, op.interpolation, op.antialias))


def _interpolate(image: Tensor, height: int, width: int, mode: str, antialias: bool) -> Tensor:
    """torchvision's ``resize_image``: [C, H, W] to [C, height, width]."""
    nearest = mode in ("nearest", "nearest-exact")
    channels, dtype = image.shape[0], image.dtype
    native = dtype == torch.float32 or (dtype == torch.uint8 and (nearest or _has_uint8_kernel(mode)))
    x = image[None]
    if x.is_contiguous(memory_format=torch.channels_last) and x.numel() != x.stride(0):
        # torch takes [1, C, H, W] with this stride for contiguous, and packs the result anew
        x = x.as_strided(x.shape, (x.numel(), *x.stride()[1:]))
    if not native:
        x = x.to(torch.float32)
    x = torch.nn.functional.interpolate(
        x, (height, width), mode=mode, align_corners=None if nearest else False, antialias=antialias and not nearest
    )
    if not native:
        if dtype == torch.uint8:
            x = (x.clamp_(0, 255) if mode in ("bicubic", "lanczos") else x).round_()
        x = x.to(dtype)
    return x.reshape(channels, height, width)


def _has_uint8_kernel(mode: str) -> bool:
    if mode == "bilinear":
        capability = torch.backends.cpu.get_cpu_capability()
        return capability in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")
    return True


def _flip(image: Picture, op: Flip, i: int) -> Picture:
    if not op.mask[i]:
        return image
    sideways = op.axis == "horizontal"
    if isinstance(image, np.ndarray):
        return image[:, ::-1] if sideways else image[::-1]
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT if sideways else Image.Transpose.FLIP_TOP_BOTTOM)


def _gray(image: Picture, op: Gray, i: int) -> Picture:
    if not op.mask[i]:
        return image
    if op.kind == "pil":
        luma: Array = _array(_pil(image).convert("L"))
    else:
        x = _chw(image)
        if x.shape[0] == 3:
            red, green, blue = x.unbind(0)
            x = red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)[None].to(x.dtype)
        luma = _hwc(x)
    return luma if op.channels == 1 else np.repeat(luma, 3, axis=2)


def _pointwise(image: Picture, op: ToDtype | Normalize, i: int) -> Picture:
    return _hwc(_arithmetic(_chw(image), op, layout=torch.preserve_format, inplace=False))


def _arithmetic(x: Tensor, op: Op, *, layout: torch.memory_format, inplace: bool) -> Tensor:
    """One ToDtype or Normalize on [..., C, H, W]. ``inplace``: nobody else holds ``x``."""
    if isinstance(op, ToDtype):
        dtype = getattr(torch, op.dtype)
        if x.dtype == dtype:
            return x
        scaled = op.scale and x.dtype == torch.uint8
        x = x.to(dtype, memory_format=layout)
        if not scaled:
            return x
        # Not a plain number: CUDA would multiply by its reciprocal, which rounds differently than the CPU.
        return x.div_(_constant((255.0,), dtype, x.device)) if op.kind == "pil" else x.mul_(1.0 / 255)
    if isinstance(op, Normalize):
        mean, std = (_constant(values, x.dtype, x.device) for values in (op.mean, op.std))
        return (x.sub_(mean) if inplace else x.sub(mean)).div_(std)
    raise PipelineError(f"{type(op).__name__} does not work on single values and cannot be part of the tail")


@lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[len(values), 1, 1], kept: making one on a GPU waits for the stream."""
    return torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)


FORMS: dict[type[Op], Callable[[Picture, Any, int], Picture]] = {
    Crop: _crop,
    Resize: _resize,
    Flip: _flip,
    Gray: _gray,
    ToDtype: _pointwise,
    Normalize: _pointwise,
}
"""The torch form of every op. A test compares the keys with :data:`gpupipe.transforms.ops.OPS`."""
