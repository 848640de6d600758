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
from .picture import Picture, chw, hwc, pil
from .registry import form


@form(ops.Call)
def call(image: Picture, op: ops.Call, i: int) -> Picture:
    # Copy tensors, because a function may modify its argument.
    given: Any = pil(image) if op.kind == "pil" else chw(image).clone(memory_format=torch.contiguous_format)
    before = _shown(given)
    made = _run(op, given, i)
    if _shown(made) != before:
        raise PipelineError(
            f"{op.name} must keep kind, size and data type of the image: it got {before} and returned {_shown(made)}; "
            "to change those, use a transform of gpupipe before or after it"
        )
    return made if isinstance(made, Image.Image) else hwc(made.detach().as_subclass(Tensor))


@form(ops.Replay)
def replay(image: Picture, op: ops.Replay, i: int) -> Picture:
    return op.calls[i](pil(image))  # type: ignore[no-any-return]


def _run(op: ops.Call, image: Any, i: int) -> Any:
    try:
        with lent():
            seed_all(int(op.seed[i]))
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
        return f"a tensor {str(image.dtype).removeprefix('torch.')}{list(image.shape)}"
    return f"an object of type {type(image).__name__}"
