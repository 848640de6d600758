"""Stacking of images to batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rich.filesize import decimal
from torch import Tensor
from torch.utils.data import get_worker_info

from .. import system
from ..errors import MemoryBudgetError
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
    """Return an uninitialized tensor; in a worker, in shared memory, which saves a copy as in torch's own collate.

    Raises :class:`MemoryBudgetError` if /dev/shm is too full: writing to the tensor would then end the worker.
    """
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    n = int(np.prod(shape)) * dtype.itemsize
    free = system.shm_free()
    if free is not None and n > free:
        raise MemoryBudgetError(
            f"a batch of {decimal(n)} does not fit into /dev/shm, which has {decimal(free)} left: use a smaller "
            "batch_size, prefetch_factor or num_workers, or a larger /dev/shm (docker run --shm-size=...)"
        )
    storage = torch.UntypedStorage._new_shared(n, device="cpu")  # type: ignore[no-untyped-call]
    empty = torch.empty(0, dtype=dtype, device="cpu")
    return empty.set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]
