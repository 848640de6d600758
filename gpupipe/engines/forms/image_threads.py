"""Ops on a batch that lies on the CPU, image by image in threads.

Whole batches are for GPUs. On a CPU an image at a time stays in the cache, and Pillow's own functions can be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor

from ...reading.torch_threads import torch_threads
from ...transforms.ops import Call, Op
from .apply import apply_batch, apply_sample, apply_tail, head_and_tail
from .registry import FAST_FORMS, FORMS
from .stacking import stack_images

__all__ = ["ImageThreads"]


class ImageThreads:
    """``threads`` of them, started at the first use."""

    def __init__(self, threads: int):
        self._count = threads
        self._pool: ThreadPoolExecutor | None = None

    def apply(self, batch: Tensor, ops: Sequence[Op], memory_format: str) -> Any:
        """What :func:`~gpupipe.engines.forms.apply.apply_batch` does, to the reference's last bit but for blurs.

        Args:
            batch: [B, C, H, W] on the CPU; left as it is.
            ops: a plan's, with B rows.
        """
        head, tail = head_and_tail(ops)
        if not head or any(isinstance(op, Call) for op in head):
            return apply_batch(batch, ops, memory_format)
        images = batch.permute(0, 2, 3, 1).numpy()
        forms = {**FORMS, **FAST_FORMS}
        made = self._threads().map(lambda i: apply_sample(images[i], head, i, forms), range(len(images)))
        return apply_tail(stack_images(list(made)), tail, memory_format)

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = torch_threads(self._count, "gpupipe-images")
        return self._pool

    def close(self) -> None:
        """End the threads. They start again when they are needed."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
