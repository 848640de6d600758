"""How large the pieces are in which DALI makes a batch that the host goes on with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...reading.windows import window_of

if TYPE_CHECKING:
    from ...reading.base import Loaded

__all__ = ["AHEAD", "images_of_a_piece", "rows_of_pieces"]

AHEAD = 3
"""Pieces that DALI works on for the host: one, and those that it begins without waiting for anybody."""
_BYTES = 16 << 20
"""Of the decoded images of a piece, unless its images are so large that these would be too few."""
_FOR_EACH_THREAD = 16
"""Images of a piece, at least: with less, DALI's threads wait for the last one too often."""


def images_of_a_piece(nbytes: float, threads: int) -> int:
    """At most, if an image has so many bytes decoded; 0 is not known, or nothing."""
    return max(_FOR_EACH_THREAD * threads, int(_BYTES / max(nbytes, 1)))


def rows_of_pieces(ready: Loaded, count: int, threads: int) -> list[slice]:
    """The rows of each piece of a batch of ``count`` images, as equal as can be."""
    pieces = math.ceil(count / images_of_a_piece(_decoded_bytes(ready), threads))
    return [slice(k * count // pieces, (k + 1) * count // pieces) for k in range(pieces)]


def _decoded_bytes(ready: Loaded) -> float:
    """Of an image, on average; 0 if that is not known."""
    plan = ready.plan
    window = window_of((plan.ops if ready.ops is None else ready.ops) or ())
    if window is not None:
        return 3 * float((window.height.astype(float) * window.width).mean())
    return 0.0 if plan.sizes is None else 3 * float(plan.sizes.astype(float).prod(axis=1).mean())
