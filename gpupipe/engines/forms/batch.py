"""Ops on a whole batch [B, C, H, W] on any device: what the device finishes, and what DALI cannot do.

A form may write into its input, which nobody else holds, and returns it or another tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...errors import PipelineError
from ...transforms.ops import (
    Blur,
    BoxBlur,
    Call,
    Elastic,
    Erase,
    Mix,
    Noise,
    Normalize,
    Op,
    Perspective,
    SolarizeAdd,
    ToDtype,
    Warp,
)
from .batch_color import COLOR_BATCH_FORMS
from .blur_noise import blur_batch, noise_batch
from .erase import erase_batch
from .lambda_ import call_batch
from .structure import mix_batch
from .timm import box_blur_batch, solarize_add_batch
from .warp import elastic_batch, perspective_batch, warp_batch

__all__ = ["BATCH_FORMS", "arithmetic"]


def arithmetic(x: Tensor, op: Op, *, layout: torch.memory_format, inplace: bool) -> Tensor:
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


BATCH_FORMS: dict[type[Op], Callable[[Tensor, Any], Tensor]] = {
    **COLOR_BATCH_FORMS,
    Call: call_batch,
    Mix: mix_batch,
    SolarizeAdd: solarize_add_batch,
    BoxBlur: box_blur_batch,
    Blur: blur_batch,
    Noise: noise_batch,
    Erase: erase_batch,
    Warp: warp_batch,
    Perspective: perspective_batch,
    Elastic: elastic_batch,
}
"""Beside ToDtype and Normalize, which know of layouts: see :func:`arithmetic`. The row ``i`` of an op belongs to
image ``i``; what the mask leaves out must come out as it came in."""
