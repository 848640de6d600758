"""Changes of data type and value range, for images and batches."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ..transforms import ops
from .registry import arithmetic


@arithmetic(ops.ToDtype)
def to_dtype(
    x: Tensor, op: ops.ToDtype, layout: torch.memory_format, inplace: bool, out: Tensor | None = None
) -> Tensor:
    """Convert the type. ``out`` receives the result if it has that type."""
    dtype = getattr(torch, op.dtype)
    if x.dtype == dtype:
        return x
    scaled = op.scale and x.dtype == torch.uint8
    if scaled and out is not None and out.dtype == dtype == torch.float32 and out.device.type == "cpu":
        # numpy needs one pass: it converts the type piece by piece, in the cache.
        scale, number = (np.divide, 255.0) if op.kind == "pil" else (np.multiply, 1.0 / 255)
        scale(x.numpy(), np.float32(number), out=out.numpy(), dtype=np.float32)
        return out
    x = x.to(dtype, memory_format=layout) if out is None or out.dtype != dtype else out.copy_(x)
    if not scaled:
        return x
    # Not a plain number: CUDA would multiply by its reciprocal, which rounds differently from the CPU.
    return x.div_(constant((255.0,), dtype, x.device)) if op.kind == "pil" else x.mul_(1.0 / 255)


@arithmetic(ops.Normalize)
def normalize(x: Tensor, op: ops.Normalize, layout: torch.memory_format, inplace: bool) -> Tensor:
    mean, std = (constant(values, x.dtype, x.device) for values in (op.mean, op.std))
    is_last = x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    if is_last and x.device.type == "cpu":
        # A CPU would read a number per channel pixel by pixel, which takes several times as long as row by row.
        n, channels, height, width = x.shape
        mean, std = (repeated(values, channels, width) for values in (mean, std))
        rows = x.permute(0, 2, 3, 1).view(n, height, width * channels)
        made = (rows.sub_(mean) if inplace else rows.sub(mean)).div_(std)
        return made.view(n, height, width, channels).permute(0, 3, 1, 2)
    return (x.sub_(mean) if inplace else x.sub(mean)).div_(std)


@lru_cache(maxsize=64)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor [len(values), 1, 1]. It is cached, because creating one on a GPU waits for the stream."""
    return torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)


@lru_cache(maxsize=64)
def repeated(values: Tensor, channels: int, width: int) -> Tensor:
    """Return a value per channel, [C, 1, 1] or [1, 1, 1], for a row of pixels, [width * C]."""
    return values.expand(channels, 1, 1).flatten().repeat(width)
