"""Images of one size put together into a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...reading.user_code import worker_tensor
from .apply import Arrays

__all__ = ["stack_images"]


def stack_images(images: Sequence[Arrays]) -> Any:
    """[B, H, W, C] of B images, or a tuple of such of B tuples of views; in a worker in shared memory."""
    first: Any = images[0]
    if isinstance(first, tuple):
        return tuple(map(stack_images, zip(*images, strict=True)))
    batch = worker_tensor((len(images), *first.shape), torch.from_numpy(np.empty(0, first.dtype)).dtype)
    np.stack(images, out=batch.numpy())
    return batch
