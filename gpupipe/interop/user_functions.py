"""Functions of user code among transforms that do nothing here, such as ``convert("RGB")`` of what is RGB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..reading.global_rng import lent, seed_all

__all__ = ["does_nothing"]

_SIZES = ((224, 224), (61, 97))


def does_nothing(function: Callable[[Any], Any], kind: str, dtype: str, channels: int) -> bool:
    """Whether a function gives back noise of several sizes as it is, whatever it draws.

    Args:
        kind: what it gets: ``"pil"``, or ``"image"`` or ``"tensor"`` for a tensor.
        dtype: of the tensor.
    """
    for number, (height, width) in enumerate(_SIZES):
        noise = np.random.default_rng(number).integers(0, 256, (height, width, channels), np.uint8)
        given = _image(noise, kind, dtype)
        for attempt in range(2):
            with lent():
                seed_all(attempt)
                try:
                    made = function(given.copy() if isinstance(given, Image.Image) else given.clone())
                except Exception:
                    return False  # whether it fails on real images is tried with them
            if not _equal(made, given):
                return False
    return True


def _image(noise: Any, kind: str, dtype: str) -> Any:
    if kind == "pil":
        return Image.fromarray(noise[:, :, 0] if noise.shape[2] == 1 else noise)
    x = torch.from_numpy(noise).permute(2, 0, 1)
    wanted = getattr(torch, dtype)
    return x.to(wanted) / 255 if wanted.is_floating_point else x.to(wanted)


def _equal(made: Any, given: Any) -> bool:
    if isinstance(given, Tensor):
        return isinstance(made, Tensor) and made.dtype == given.dtype and torch.equal(made, given)
    if not isinstance(made, Image.Image) or (made.mode, made.size) != (given.mode, given.size):
        return False
    return bool(np.array_equal(np.asarray(made), np.asarray(given)))
