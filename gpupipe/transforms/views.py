"""Transforms that create several images from one. The batch is then ``[(view, view, ...), target]``, each view [B, C,
h, w]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import ConfigError
from . import fields
from .compose import flatten
from .fields import Converted, Pair, frozen
from .numbers import everywhere, filled, i32
from .ops import Crop, Flip, Op, Views
from .ops.op import F64
from .transform import Images, Ops, Transform

__all__ = ["FiveCrop", "MultiView", "TenCrop"]


@frozen
class MultiView(Transform):
    """Create several views of each image, as contrastive and self-distilling methods need them. Each view has its own
    draws.

    ``MultiView(pipeline, 2)`` creates two views with one pipeline; ``MultiView([a, b, b])`` creates one view with each.
    A pipeline is a Compose, a list of transforms, or a transform. The image is decoded once. Earlier transforms apply
    once, to the image; later ones apply to all views, with the same draws.

    The batch is ``[(view, view, ...), target]``, and view k is [B, C, h_k, w_k].

    Takes an image, and returns a tuple of images. A batch is a tuple of tensors ``[B, C, H, W]``.

    Args:
        transforms: a pipeline for all views, or one for each.
        views: number of views, if there is one pipeline.

    >>> from gpupipe.transforms import RandomResizedCrop
    >>> len(MultiView([RandomResizedCrop(224)] * 2 + [RandomResizedCrop(96)] * 6).branches)
    8
    """

    transforms: Any
    views: int | None = None

    def __post_init__(self) -> None:
        if self.views is None:
            if not isinstance(self.transforms, (list, tuple)) or not self.transforms:
                raise ConfigError(
                    f"MultiView needs a list with one pipeline per view, or one pipeline and views=..., not "
                    f"{self.transforms!r}"
                )
            branches = [_pipeline(t) for t in self.transforms]
        else:
            if isinstance(self.views, bool) or not isinstance(self.views, int) or self.views < 1:
                raise ConfigError(f"MultiView: views must be a positive integer, not {self.views!r}")
            branches = [_pipeline(self.transforms)]
        object.__setattr__(self, "transforms", tuple(branches))  # depends on the other field

    @property
    def branches(self) -> tuple[tuple[Transform, ...], ...]:
        """Transforms of each view."""
        found: tuple[tuple[Transform, ...], ...] = self.transforms * (self.views or 1)
        return found

    @property
    def draws(self) -> int:
        return sum(t.draws for branch in self.branches for t in branch)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        made, out, start = [], [], 0
        for branch in self.branches:
            view = images
            ops: list[Op] = []
            for t in branch:
                if t.on_batch:
                    raise t.refuse("it works on a batch of single images and cannot be part of a view")
                found, view = t.resolved(u[:, start : start + t.draws], view)
                if view.views:
                    raise t.refuse("it creates views within a view; create all views in one transform")
                ops += found
                start += t.draws
            made.append(tuple(ops))
            out.append(view)
        return (Views(tuple(made)),), replace(images, views=tuple(out))

    def __repr__(self) -> str:
        shown = [f"[{', '.join(map(repr, branch))}]" for branch in self.transforms]
        return f"MultiView({shown[0]}, {self.views})" if self.views else f"MultiView([{', '.join(shown)}])"


def _pipeline(value: Any) -> tuple[Transform, ...]:
    return flatten(value if isinstance(value, (list, tuple)) else [value], "MultiView")


@frozen
class FiveCrop(Transform):
    """Crop the four corners and the center to ``size``: top left, top right, bottom left, bottom right, center.

    The crops are views: later transforms apply to each, and the batch is ``[(5 × [B, C, h, w]), target]``.

    Takes a PIL image or a tensor ``[1 or 3, H, W]``, and returns five of ``size``. A batch is a tuple of five tensors.

    Args:
        size: height and width, or one number for both.

    >>> FiveCrop(224)
    FiveCrop(size=(224, 224))
    """

    size: Pair = Converted(fields.pair)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        branches = [(crop,) for crop in self._crops(images, False, False)]
        return self._views(branches, images)

    def _crops(self, images: Images, from_right: bool, from_bottom: bool) -> list[Crop]:
        """Return the crops of the image, or of the mirrored image, with positions in the original image."""
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
            # The mirror image begins at the far edge of the original.
            top, left = down - top if from_bottom else top, right - left if from_right else left
            height, width = (i32(filled(len(top), n)) for n in (h, w))
            crops.append(Crop(i32(top), i32(left), height, width))
        return crops

    def _views(self, branches: Sequence[tuple[Op, ...]], images: Images) -> tuple[Ops, Images]:
        height, width = (filled(len(images.sizes), n) for n in self.size)
        view = images.sized(height, width)
        return (Views(tuple(branches)),), replace(images, views=(view,) * len(branches))


@frozen
class TenCrop(FiveCrop):
    """Crop the image like :class:`FiveCrop`, and then its mirror image, which ``vertical_flip`` flips top to bottom.

    Takes a PIL image or a tensor ``[1 or 3, H, W]``, and returns ten of ``size``. A batch is a tuple of ten tensors.

    Args:
        size: height and width, or one number for both.
        vertical_flip: flip top to bottom instead of left to right.

    >>> TenCrop(224).vertical_flip
    False
    """

    vertical_flip: bool = False

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        # Crop first, because mirroring the crop is less work than mirroring the image.
        flip = Flip(everywhere(len(u)), axis="vertical" if self.vertical_flip else "horizontal")
        mirrored = self._crops(images, not self.vertical_flip, self.vertical_flip)
        crops = self._crops(images, False, False)
        return self._views([*((crop,) for crop in crops), *((crop, flip) for crop in mirrored)], images)
