"""The memory that the DALI engine holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ...memory.uses import Load, Need
from ...transforms.ops import Crop

__all__ = ["needs"]


def needs(load: Load, roi: Literal["auto"] | bool) -> list[Need]:
    """What is known before anything is read.

    DALI's pools are larger: a buffer that is freed stays in them, and is only used again for what fits into it.
    """
    s = load.setup
    first = next(iter(s.pipeline.skeleton), None)
    window = isinstance(first, Crop) and not first.padded
    # On a GPU "auto" is decided by a self-test when the engine is built.
    whole = not window or roi is False or (s.cuda and roi == "auto")
    sure = not window or roi is False
    found = load.output(s.prefetch_factor + 1, "(prefetch_factor + the one handed out) in flight")
    if s.dataset.has_frames:
        staging = load.decoded("pinned" if s.cuda else "host", whole=True, certain=False)
        of = "(2 × prefetch_factor + 1) being decoded and in flight"
        return found + [
            replace(n, passing=False) for need in staging for n in load.times(need, 2 * s.prefetch_factor + 1, of)
        ]
    if s.dataset.kind == "pixels" and s.cuda:
        found += _pinned_pixels(load)
    found += load.encoded("host")
    return found + load.decoded("device" if s.cuda else "host", whole=whole, certain=sure)


def _pinned_pixels(load: Load) -> list[Need]:
    """Pixels are copied into pinned memory, from where the GPU reads them."""
    sizes, s = load.setup.dataset.sizes, load.setup
    if sizes is None or s.dataset.runs_user_code:
        return []
    height, width = sizes[0].tolist()
    n = s.batch_size
    need = Need("pinned pixels", "pinned", n * 3 * height * width, f"{n:,} × 3 × {height} × {width} × 1 byte")
    return load.times(need, s.prefetch_factor, "in flight")
