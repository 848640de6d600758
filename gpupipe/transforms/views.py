"""Several images from one. The batch is then ``[(view, view, ...), target]``, each view [B, C,
h, w]."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import ConfigError
from .compose import flatten
from .fields import frozen
from .ops import Op, Views
from .ops.op import F64
from .transform import Images, Ops, Transform

__all__ = ["MultiView"]


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
