"""Transforms that contain others and apply some of them to each image.

Every image gets numbers for all contained transforms, and masks select the ones that apply. The sequence of ops is
therefore the same for all images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from ..errors import ConfigError
from . import fields
from .compose import flatten
from .fields import Converted, Probability, frozen
from .ops import Op
from .ops.op import F64, I64, Mask
from .transform import Images, Ops, Transform

__all__ = ["RandomApply", "RandomChoice"]


@frozen
class _Sequence(Transform):
    """Transforms in a row, as one member of a container."""

    transforms: tuple[Transform, ...]

    @property
    def draws(self) -> int:
        return sum(t.draws for t in self.transforms)

    @property
    def on_batch(self) -> bool:
        return bool(self.transforms) and all(t.on_batch for t in self.transforms)

    @property
    def draws_by_boxes(self) -> bool:
        return any(t.draws_by_boxes for t in self.transforms)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        ops: list[Op] = []
        start = 0
        for t in self.transforms:
            found, images = t.resolved(u[:, start : start + t.draws], images)
            if images.views:
                raise t.refuse("it creates several views of each image; put it into the Compose itself")
            ops.extend(found)
            start += t.draws
        return tuple(ops), images

    def __repr__(self) -> str:
        return f"Compose([{', '.join(map(repr, self.transforms))}])"


def _members(*, flat: bool) -> Callable[[Any, str], tuple[Transform, ...]]:
    """Return a converter from a list to transforms. An item may also be a Compose or a list; it becomes one transform,
    or with ``flat`` its transforms join the list."""

    def convert(value: Any, what: str) -> tuple[Transform, ...]:
        name = what.partition(":")[0]
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
            raise ConfigError(f"{what} must be a list of transforms, not {value!r}")
        given = list(value)
        if not given:
            raise ConfigError(f"{what} is empty; give at least one")
        members: list[Transform] = []
        for item in given:
            parts = flatten(item if isinstance(item, (list, tuple)) else [item], name)
            members += parts if flat else (parts[0] if len(parts) == 1 else _Sequence(parts),)
        batch = {t.on_batch for m in members for t in (m.transforms if isinstance(m, _Sequence) else (m,))}
        if len(batch) == 2:
            raise ConfigError(
                f"{name}: some transforms work on whole batches and some on images; use a {name} for each kind"
            )
        return tuple(members)

    return convert


Members: TypeAlias = Converted[Iterable[Any], tuple[Transform, ...]]


@frozen
class _Container(Transform):
    """Base class of containers: distributes uniform numbers and masks to the members."""

    transforms: Members = Converted(_members(flat=False))

    @property
    def draws(self) -> int:
        return 1 + sum(t.draws for t in self.transforms)

    @property
    def on_batch(self) -> bool:
        return all(t.on_batch for t in self.transforms)

    @property
    def draws_by_boxes(self) -> bool:
        return any(t.draws_by_boxes for t in self.transforms)

    def _uniforms(self, u: F64) -> list[F64]:
        """Return the uniform numbers of each member."""
        ends = np.cumsum([1, *(t.draws for t in self.transforms)]).tolist()
        return [u[:, a:b] for a, b in pairwise(ends)]

    def _masked(self, member: Transform, u: F64, images: Images, mask: Mask, passing: I64) -> tuple[Ops, I64]:
        """Apply a member to the images in ``mask``: (ops, sizes of all images afterwards).

        Args:
            images: incoming images in ``mask``.
            passing: i64[B, 2], sizes of the images outside ``mask``, which other members may have changed.
        """
        ops, after = member.resolved(u, images)
        if after.views:
            raise member.refuse(f"it creates several views of each image and cannot be part of {type(self).__name__}")
        if (after.kind, after.dtype, after.channels) != (images.kind, images.dtype, images.channels):
            raise self.refuse(
                f"{member!r} changes the type of the image ({_type(images)} to {_type(after)}), which all images of a "
                "batch must share; move it out of the container"
            )
        # An image that passes keeps its size at every op.
        return tuple(op.where(mask, passing) for op in ops), np.where(mask[:, None], after.sizes, passing)


def _shares(value: Sequence[float] | None, what: str) -> tuple[float, ...] | None:
    if value is None:
        return None
    p = tuple(float(x) for x in value)
    if not all(0 <= x < np.inf for x in p) or not sum(p):
        raise ConfigError(f"{what} must be numbers of at least 0 with a sum above 0, not {value!r}")
    return p


def _type(images: Images) -> str:
    kind = "PIL image" if images.kind == "pil" else f"{images.dtype} tensor"
    return f"{kind} of {images.channels} channel{'s' * (images.channels > 1)}"


@frozen
class RandomApply(_Container):
    """Apply all of ``transforms`` in a row with probability ``p``, otherwise none of them.

    Takes and returns what its transforms do. They must return the same kind and number of channels that they take.

    Args:
        transforms: transforms or functions, applied in a row.
        p: probability of all of them, 0 to 1.

    >>> from gpupipe.transforms import GaussianBlur
    >>> RandomApply([GaussianBlur(3)], p=0.1).p
    0.1
    """

    transforms: Members = Converted(_members(flat=True))
    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        whole = _Sequence(self.transforms)
        if self.p == 0:
            return (), images
        # Without a mask the graph stays simple, and the transforms may change the type of the image.
        if self.p == 1:
            return whole.resolve(u[:, 1:], images)
        ops, sizes = self._masked(whole, u[:, 1:], images, u[:, 0] < self.p, images.sizes)
        return ops, replace(images, sizes=sizes)


@frozen
class RandomChoice(_Container):
    """Apply one of ``transforms``, drawn with the probabilities ``p``, which need not sum to 1. By default all are
    equally likely.

    Takes and returns what its transforms do. All must return the same kind and number of channels.

    Args:
        transforms: transforms or functions, of which each image draws one.
        p: weight of each transform.

    >>> from gpupipe.transforms import RandomEqualize, RandomInvert
    >>> RandomChoice([RandomInvert(1), RandomEqualize(1)], p=[3, 1]).p
    (3.0, 1.0)
    """

    transforms: Members = Converted(_members(flat=False))
    p: Converted[Sequence[float] | None, tuple[float, ...] | None] = Converted(_shares, default=None)

    def __post_init__(self) -> None:
        if self.p is not None and len(self.p) != len(self.transforms):
            raise ConfigError(
                f"RandomChoice: {len(self.p)} probabilities for {len(self.transforms)} transforms; give one each"
            )

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        p = np.array(self.p or [1.0] * len(self.transforms))
        ends = np.cumsum(p / p.sum())
        ends[np.flatnonzero(p)[-1] :] = 1.0  # whatever the sum rounds to
        # With "right", u = 0 does not choose a first share of 0.
        choice = np.searchsorted(ends, u[:, 0], side="right")
        ops: list[Op] = []
        sizes = images.sizes
        # An image takes one member only, so each member resolves for the incoming images.
        for k, (member, numbers) in enumerate(zip(self.transforms, self._uniforms(u), strict=True)):
            if p[k] == 0:
                continue  # the graph does not need it
            found, sizes = self._masked(member, numbers, images, choice == k, sizes)
            ops.extend(found)
        return tuple(ops), replace(images, sizes=sizes)
