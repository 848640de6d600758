"""The part of an image that a first crop takes: it is all that has to be decoded, or kept of what was decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..datasets.base import Dataset
from ..transforms.ops import Crop, Op
from ..types import Plan

__all__ = ["cut", "ops_left", "stored_windows", "turns_of", "window_of"]

I32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
U8 = npt.NDArray[np.uint8]


def window_of(ops: Sequence[Op]) -> Crop | None:
    """The first op, if it takes a window that lies inside the image."""
    first = ops[0] if ops else None
    return first if isinstance(first, Crop) and not first.padded else None


def stored_windows(window: Crop, sizes: I32, turns: U8) -> Crop:
    """Windows of upright images as windows of the same images before they are turned.

    Args:
        window: B of them.
        sizes: i32[B, 2], height and width of the upright images.
        turns: u8[B], 1 to 8 as EXIF counts: what makes them upright.
    """
    top, left = window.top, window.left
    below = sizes[:, 0] - top - window.height
    right = sizes[:, 1] - left - window.width
    sideways = turns >= 5
    return replace(
        window,
        top=np.choose(turns - 1, (top, top, below, below, left, right, right, left)).astype(np.int32),
        left=np.choose(turns - 1, (left, right, right, left, top, top, below, below)).astype(np.int32),
        height=np.where(sideways, window.width, window.height),
        width=np.where(sideways, window.height, window.width),
    )


def cut(image: U8, window: Crop | None, row: int) -> U8:
    """u8[h, w, 3]: what the window of that row takes of an image u8[H, W, 3]; all of it if there is none."""
    if window is None:
        return image
    top, left, height, width = (int(a[row]) for a in (window.top, window.left, window.height, window.width))
    return np.ascontiguousarray(image[top : top + height, left : left + width])


def turns_of(dataset: Dataset, plan: Plan, rows: Mask | None = None) -> U8:
    """u8[B]: how the samples of a plan become upright, 1 to 8 as EXIF counts; 1 of all but ``rows`` bool[B]."""
    assert dataset.orientations is not None
    turns = dataset.orientations[plan.indices]
    return turns if rows is None else np.where(rows, turns, np.uint8(1))


def ops_left(
    plan: Plan, done: U8 | None = None, *, corner: I32 | None = None, turns: U8 | None = None
) -> tuple[Op, ...]:
    """A plan's ops for images as an engine gets them: as many ops as in the plan, and nothing is done twice.

    Args:
        done: u8[B], the first ops that are done to each image: a crop, or a crop and a resize, or a resize.
        corner: i32[2, B], the first pixel row and column of each image that is there; for images with nothing done.
        turns: u8[B], how the engine turns each image after the crop; see :func:`stored_windows`. Images with something
            done, or with a corner, have 1.
    """
    assert plan.ops is not None and plan.sizes is not None
    window = window_of(plan.ops)
    if window is None:
        return plan.ops  # a resize to the size that an image has already leaves it as it is
    if turns is not None:
        window = stored_windows(window, plan.sizes, turns)
    if corner is not None:
        window = replace(window, top=window.top - corner[0], left=window.left - corner[1])
    if done is not None and done.any():
        resized: Any = plan.ops[1] if (done > 1).any() else window
        numbers: dict[str, Any] = {"top": 0, "left": 0}
        for name in ("height", "width"):
            numbers[name] = np.where(done > 1, getattr(resized, name), getattr(window, name))
        for name, value in numbers.items():
            numbers[name] = np.where(done > 0, value, getattr(window, name)).astype(np.int32)
        window = replace(window, **numbers)
    return window, *plan.ops[1:]
