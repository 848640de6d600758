"""Several images out of one. The batch is then ``[(view, view, ...), target]``, each view [B, C, h, w]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import ConfigError
from .base import F64, Images, Transform, pair, resolves
from .compose import flatten
from .ops import Crop, Flip, Op, Views

__all__ = ["FiveCrop", "MultiView", "TenCrop"]


@dataclass(frozen=True, repr=False)
class MultiView(Transform):
    """Several views of each image, as contrastive and self-distilling methods need them. Each is drawn for itself.

    ``MultiView(pipeline, 2)`` has two views of one pipeline; ``MultiView([a, b, b])`` has one view of each. A pipeline
    is a Compose, a list of transforms, or a transform. The image is decoded once. What comes before is done once, to
    the image; what comes after is done to all views, with the same draws.

    The batch is ``[(view, view, ...), target]``, and view k is [B, C, h_k, w_k].
    """

    transforms: Any
    views: int | None = None

    def __post_init__(self) -> None:
        if self.views is None:
            if not isinstance(self.transforms, (list, tuple)) or not self.transforms:
                raise ConfigError(
                    f"MultiView needs a list with a pipeline for each view, or one pipeline and views=..., not "
                    f"{self.transforms!r}"
                )
            branches = [_pipeline(t) for t in self.transforms]
        else:
            if isinstance(self.views, bool) or not isinstance(self.views, int) or self.views < 1:
                raise ConfigError(f"MultiView: views must be a positive integer, not {self.views!r}")
            branches = [_pipeline(self.transforms)]
        self.set(transforms=tuple(branches))

    @property
    def branches(self) -> tuple[tuple[Transform, ...], ...]:
        """The transforms of each view."""
        found: tuple[tuple[Transform, ...], ...] = self.transforms * (self.views or 1)
        return found

    @property
    def draws(self) -> int:
        return sum(t.draws for branch in self.branches for t in branch)

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        made, out, start = [], [], 0
        for branch in self.branches:
            view = images
            ops: list[Op] = []
            for t in branch:
                if t.on_batch:
                    raise t.refuse("it works on a batch of single images and cannot be part of a view")
                found, view = t.resolve(u[:, start : start + t.draws], view)
                if view.views:
                    raise t.refuse("it makes several views, and is part of one already; make all of them in one place")
                ops += found
                start += t.draws
            made.append(tuple(ops))
            out.append(view)
        return resolves((Views(tuple(made)),), replace(images, views=tuple(out)))

    def __repr__(self) -> str:
        shown = [f"[{', '.join(map(repr, branch))}]" for branch in self.transforms]
        return f"MultiView({shown[0]}, {self.views})" if self.views else f"MultiView([{', '.join(shown)}])"


def _pipeline(value: Any) -> tuple[Transform, ...]:
    return flatten(value if isinstance(value, (list, tuple)) else [value], "MultiView")


@dataclass(frozen=True, repr=False)
class FiveCrop(Transform):
    """Five windows of ``size``: top left, top right, bottom left, bottom right, and the middle. They are views: what
    comes after is done to each, and the batch is ``[(5 × [B, C, h, w]), target]``."""

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        self.set(size=pair(self.size, f"{type(self).__name__}: size"))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        branches = [(crop,) for crop in self._crops(images, False, False)]
        return self._views(branches, images)

    def _crops(self, images: Images, from_right: bool, from_bottom: bool) -> list[Crop]:
        """The windows of the image, or of the mirrored image, with places in the image as it is."""
        assert isinstance(self.size, tuple)
        h, w = self.size
        down, right = images.height - h, images.width - w
        if (down < 0).any() or (right < 0).any():
            at = int(np.argmax((down < 0) | (right < 0)))
            raise self.refuse(
                f"an image of {images.height[at]}x{images.width[at]} pixels is smaller than the crops; put a Resize "
                "before it"
            )
        none = np.zeros_like(down)
        middle = (np.rint(down / 2).astype(np.int64), np.rint(right / 2).astype(np.int64))
        places = [(none, none), (none, right), (down, none), (down, right), middle]
        crops = []
        for top, left in places:
            top, left = down - top if from_bottom else top, right - left if from_right else left
            height, width = (np.full(len(top), n, np.int32) for n in (h, w))
            crops.append(Crop(top.astype(np.int32), left.astype(np.int32), height, width))
        return crops

    def _views(self, branches: Sequence[tuple[Op, ...]], images: Images) -> tuple[tuple[Op, ...], Images]:
        assert isinstance(self.size, tuple)
        height, width = (np.full(len(images.sizes), n, np.int64) for n in self.size)
        view = images.sized(height, width)
        return resolves((Views(tuple(branches)),), replace(images, views=(view,) * len(branches)))


@dataclass(frozen=True, repr=False)
class TenCrop(FiveCrop):
    """:class:`FiveCrop` of the image, then of the image mirrored; top and bottom with ``vertical_flip``."""

    vertical_flip: bool = False

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        # The window first: to mirror it is less work than to mirror the image.
        flip = Flip(np.ones(len(u), np.bool_), axis="vertical" if self.vertical_flip else "horizontal")
        mirrored = self._crops(images, not self.vertical_flip, self.vertical_flip)
        crops = self._crops(images, False, False)
        return self._views([*((crop,) for crop in crops), *((crop, flip) for crop in mirrored)], images)
