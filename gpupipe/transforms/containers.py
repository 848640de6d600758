"""Transforms that hold others, and let each image have some of them.

Every image gets the numbers of all of them, and masks say which of them count for it: so the sequence of the ops is
the same for all images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import ConfigError
from .base import F64, I64, Images, Transform, check_probability, resolves
from .compose import flatten
from .ops import Op
from .ops.base import Mask

__all__ = ["RandomApply", "RandomChoice", "RandomOrder"]

MOST_IN_ORDER = 4


@dataclass(frozen=True, repr=False)
class _Sequence(Transform):
    """Transforms one after another, as one of several of a container."""

    transforms: tuple[Transform, ...]

    @property
    def draws(self) -> int:
        return sum(t.draws for t in self.transforms)

    @property
    def on_batch(self) -> bool:
        return bool(self.transforms) and all(t.on_batch for t in self.transforms)

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        ops: list[Op] = []
        start = 0
        for t in self.transforms:
            found, images = t.resolve(u[:, start : start + t.draws], images)
            if images.views:
                raise t.refuse("it makes several views of each image, and belongs into the Compose itself")
            ops.extend(found)
            start += t.draws
        return resolves(tuple(ops), images)

    def __repr__(self) -> str:
        return f"Compose([{', '.join(map(repr, self.transforms))}])"


@dataclass(frozen=True, repr=False)
class _Container(Transform):
    """``transforms`` are any that a Compose takes, each of which may also be a Compose or a list."""

    transforms: Any

    @property
    def members(self) -> tuple[Transform, ...]:
        members: tuple[Transform, ...] = self.transforms
        return members

    @property
    def own(self) -> int:
        """How many uniforms it needs itself."""
        return 1

    @property
    def draws(self) -> int:
        return self.own + sum(t.draws for t in self.members)

    @property
    def on_batch(self) -> bool:
        return all(t.on_batch for t in self.members)

    def _take_in(self, value: Any, *, flat: bool = False) -> None:
        name = type(self).__name__
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
            raise ConfigError(f"{name}: transforms must be a list of transforms, not {value!r}")
        given = list(value)
        if not given:
            raise ConfigError(f"{name}: transforms is empty; give at least one")
        members: list[Transform] = []
        for item in given:
            parts = flatten(item if isinstance(item, (list, tuple)) else [item], name)
            members += parts if flat else (parts[0] if len(parts) == 1 else _Sequence(parts),)
        batch = {t.on_batch for m in members for t in (m.transforms if isinstance(m, _Sequence) else (m,))}
        if len(batch) == 2:
            raise ConfigError(f"{name}: some transforms work on whole batches and some on images; make two of it")
        self.set(transforms=tuple(members))

    def _uniforms(self, u: F64) -> list[F64]:
        """Those of each member."""
        ends = np.cumsum([self.own, *(t.draws for t in self.members)]).tolist()
        return [u[:, a:b] for a, b in pairwise(ends)]

    def _masked(
        self, member: Transform, u: F64, images: Images, mask: Mask, passing: I64
    ) -> tuple[tuple[Op, ...], I64]:
        """What a member does, to the images whose mask is set only: (ops, sizes of all images after them).

        Args:
            images: what comes in where the mask is set.
            passing: i64[B, 2], sizes of what comes in where it is not, which may have been changed by others.
        """
        ops, after = member.resolve(u, images)
        if after.views:
            raise member.refuse(f"it makes several views of each image and cannot be within {type(self).__name__}")
        if (after.kind, after.dtype, after.channels) != (images.kind, images.dtype, images.channels):
            raise self.refuse(
                f"{member!r} changes the type of the image ({_type(images)} to {_type(after)}), which all images of a "
                "batch must share; take it out"
            )
        # An image that passes has the same size at every one of the ops.
        return tuple(op.where(mask, passing) for op in ops), np.where(mask[:, None], after.sizes, passing)


def _type(images: Images) -> str:
    kind = "PIL image" if images.kind == "pil" else f"{images.dtype} tensor"
    return f"{kind} of {images.channels} channel{'s' * (images.channels > 1)}"


@dataclass(frozen=True, repr=False)
class RandomApply(_Container):
    """All of ``transforms``, one after another, with probability ``p``; otherwise none of them."""

    p: float = 0.5

    def __post_init__(self) -> None:
        self._take_in(self.transforms, flat=True)
        self.set(p=check_probability(self.p, "RandomApply: p"))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        whole = _Sequence(self.members)
        if self.p == 0:
            return resolves((), images)
        if self.p == 1:
            return whole.resolve(u[:, 1:], images)
        ops, sizes = self._masked(whole, u[:, 1:], images, u[:, 0] < self.p, images.sizes)
        return resolves(ops, replace(images, sizes=sizes))


@dataclass(frozen=True, repr=False)
class RandomChoice(_Container):
    """One of ``transforms``, with probabilities ``p``; equal ones where none are given. They need not sum to 1."""

    p: Sequence[float] | None = None

    def __post_init__(self) -> None:
        self._take_in(self.transforms)
        if self.p is None:
            return
        p = tuple(float(x) for x in self.p)
        if len(p) != len(self.members):
            raise ConfigError(f"RandomChoice: {len(p)} probabilities for {len(self.members)} transforms; give one each")
        if not all(0 <= x < np.inf for x in p) or not sum(p):
            raise ConfigError(f"RandomChoice: p must be numbers of at least 0 with a sum above 0, not {self.p!r}")
        self.set(p=p)

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        p = np.array(self.p if self.p is not None else [1.0] * len(self.members))
        ends = np.cumsum(p / p.sum())
        ends[np.flatnonzero(p)[-1] :] = 1.0  # whatever the sum was rounded to
        choice = np.searchsorted(ends, u[:, 0], side="right")
        ops: list[Op] = []
        sizes = images.sizes
        for k, (member, numbers) in enumerate(zip(self.members, self._uniforms(u), strict=True)):
            if p[k] == 0:
                continue
            found, sizes = self._masked(member, numbers, images, choice == k, sizes)
            ops.extend(found)
        return resolves(tuple(ops), replace(images, sizes=sizes))


@dataclass(frozen=True, repr=False)
class RandomOrder(_Container):
    """All of ``transforms``, in a random order for each image.

    The graph must have every transform at every place: n of them cost n times n steps, each on an n-th of the images.
    So there may be four at most.
    """

    def __post_init__(self) -> None:
        self._take_in(self.transforms)
        n = len(self.members)
        if n > MOST_IN_ORDER:
            raise ConfigError(
                f"RandomOrder: {n} transforms would become {n}² = {n * n} steps for every image, because each can come "
                f"at every place; use {MOST_IN_ORDER} at most, such as two RandomOrder one after another, or a "
                "RandomChoice between a few fixed orders"
            )

    @property
    def own(self) -> int:
        return len(self.members)

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        order = np.argsort(u[:, : self.own], axis=1, kind="stable")  # a random permutation for each image
        ops: list[Op] = []
        for place in range(self.own):
            sizes = images.sizes
            for k, (member, numbers) in enumerate(zip(self.members, self._uniforms(u), strict=True)):
                found, sizes = self._masked(member, numbers, images, order[:, place] == k, sizes)
                ops.extend(found)
            images = replace(images, sizes=sizes)
        return resolves(tuple(ops), images)
