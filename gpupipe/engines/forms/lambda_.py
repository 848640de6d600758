"""A user's function, called as torchvision would call it, with random numbers that belong to the sample."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ...errors import GpupipeError, PipelineError
from ...reading.global_rng import lent, seed_all
from ...transforms import ops
from .picture import Picture, array, hwc, pil
from .registry import batch_form, form


@form(ops.Call)
def call(image: Picture, op: ops.Call, i: int) -> Picture:
    if op.batch:
        raise PipelineError(f"{op.name} is for whole batches, and what comes after it is done on single images")
    if op.kind == "pil":
        given = pil(image)
        made = _run(op, given, i)
        if not isinstance(made, Image.Image):
            raise _wrong(op, "a PIL image", _shown(made))
        if (made.size, made.mode) != (given.size, given.mode):
            raise _wrong(op, _shown(given), _shown(made))
        return made
    # A copy, because a function may write into what it gets.
    x = torch.from_numpy(array(image).transpose(2, 0, 1).copy())
    before = _shown(x)
    made = _run(op, x, i)
    if not isinstance(made, Tensor) or _shown(made) != before:
        raise _wrong(op, before, _shown(made))
    return hwc(made.detach().as_subclass(Tensor))


@batch_form(ops.Call, rows="all")
def call_batch(x: Tensor, op: ops.Call) -> Tensor:
    before = _shown(x)
    if not op.batch:
        raise PipelineError(f"{op.name} is for single images, and has no form for a whole batch")
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
    return PipelineError(
        f"{op.name} must keep kind, size and data type of the image: it got {given} and returned {made}; to change "
        "those, use a transform of gpupipe before or after it"
    )
