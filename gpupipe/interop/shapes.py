"""How the images of a sample stand in it, and which transforms they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from .. import transforms as ours
from ..codecs.unread import unread
from ..datasets.sample_form import (
    Arranged as ArrangedForm,
    AsImage,
    Rest,
    SampleForm,
    View,
    leaves,
    rebuilt,
    with_values,
)
from ..transforms.compose import Compose
from .chains import Chains
from .pending import Arranged, Copied, OneOf, Pending, PendingImage, PendingTensor, Run, Source, Step, running
from .same_names import Refused
from .transforms import Translated
from .unread_arrays import UnreadArray, unread_arrays

__all__ = ["Shape", "modes_of", "of_unread", "placed", "read", "rest_of", "shape_of", "slots_of", "sources_of"]

_MOST_IMAGES = 16
"""Of one sample."""
_MOST_WASTE = 2
"""Results that are made for each one that a sample has, if its images go through different transforms: an engine does
all of them to every image."""


@dataclass(frozen=True)
class Shape:
    """What the samples of a dataset have in common.

    Attributes:
        tree: containers that lead to images, as tuples, with tokens in the place of images and of everything else.
        slots: for each different result the number of its image among those of the sample, and the places of its
            transforms.
        shared: how many transforms all results of one image have together, in one run.
    """

    tree: Any
    slots: tuple[tuple[int, tuple[int, ...]], ...]
    shared: int

    @property
    def images(self) -> int:
        """How many images a sample is made of."""
        return 1 + max((source for source, _ in self.slots), default=-1)

    @property
    def results(self) -> list[tuple[int, int]]:
        """For each slot the number of its image, and which of the results that are made of every image it is."""
        return self._results[1]

    @property
    def _results(self) -> tuple[list[tuple[int, ...]], list[tuple[int, int]]]:
        """Places of the transforms that every image goes through, one way for each result; and what ``results`` are."""
        ways, chosen = list[tuple[int, ...]](), list[tuple[int, int]]()
        for source, places in self.slots:
            free = [way for way, other in enumerate(ways) if other == places and (source, way) not in chosen]
            if not free:
                ways.append(places)
            chosen.append((source, free[0] if free else len(ways) - 1))
        return ways, chosen

    def pipeline(self, chains: Chains, channels: int = 3) -> Translated:
        """What makes the results of one image. Raises :class:`Refused`."""
        found = [chains.translated(places, channels) for places in self._results[0]]
        if len(found) == 1:
            return found[0]
        shared = self.slots[0][1][: self.shared]
        first = chains.translated(shared, channels).pipeline.transforms if shared else ()
        count = min((_alike(first, one.pipeline.transforms) for one in found), default=0)
        if any(transform.draws for transform in first[count:]):
            raise Refused("its transforms do not fit together", "transform-order")
        first = first[:count]
        branches = [Compose(one.pipeline.transforms[count:]) for one in found]
        return Translated(Compose([*first, ours.MultiView(branches)]), None, found[0].kind)

    def check(self, sample: Any) -> None:
        """Raise :class:`Refused` if no engine can make such samples; see :func:`shape_of`."""
        if self.images > _MOST_IMAGES:
            raise Refused(f"its samples are of {self.images} images each", "views")
        if self.images * len(self._results[0]) > _MOST_WASTE * len(self.slots):
            raise Refused("its samples are of several images each, which go through many different transforms", "views")
        if self.shared < 0:
            raise Refused(
                "some of its images share the first of their transforms with some others, and not with all", "views"
            )
        several = any(isinstance(pending, OneOf) for pending in _pendings(sample))
        if several and len(self.slots) > 1:
            raise Refused("several of its transforms make several views each", "views")

    def form(self, sample: Any) -> SampleForm | None:
        """How a batch is put together; ``None`` if it is ``[images, target]``."""
        steps = slots_of(sample)
        if _is_pair(sample) and isinstance(_pending(sample[0]), Step):
            return None
        numbers = {id(step): number for number, step in enumerate(steps)}

        def node(pending: Pending) -> Any:
            if isinstance(pending, Arranged):
                return ArrangedForm(pending.name, tuple(map(node, map(_original, pending.parts))), pending.arguments)
            return View(pending.number if isinstance(pending, OneOf) else numbers[id(pending)])

        def place(part: Any, path: tuple[Any, ...]) -> Any:
            if isinstance(part, PendingImage):
                return AsImage(View(numbers[id(part.pending)]))
            return node(_pending(part)) if isinstance(part, PendingTensor) else Rest(path)

        return SampleForm(placed(place, sample))


def shape_of(sample: Any, steps: list[Step] | None = None) -> Shape:
    """The shape of a sample, whose slots are ``steps``."""
    steps = slots_of(sample) if steps is None else steps
    sources = {id(source): number for number, source in enumerate(sources_of(steps))}
    numbers = {id(step): number for number, step in enumerate(steps)}

    def token(pending: Pending) -> Any:
        if isinstance(pending, Arranged):
            return (pending.name, pending.arguments, *map(token, map(_original, pending.parts)))
        if isinstance(pending, OneOf):
            return ("one of", numbers[id(pending.step)], pending.number)
        return ("view", numbers[id(pending)])

    def leaf(part: Any) -> Any:
        if isinstance(part, (PendingTensor, PendingImage)):
            return type(part).__name__, token(_pending(part))
        return "rest"

    slots = tuple((sources[id(step.source)], step.places) for step in steps)
    return Shape(_tokens(leaf, sample), slots, _shared(steps))


def slots_of(sample: Any) -> list[Step]:
    """The different results of transforms that stand in a sample, in order."""
    found: dict[int, Step] = {}
    for pending in _pendings(sample):
        step = pending.step if isinstance(pending, OneOf) else pending
        assert isinstance(step, Step)
        found.setdefault(id(step), step)
    return list(found.values())


def sources_of(steps: list[Step]) -> list[Source]:
    """The different images that they are made of, in order."""
    return list({id(step.source): step.source for step in steps}.values())


def modes_of(sample: Any) -> frozenset[str]:
    """Of the images that a sample is made of, as Pillow names them."""
    images = (source.image for source in sources_of(slots_of(sample)))
    return frozenset(image.mode if isinstance(image, Image.Image) else "RGB" for image in images)


def of_unread(sample: Any) -> bool:
    """Whether it is made of arrays that are not read."""
    return any(type(source.image) is UnreadArray for source in sources_of(slots_of(sample)))


def rest_of(sample: Any) -> list[Any]:
    """What stands in a sample beside its images, in order."""
    return [part for part in leaves(sample) if not isinstance(part, (PendingTensor, PendingImage))]


def _alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many of the first ones are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _shared(steps: list[Step]) -> int:
    """With how many common transforms all of them begin; -1 if some have more in common than others."""
    if len(steps) < 2:
        return 0
    depths = {
        sum(a is b for a, b in zip(one.chain, other.chain, strict=False))
        for i, one in enumerate(steps)
        for other in steps[:i]
    }
    return depths.pop() if len(depths) == 1 else -1


def _pending(part: Any) -> Pending:
    """Of a copy what it is a copy of: in a batch, every place has pixels of its own."""
    return _original(object.__getattribute__(part, "pending"))


def _original(pending: Pending) -> Pending:
    return _original(pending.of) if isinstance(pending, Copied) else pending


def _pendings(sample: Any) -> Iterator[Pending]:
    """Results of transforms, also those that something is arranged of."""

    def inner(pending: Pending) -> Iterator[Pending]:
        if isinstance(pending, Arranged):
            for part in map(_original, pending.parts):
                yield from inner(part)
        else:
            yield pending

    for part in leaves(sample):
        if isinstance(part, (PendingTensor, PendingImage)):
            yield from inner(_pending(part))


def read(ds: Any, index: int, run: Run, *, arrays: bool) -> Any:
    """``ds[index]``, with results of transforms that are pending.

    Args:
        arrays: with arrays of images that are not read, if all of them go to transforms and nothing else asks for them.
    """
    with unread(), running(run):
        if arrays:
            with suppress(Exception), unread_arrays() as made:
                sample = ds[index]
                used = [source.image.made for source in run.sources if type(source.image) is UnreadArray]
                if all(one in used and not one.looked for one in made):
                    return sample
            run.restart()
        return ds[index]


# ---- containers


_NO_CONTAINERS = (PendingTensor, PendingImage, int, float, str, bool, torch.Tensor)


def _holds_images(part: Any) -> bool:
    if type(part) in _NO_CONTAINERS or not isinstance(part, (list, tuple, Mapping)):
        return False
    return any(isinstance(leaf, (PendingTensor, PendingImage)) for leaf in leaves(part))


def placed(change: Callable[[Any, tuple[Any, ...]], Any], part: Any, path: tuple[Any, ...] = ()) -> Any:
    """The containers that lead to images, with ``change(part, path)`` of each image and of each part without any."""
    if not _holds_images(part):
        return change(part, path)
    if isinstance(part, Mapping):
        made = {key: placed(change, value, (*path, key)) for key, value in part.items()}
        return with_values(part, made)
    return rebuilt(part, [placed(change, value, (*path, i)) for i, value in enumerate(part)])


def _tokens(leaf: Callable[[Any], Any], part: Any) -> Any:
    """A tree, as tuples, without what has no image in it."""
    if not _holds_images(part):
        return leaf(part)
    pairs = part.items() if isinstance(part, Mapping) else enumerate(part)
    return type(part).__qualname__, tuple((key, _tokens(leaf, value)) for key, value in pairs)


def _is_pair(sample: Any) -> bool:
    """Whether it is an image and a number or an array, whose batch is ``[images, tensor]``."""
    numbers = (int, float, np.ndarray, np.generic, torch.Tensor)
    pair = type(sample) in (tuple, list) and len(sample) == 2 and isinstance(sample[0], PendingTensor)
    return pair and isinstance(sample[1], numbers) and not isinstance(sample[1], PendingTensor)
