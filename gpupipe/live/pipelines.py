"""gpupipe's own pipelines, called by a script's Dataset on images that wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ..engines.torch import reference
from ..transforms import ops
from ..transforms.compose import Compose
from ..transforms.ops import Op
from . import looks
from .images import step_of
from .rows import Moves, Size, of_op
from .steps import Move, PixelStep
from .switch import is_on
from .tensors import WaitingTensor

_KNOWN = {
    ops.AutoContrast, ops.Blur, ops.BoxBlur, ops.Brightness, ops.ChannelPermutation, ops.Contrast, ops.Crop,
    ops.Equalize, ops.Erase, ops.Flip, ops.Gray, ops.Hue, ops.Invert, ops.Normalize, ops.Perspective, ops.Posterize,
    ops.Resize, ops.Saturation, ops.Sharpness, ops.Solarize, ops.ToDtype, ops.Warp,
}  # fmt: skip
"""Ops of images of three channels that engines do for live loaders."""


def one_image(pipeline: Compose, image: Any) -> Any:
    """Return ``pipeline(image)``, see :meth:`gpupipe.transforms.Compose.__call__`. If the image waits, so does its
    tensor."""
    step = step_of(image) if is_on() else None
    if step is None:
        return reference.one_image(pipeline, image)
    plan = reference.plan_of_one(pipeline, step.size)
    moves = _moves(plan.ops or (), step.size) if pipeline.memory_format == "contiguous_format" else None
    if moves is None or looks.asks_for_type():
        return reference.made_of_one(pipeline, plan, image)

    def redo(im: Image.Image) -> Tensor:
        made: Tensor = reference.made_of_one(pipeline, plan, im)
        return made

    dtypes = [dict(move.settings)["dtype"] for move in moves if move.op is ops.ToDtype]
    dtype = getattr(torch, dtypes[-1]) if dtypes else torch.uint8
    return WaitingTensor(PixelStep(step, redo, moves, (3, *(moves[-1].size if moves else step.size)), dtype))


def _moves(given: Sequence[Op], size: Size) -> Moves | None:
    """Return ops of one row as moves; ``None`` if live loaders do not know one of them."""
    made: list[Move] = []
    for op in given:
        if op.passes(0):
            continue
        if type(op) not in _KNOWN or (isinstance(op, ops.Gray) and op.channels != 3):
            return None
        made += of_op(op, size)
        size = made[-1].size
    return tuple(made)
