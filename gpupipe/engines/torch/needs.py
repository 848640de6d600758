"""The memory that the torch engine holds."""

from __future__ import annotations

from ...memory.uses import Load, Need
from ...transforms.ops import Gray, ToDtype, Views
from ..forms.apply import head_and_tail

__all__ = ["needs"]


def needs(load: Load, slots: int) -> list[Need]:
    """What is known before anything is read.

    Args:
        slots: of the pinned ring; 0 where there is none.
    """
    s = load.setup
    head, tail = head_and_tail(s.pipeline.skeleton)
    found: list[Need] = []
    for view, ops in enumerate(head[-1].branches if head and isinstance(head[-1], Views) else ((),)):
        dtype, channels = "uint8", 3
        for op in (*head, *ops):  # a worker hands on what the head makes; the tail is for the whole batch
            dtype = op.dtype if isinstance(op, ToDtype) else dtype
            channels = op.channels if isinstance(op, Gray) else channels
        if s.num_workers:
            # All plans are sent at once, and workers do not wait for one that is to be fetched.
            made = load.batch("batches of the workers", "shm", view, channels=channels, dtype=dtype)
            found += load.times(made, s.num_workers * s.prefetch_factor, "(num_workers × prefetch_factor) queued")
        if s.cuda and slots:
            ring = load.batch("pinned staging", "pinned", view, channels=channels, dtype=dtype)
            found += load.times(ring, slots, "slots")
    if tail or s.cuda or not s.num_workers:  # else the worker's own memory is handed out
        found += load.output(1, "handed out")
    # One after another in each process.
    return found + load.decoded("host", whole=True, certain=False, images=max(s.num_workers, 1))
