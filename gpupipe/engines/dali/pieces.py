"""Sizes of the pieces in which DALI decodes a batch for the host."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from ...reading.windows import window_of

if TYPE_CHECKING:
    from ...reading.reader import Loaded

AHEAD = 3
"""Number of pieces that DALI works on for the host: one, and those that it begins without waiting."""
_BYTES = 16 << 20
"""Size of the decoded images of a piece, unless a piece would then have too few images."""
_FOR_EACH_THREAD = 16
"""Minimum number of images per thread in a piece: with fewer, DALI's threads wait for the last one too often."""


def rows_of_pieces(count: int, nbytes: float, threads: int, most: int = sys.maxsize) -> list[slice]:
    """Divide the rows of a batch of ``count`` images into pieces as equal as possible.

    Args:
        nbytes: average bytes of a decoded image; 0 if unknown.
        most: maximum number of images in a piece.
    """
    each = max(_FOR_EACH_THREAD * threads, int(_BYTES / max(nbytes, 1)))
    pieces = math.ceil(count / min(each, most))
    return [slice(k * count // pieces, (k + 1) * count // pieces) for k in range(pieces)]


def decoded_bytes(ready: Loaded) -> float:
    """Return the average bytes of a decoded image; 0 if unknown."""
    plan = ready.plan
    window = window_of((plan.ops if ready.ops is None else ready.ops) or ())
    if window is not None:
        return 3 * float((window.height.astype(float) * window.width).mean())
    return 0.0 if plan.sizes is None else 3 * float(plan.sizes.astype(float).prod(axis=1).mean())
