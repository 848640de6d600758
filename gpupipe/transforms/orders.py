"""Every order of a few steps in one row of places, since all images of a batch go through the same sequence of ops.

A row that has every order within it, some places left out, is shorter than n times n places. For two steps it has 3,
``A B A``, of which an image takes the first two or the last two; for three it has 7, for four 12, and none is shorter
(M. C. Newey, *Notes on a problem involving permutations as subsequences*, Stanford 1973).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .ops.base import F64, I64, Mask

__all__ = ["MOST", "PLACES", "places", "random_order"]

PLACES: dict[int, tuple[int, ...]] = {
    0: (),
    1: (0,),
    2: (0, 1, 0),
    3: (0, 1, 0, 2, 0, 1, 0),
    4: (0, 1, 2, 3, 0, 1, 2, 0, 3, 1, 0, 2),
}
"""By the number of steps: which one stands at each place. The first steps have the most places."""

MOST = max(PLACES)


def random_order(u: F64) -> I64:
    """i64[B, n], a permutation for each image, all with the same probability, of uniforms f64[B, n]."""
    return np.argsort(u, axis=1, kind="stable")


def places(order: I64, within: Sequence[Mask] | None = None) -> Iterator[tuple[int, Mask]]:
    """The places one after another: (which step stands there, bool[B], which images take it there).

    Args:
        order: i64[B, n], a permutation for each image.
        within: bool[B] for each step: which images take it at all.
    """
    done = np.zeros(len(order), np.int64)  # steps
    padded = np.concatenate([order, np.full((len(order), 1), -1)], axis=1)  # what comes after the last step
    rows = np.arange(len(order))
    for step in PLACES[order.shape[1]]:
        takes = padded[rows, done] == step  # each image takes its steps as soon as they come
        done += takes
        yield step, takes if within is None else takes & within[step]
