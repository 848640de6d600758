"""Sequences of steps that contain every order of a few steps, since all images of a batch share one sequence of ops.

Omitting some places of such a sequence yields any order, so it is shorter than n times n. For two steps it has 3
places, ``A B A``, of which an image takes the first two or the last two; three steps need 7 places and four need 12.
None is shorter (M. C. Newey, *Notes on a problem involving permutations as subsequences*, Stanford 1973).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .ops.op import F64, I64, Mask

PLACES: dict[int, tuple[int, ...]] = {
    0: (),
    1: (0,),
    2: (0, 1, 0),
    3: (0, 1, 0, 2, 0, 1, 0),
    4: (0, 1, 2, 3, 0, 1, 2, 0, 3, 1, 0, 2),
}
"""Step at each place, by number of steps. The first steps have the most places."""


def random_order(u: F64) -> I64:
    """Return i64[B, n], a uniformly random permutation per image, given uniform numbers f64[B, n]."""
    return np.argsort(u, axis=1, kind="stable")


def places(order: I64, within: Sequence[Mask] | None = None) -> Iterator[tuple[int, Mask]]:
    """Yield each place in order: (its step, bool[B] of the images that take it).

    Args:
        order: i64[B, n], a permutation for each image.
        within: bool[B] for each step: the images that take the step at all.
    """
    done = np.zeros(len(order), np.int64)  # steps
    padded = np.concatenate([order, np.full((len(order), 1), -1)], axis=1)  # follows the last step
    rows = np.arange(len(order))
    for step in PLACES[order.shape[1]]:
        takes = padded[rows, done] == step  # each image takes a step at the first possible place
        done += takes
        yield step, takes if within is None else takes & within[step]
