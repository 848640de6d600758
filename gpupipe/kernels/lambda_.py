"""Calls of user functions as torchvision makes them, with random numbers that belong to the sample."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ..errors import GpupipeError, PipelineError
from ..global_rng import lent, seed_all
from ..transforms import ops
from .picture import Picture, chw, hwc, pil, size_of
from .registry import batch_form, form


@form(ops.Call)
def call(image: Picture, op: ops.Call, i: int) -> Picture:
    if op.batch:
        raise PipelineError(f"{op.name} gets whole batches, but the transforms after it work on single images")
    # Copy tensors, because a function may modify its argument.
    given: Any = pil(image) if op.kind == "pil" else chw(image).clone(memory_format=torch.contiguous_format)
    before = _shown(given)
    wanted = before if op.returns is None else op.returns.text(*_size(image))
    made = _run(op, given, i)
    if _shown(made) != wanted:
        raise _wrong(op, before, _shown(made))
    return made if isinstance(made, Image.Image) else hwc(made.detach().as_subclass(Tensor))


def _size(image: Picture) -> tuple[int, int]:
    is_image = isinstance(image, Image.Image) or image.ndim == 3
    return size_of(image) if is_image else (1, 1)  # nothing depends on the size of other results


@batch_form(ops.Call, rows="all")
def call_batch(x: Tensor, op: ops.Call) -> Tensor:
    before = _shown(x)
    if not op.batch:
        raise PipelineError(f"{op.name} is for single images, and cannot work on a whole batch")
    made = _run(op, x, 0)
    if not isinstance(made, Tensor) or _shown(made) != before:
        raise _wrong(op, before, _shown(made))
    return made.detach().as_subclass(Tensor)


def _run(op: ops.Call, image: Any, i: int) -> Any:
    device = image.device if isinstance(image, Tensor) else None
    try:
        with lent(device):
            seed_all(int(op.seed[i]), device)
            return op.function(image)
    except GpupipeError:
        raise
    except Exception as e:
        at = traceback.extract_tb(e.__traceback__)[-1]
        raise PipelineError(
            f"{op.name} failed on {_shown(image)}: {type(e).__name__}: {e} ({Path(at.filename).name}, line {at.lineno})"
        ) from e


def _shown(image: Any) -> str:
    if isinstance(image, Image.Image):
        return f"a PIL image of mode {image.mode} and {image.height}x{image.width} pixels"
    if isinstance(image, Tensor):
        where = "" if image.device.type == "cpu" else f" on {image.device}"
        return f"a tensor {str(image.dtype).removeprefix('torch.')}{list(image.shape)}{where}"
    return f"an object of type {type(image).__name__}"


def _wrong(op: ops.Call, given: str, made: str) -> PipelineError:
    if op.returns is not None:
        return PipelineError(
            f"{op.name} must return {op.returns}, as it was declared: it got {given} and "
            f"returned {made}; if what it returns depends on the image, use torchvision's dataset, which runs as it is"
        )
    return PipelineError(
        f"{op.name} must keep kind, size and data type of the image: it got {given} and returned {made}; to change "
        "those, use a transform of gpupipe before or after it"
    )
