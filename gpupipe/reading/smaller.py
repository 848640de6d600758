"""Optional decoding of large photographs at a reduced size, if a crop or resize shrinks them much.

libjpeg can turn the coefficients of 8 x 8 pixels into 4 x 4, 2 x 2 or one, by dropping frequencies that a smaller image
cannot hold. That saves most of the work on pixels, but not the reading of the file's bits. The crop's window is located
in the smaller image, at fractions of its pixels, and resized by Pillow. The result differs from a full decode by at
most :data:`PROMISE`. Engines get the finished pixels, so they agree bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..datasets.dataset import Dataset
from ..kernels.picture import pil
from ..transforms.compose import Compose
from ..transforms.ops import Resize
from ..transforms.ops.promise import Bound, Tolerance
from ..types import Plan
from .decoder import Part, Wanted
from .windows import window_of

U8 = npt.NDArray[np.uint8]

MARGIN = 2
"""Minimum number of decoded pixels, along each side, per pixel of the resize's output."""
FACTORS = (8, 4, 2)
_WHY = "libjpeg drops the frequencies that the smaller image cannot hold; a resize only dampens them"
PROMISE: Mapping[str, Tolerance] = {
    "bilinear": Tolerance(Bound(60, 0.8, 0.15), reason=_WHY),
    "bicubic": Tolerance(Bound(60, 0.9, 0.17), reason=_WHY),
}
"""Largest difference between a reduced decode and a full decode, both resized by the reference, by interpolation.

See :mod:`gpupipe.transforms.ops.promise`. ``mean`` and ``over_1`` hold for photographs together.
"""


@dataclass(frozen=True, eq=False)
class Smaller:
    """Selects images of a dataset to decode at a reduced size, and resizes them. Picklable and thread-safe."""

    dataset: Dataset
    codes: npt.NDArray[np.bool_]
    """bool[256]: codings of the dataset that are JPEG and can be reduced."""
    done: int
    """Number of a plan's ops that :meth:`resized` includes: the resize, and a crop before it."""

    @classmethod
    def of(cls, dataset: Dataset, pipeline: Compose) -> Smaller | None:
        """Return ``None`` if nothing can be reduced; see :func:`why_not`."""
        if why_not(dataset, pipeline):
            return None
        assert dataset.codings is not None
        return cls(dataset, _codes(dataset), 1 + (window_of(pipeline.skeleton) is not None))

    def factors(self, plan: Plan) -> U8:
        """Return u8[B], the reduction of each image: 1, 2, 4 or 8."""
        if plan.ops is None or plan.sizes is None:
            return np.ones(len(plan), np.uint8)
        assert self.dataset.codings is not None
        window, size = window_of(plan.ops), self.resized_to(plan)
        have = plan.sizes if window is None else np.stack([window.height, window.width], axis=1)
        found = factors_of(have, size)
        found[~self.codes[self.dataset.codings[0][plan.indices]]] = 1
        return found

    def resized_to(self, plan: Plan) -> npt.NDArray[np.int32]:
        """Return i32[B, 2], height and width of the results of :meth:`resized`."""
        assert plan.ops is not None
        resize = plan.ops[self.done - 1]
        assert isinstance(resize, Resize)
        return np.stack([resize.height, resize.width], axis=1)

    def resized(self, part: Part, wanted: Wanted) -> Image.Image:
        """Return the window of a reduced image in RGB, after the ops that are :attr:`done`."""
        assert wanted.plan.ops is not None
        resize = wanted.plan.ops[self.done - 1]
        assert isinstance(resize, Resize)
        return resized(pil(part.picture), wanted.inside(part.top, part.left), resize, wanted.row)


def factors_of(have: npt.NDArray[Any], size: npt.NDArray[Any]) -> U8:
    """Return u8[B], the reduction by which images may be decoded: 1, 2, 4 or 8.

    Args:
        have: [B, 2], height and width of windows.
        size: [B, 2], what they are resized to.
    """
    # have / size is how much the resize shrinks. The decoder may take all of it but MARGIN.
    # The edge that shrinks less decides.
    room = (have / size).min(axis=1) / MARGIN
    return np.select([room >= factor for factor in FACTORS], FACTORS, 1).astype(np.uint8)


def resized(picture: Image.Image, box: tuple[float, float, float, float], resize: Resize, row: int) -> Image.Image:
    """Return a window of a reduced image after a resize. ``box``: top, left, bottom and right, in its pixels."""
    top, left, bottom, right = box
    # A filter must not see pixels outside the window, except fractions at its rim.
    first, start = math.floor(top), math.floor(left)
    window = picture.crop((start, first, math.ceil(right), math.ceil(bottom)))
    size = int(resize.width[row]), int(resize.height[row])
    within = left - start, top - first, right - start, bottom - first
    return window.resize(size, Image.Resampling[resize.interpolation.upper()], within)


def can_be_reduced(resize: Any) -> bool:
    """Return whether a resize can continue from a smaller image."""
    return (
        isinstance(resize, Resize)
        and resize.interpolation in PROMISE
        and (bool(resize.antialias) or resize.kind == "pil")
    )


def why_not(dataset: Dataset, pipeline: Compose) -> str:
    """Return why no image can be reduced; empty if some may be."""
    ops = pipeline.skeleton
    done = int(window_of(ops) is not None)
    resize = ops[done] if len(ops) > done else None
    if not isinstance(resize, Resize):
        return "the transforms do not begin with a resize, or a crop that is resized"
    if not can_be_reduced(resize):
        return f"only resizes that are {' or '.join(PROMISE)}, with antialias, can continue from a smaller image"
    if dataset.codings is None or not _codes(dataset).any():
        return "no file is a plain JPEG"
    return ""


def _codes(dataset: Dataset) -> npt.NDArray[np.bool_]:
    """Return bool[256]. Unusual JPEGs are excluded: a lossless one cannot be reduced."""
    assert dataset.codings is not None
    codes = np.zeros(256, np.bool_)
    codings = dataset.codings[1][:255]
    codes[: len(codings)] = [coding.is_jpeg and not coding.notes for coding in codings]
    return codes
