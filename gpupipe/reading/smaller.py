"""Large photographs decoded smaller, if a crop or a resize takes many of their pixels for one of its own: opt-in.

libjpeg can make 4 x 4, 2 x 2 or one pixel of the coefficients of 8 x 8, by leaving out the frequencies that a smaller
image cannot hold. That saves most of the work on pixels, and nothing of reading the file's bits. The crop's window is
taken where it lies in the smaller image, at fractions of its pixels, and resized there by Pillow. What comes out is not
what a full decode gives, but within :data:`PROMISE` of it; engines are given the finished pixels, so they agree on them
bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..datasets.base import Dataset
from ..kernels.picture import pil
from ..transforms.compose import Compose
from ..transforms.ops import Resize
from ..transforms.ops.promise import Bound, Tolerance
from ..types import Plan
from .decoder import Part, Wanted
from .windows import window_of

__all__ = ["MARGIN", "PROMISE", "Smaller", "remark", "why_not"]

U8 = npt.NDArray[np.uint8]

MARGIN = 2
"""What is decoded has at least so many pixels along each side for each one that the resize makes of them."""
FACTORS = (8, 4, 2)
_WHY = "libjpeg drops the frequencies that the smaller image cannot hold; a resize only dampens them"
PROMISE: Mapping[str, Tolerance] = {
    "bilinear": Tolerance(Bound(60, 0.8, 0.15), reason=_WHY),
    "bicubic": Tolerance(Bound(60, 0.9, 0.17), reason=_WHY),
}
"""By interpolation: how far an image that was decoded smaller may be from itself decoded in full, as the reference
resizes it. See :mod:`gpupipe.transforms.ops.promise`. ``mean`` and ``over_1`` hold for photographs together."""
_LOOKED_AT = 256


@dataclass(frozen=True, eq=False)
class Smaller:
    """Says which images of a dataset are decoded smaller, and resizes them. Picklable; safe in any thread."""

    dataset: Dataset
    codes: npt.NDArray[np.bool_]
    """bool[256]: which of the dataset's codings are JPEG files that can be decoded smaller."""
    done: int
    """So many of a plan's ops are done to what :meth:`resized` gives: the resize, and a crop before it."""

    @classmethod
    def of(cls, dataset: Dataset, pipeline: Compose) -> Smaller | None:
        """``None`` if nothing can be decoded smaller; see :func:`why_not`."""
        if why_not(dataset, pipeline):
            return None
        assert dataset.codings is not None
        return cls(dataset, _codes(dataset), 1 + (window_of(pipeline.skeleton) is not None))

    def factors(self, plan: Plan) -> U8:
        """u8[B]: how many times smaller each image is decoded: 1, 2, 4 or 8."""
        if plan.ops is None or plan.sizes is None:
            return np.ones(len(plan), np.uint8)
        assert self.dataset.codings is not None
        window, size = window_of(plan.ops), self.resized_to(plan)
        have = plan.sizes if window is None else np.stack([window.height, window.width], axis=1)
        room = (have / size).min(axis=1) / MARGIN
        room[~self.codes[self.dataset.codings[0][plan.indices]]] = 1
        return np.select([room >= factor for factor in FACTORS], FACTORS, 1).astype(np.uint8)

    def resized_to(self, plan: Plan) -> npt.NDArray[np.int32]:
        """i32[B, 2]: height and width of what :meth:`resized` gives."""
        assert plan.ops is not None
        resize = plan.ops[self.done - 1]
        assert isinstance(resize, Resize)
        return np.stack([resize.height, resize.width], axis=1)

    def resized(self, part: Part, wanted: Wanted) -> Image.Image:
        """The window of an image that was decoded smaller, in RGB, after the ops that are :attr:`done`."""
        assert wanted.plan.ops is not None
        resize = wanted.plan.ops[self.done - 1]
        assert isinstance(resize, Resize)
        top, left, bottom, right = wanted.inside(part.top, part.left)
        # A filter must not see what lies outside of the window, but for parts of a pixel at its rim.
        first, start = math.floor(top), math.floor(left)
        window = pil(part.picture).crop((start, first, math.ceil(right), math.ceil(bottom)))
        size = int(resize.width[wanted.row]), int(resize.height[wanted.row])
        box = left - start, top - first, right - start, bottom - first
        return window.resize(size, Image.Resampling[resize.interpolation.upper()], box)


def remark(dataset: Dataset, pipeline: Compose) -> str:
    """How many images are decoded smaller, of some that are looked at, or why none is; for ``repr`` and the report."""
    scaled, sizes = Smaller.of(dataset, pipeline), dataset.sizes
    if scaled is None or sizes is None:
        return f"scaled: every image is decoded in full, because {why_not(dataset, pipeline)}"
    some = np.unique(np.linspace(0, len(sizes) - 1, _LOOKED_AT).astype(np.int64))
    some = some[sizes[some].min(axis=1) > 0]
    plan = Plan(0, 0, 0, some, some.astype(np.uint64), len(some), 0)
    ops, *_ = pipeline.resolve(plan.seed, plan.epoch, plan.keys, sizes[some])
    factors = scaled.factors(plan.with_sizes(sizes[some], ops))
    each = ", ".join(f"{n:,} at 1/{f}" for f in reversed(FACTORS) if (n := int((factors == f).sum())))
    return f"scaled: decoded smaller, of {len(some):,} images that were looked at: {each or 'none'}"


def why_not(dataset: Dataset, pipeline: Compose) -> str:
    """Why no image can be decoded smaller; empty if some may be."""
    ops = pipeline.skeleton
    done = int(window_of(ops) is not None)
    resize = ops[done] if len(ops) > done else None
    if not isinstance(resize, Resize):
        return "the transforms do not begin with a resize, or a crop that is resized"
    if resize.interpolation not in PROMISE or not (resize.antialias or resize.kind == "pil"):
        return f"only resizes that are {' or '.join(PROMISE)}, with antialias, can go on from a smaller image"
    if dataset.codings is None or not _codes(dataset).any():
        return "no file is a plain JPEG"
    return ""


def _codes(dataset: Dataset) -> npt.NDArray[np.bool_]:
    """bool[256]. A JPEG with anything odd is not asked for what is asked for less often: a lossless one cannot be
    decoded smaller."""
    assert dataset.codings is not None
    codes = np.zeros(256, np.bool_)
    codings = dataset.codings[1][:255]
    codes[: len(codings)] = [coding.is_jpeg and not coding.whole.notes for coding in codings]
    return codes
