"""The window of a first crop, which is the only part of an image that must be decoded, or kept after decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..datasets.dataset import Dataset
from ..transforms.ops import Crop, Op
from ..types import Plan

I32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
U8 = npt.NDArray[np.uint8]


def window_of(ops: Sequence[Op]) -> Crop | None:
    """Return the first op if it crops a window inside the image."""
    first = ops[0] if ops else None
    return first if isinstance(first, Crop) and not first.padded else None


def stored_windows(window: Crop, sizes: I32, turns: U8) -> Crop:
    """Convert windows of upright images to windows of the images as stored, before rotation.

    Args:
        window: B windows.
        sizes: i32[B, 2], height and width of the upright images.
        turns: u8[B], EXIF orientation, 1 to 8.
    """
    top, left = window.top, window.left
    below = sizes[:, 0] - top - window.height
    right = sizes[:, 1] - left - window.width
    sideways = turns >= 5
    return replace(
        window,
        # By orientation: the edge of the upright image that lies at the top, and at the left, of the stored one.
        top=np.choose(turns - 1, (top, top, below, below, left, right, right, left)).astype(np.int32),
        left=np.choose(turns - 1, (left, right, right, left, top, top, below, below)).astype(np.int32),
        height=np.where(sideways, window.width, window.height),
        width=np.where(sideways, window.height, window.width),
    )


def turns_of(dataset: Dataset, plan: Plan, rows: Mask | None = None) -> U8:
    """Return u8[B], the EXIF orientation of a plan's samples, 1 to 8; 1 for all outside ``rows`` bool[B]."""
    assert dataset.orientations is not None
    turns = dataset.orientations[plan.indices]
    return turns if rows is None else np.where(rows, turns, np.uint8(1))


def ops_left(plan: Plan, done: U8 | None = None, *, turns: U8 | None = None) -> tuple[Op, ...]:
    """Return a plan's ops for images as an engine gets them: equally many, and none is applied twice.

    Args:
        done: u8[B], number of first ops already applied to each image: a crop, or a crop and a resize, or a resize.
        turns: u8[B], rotation by the engine after the crop; see :func:`stored_windows`. 1 for images with applied
            ops.
    """
    assert plan.ops is not None and plan.sizes is not None
    window = window_of(plan.ops)
    if window is None:
        return plan.ops  # a resize to the current size changes nothing
    if turns is not None:
        window = stored_windows(window, plan.sizes, turns)
    if done is not None and done.any():
        # An image with applied ops is as large as these left it, so its crop becomes the whole of it.
        resized: Any = plan.ops[1] if (done > 1).any() else window
        numbers: dict[str, Any] = {"top": 0, "left": 0}
        for name in ("height", "width"):
            numbers[name] = np.where(done > 1, getattr(resized, name), getattr(window, name))
        for name, value in numbers.items():
            numbers[name] = np.where(done > 0, value, getattr(window, name)).astype(np.int32)
        window = replace(window, **numbers)
    return window, *plan.ops[1:]
