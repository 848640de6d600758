"""Functions of user code among transforms: each is tried before it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..reading.global_rng import lent, seed_all
from .same_names import Refused

__all__ = ["does_nothing"]

_SIZES = ((224, 224), (61, 97))


def does_nothing(function: Callable[[Any], Any], kind: str, dtype: str, channels: int) -> bool:
    """Whether a function gives back every image as it is, such as ``convert("RGB")`` of what is RGB.

    Args:
        kind: what it gets: ``"pil"``, or ``"image"`` or ``"tensor"`` for a tensor.
        dtype: of the tensor.

    Raises :class:`Refused` if it does not keep size and type of an image, or fails on one.
    """
    same = True
    for number, (height, width) in enumerate(_SIZES):
        noise = np.random.default_rng(number).integers(0, 256, (height, width, channels), np.uint8)
        given = _image(noise, kind, dtype)
        for attempt in range(2):
            with lent():
                seed_all(attempt)
                try:
                    made = function(given.copy() if isinstance(given, Image.Image) else given.clone())
                except Exception as e:
                    raise Refused(
                        f"user code, which failed on {_shown(given)}: {type(e).__name__}: {e}. Only torch's loader "
                        "runs it"
                    ) from None
            if _shown(made) != _shown(given):
                raise Refused(
                    f"user code, which made {_shown(made)} of {_shown(given)}: what does not keep size and type of the "
                    "image only torch's loader runs"
                )
            same = same and _equal(made, given)
    return same


def _image(noise: Any, kind: str, dtype: str) -> Any:
    if kind == "pil":
        return Image.fromarray(noise[:, :, 0] if noise.shape[2] == 1 else noise)
    x = torch.from_numpy(noise).permute(2, 0, 1)
    wanted = getattr(torch, dtype)
    return x.to(wanted) / 255 if wanted.is_floating_point else x.to(wanted)


def _shown(image: Any) -> str:
    if isinstance(image, Image.Image):
        return f"a PIL image of mode {image.mode} and {image.height}x{image.width} pixels"
    if isinstance(image, Tensor):
        return f"a tensor {str(image.dtype).removeprefix('torch.')}{list(image.shape)}"
    return f"an object of type {type(image).__name__}"


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))
