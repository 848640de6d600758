"""Stacking of images to batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from .apply import Arrays


def stack_images(images: Sequence[Arrays]) -> Any:
    """Stack B images to [B, H, W, C], or B tuples of views to a tuple of batches; in a worker, in shared memory."""
    first: Any = images[0]
    if isinstance(first, tuple):
        return tuple(map(stack_images, zip(*images, strict=True)))
    batch = worker_tensor((len(images), *first.shape), torch.from_numpy(np.empty(0, first.dtype)).dtype)
    np.stack(images, out=batch.numpy())
    return batch


def worker_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an uninitialized tensor; in a worker, in shared memory, which saves a copy as in torch's own collate."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    n = int(np.prod(shape)) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(n, device="cpu")  # type: ignore[no-untyped-call]
    empty = torch.empty(0, dtype=dtype, device="cpu")
    return empty.set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]
