"""How images are nested in a sample, and which transforms they come from."""

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
    TVView,
    View,
    leaves,
    rebuilt,
    with_values,
)
from ..transforms.compose import Compose
from .chains import Chains, channels_of
from .pending import (
    Arranged,
    Copied,
    OneOf,
    Pending,
    PendingImage,
    PendingTensor,
    PendingTVImage,
    SampleCall,
    Source,
    Step,
    running,
)
from .same_names import UnsupportedError
from .transforms import Translated
from .unread_arrays import UnreadArray, unread_arrays

__all__ = ["Shape", "modes_of", "of_unread", "placed", "read", "rest_of", "shape_of", "slots_of", "sources_of"]

_MOST_IMAGES = 16
"""Largest number of images in a sample."""
_MOST_WASTE = 2
"""Largest number of computed results per result in a sample. If images go through different transforms, an engine
applies all of them to every image."""


@dataclass(frozen=True)
class Shape:
    """Common structure of a dataset's samples.

    Attributes:
        tree: containers that lead to images, as tuples, with tokens in place of images and of everything else.
        slots: (number of its image among those of the sample, places of its transforms) of each different result.
    """

    tree: Any
    slots: tuple[tuple[int, tuple[int, ...]], ...]
    shared: int

    @property
    def images(self) -> int:
        """Number of images that a sample is made of."""
        return 1 + max((source for source, _ in self.slots), default=-1)

    @property
    def results(self) -> list[tuple[int, int]]:
        """(number of its image, number among the results that are made of every image) of each slot."""
        return self._results[1]

    @property
    def _results(self) -> tuple[list[tuple[int, ...]], list[tuple[int, int]]]:
        """Places of the transforms that every image goes through, one chain for each result, and the value of
        ``results``."""
        ways, chosen = list[tuple[int, ...]](), list[tuple[int, int]]()
        for source, places in self.slots:
            free = [way for way, other in enumerate(ways) if other == places and (source, way) not in chosen]
            if not free:
                ways.append(places)
            chosen.append((source, free[0] if free else len(ways) - 1))
        return ways, chosen

    def pipeline(self, chains: Chains, channels: int = 3) -> Translated:
        """Return what makes the results of one image. Raises :class:`UnsupportedError`."""
        found = [chains.translated(places, channels) for places in self._results[0]]
        if len(found) == 1:
            return found[0]
        shared = self.slots[0][1][: self.shared]
        first = chains.translated(shared, channels).pipeline.transforms if shared else ()
        count = min((_alike(first, one.pipeline.transforms) for one in found), default=0)
        if any(transform.draws for transform in first[count:]):
            raise UnsupportedError("its transforms do not fit together", "transform-order")
        first = first[:count]
        branches = [Compose(one.pipeline.transforms[count:]) for one in found]
        return Translated(Compose([*first, ours.MultiView(branches)]), None, found[0].kind)

    def check(self, sample: Any) -> None:
        """Raise :class:`UnsupportedError` if no engine can make such samples; see :func:`shape_of`."""
        if self.images > _MOST_IMAGES:
            raise UnsupportedError(f"each of its samples consists of {self.images} images", "views")
        if self.images * len(self._results[0]) > _MOST_WASTE * len(self.slots):
            raise UnsupportedError(
                "each of its samples consists of several images with many different transforms", "views"
            )
        if self.shared < 0:
            raise UnsupportedError(
                "some of its images share their first transforms with some, but not all other images", "views"
            )
        several = any(isinstance(pending, OneOf) for pending in _pendings(sample))
        if several and len(self.slots) > 1:
            raise UnsupportedError("more than one of its transforms makes several views", "views")

    def form(self, sample: Any, *, mixed: bool) -> SampleForm | None:
        """Return how a batch is put together; ``None`` for ``[images, target]``.

        Args:
            mixed: whether images are mixed with their targets, which only such batches are.
        """
        steps = slots_of(sample)
        pair = _is_pair(sample) and isinstance(_pending(sample[0]), Step)
        if pair and (mixed or type(sample[0]) is PendingTensor):
            return None
        numbers = {id(step): number for number, step in enumerate(steps)}

        def node(pending: Pending) -> Any:
            if isinstance(pending, Arranged):
                return ArrangedForm(pending.name, tuple(map(node, map(_original, pending.parts))), pending.arguments)
            return View(number(pending))

        def number(pending: Pending) -> int:
            return pending.number if isinstance(pending, OneOf) else numbers[id(pending)]

        def place(part: Any, path: tuple[Any, ...]) -> Any:
            if isinstance(part, PendingImage):
                return AsImage(View(numbers[id(part.pending)]))
            if type(part) is PendingTVImage:
                return TVView(number(_pending(part)))
            return node(_pending(part)) if isinstance(part, PendingTensor) else Rest(path)

        return SampleForm(placed(place, sample))


def shape_of(sample: Any, steps: list[Step] | None = None) -> Shape:
    """Return the shape of a sample whose slots are ``steps``."""
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
    """Return the different results of transforms in a sample, in order."""
    found: dict[int, Step] = {}
    for pending in _pendings(sample):
        step = pending.step if isinstance(pending, OneOf) else pending
        assert isinstance(step, Step)
        found.setdefault(id(step), step)
    return list(found.values())


def sources_of(steps: list[Step]) -> list[Source]:
    """Return the different images that the results are made of, in order."""
    return list({id(step.source): step.source for step in steps}.values())


def modes_of(sample: Any) -> frozenset[str]:
    """Return the modes of the images that a sample is made of, as Pillow names them."""
    images = (source.image for source in sources_of(slots_of(sample)))
    return frozenset(
        image.mode if isinstance(image, Image.Image) else "L" if channels_of(image) == 1 else "RGB" for image in images
    )


def of_unread(sample: Any) -> bool:
    """Tell whether a sample is made of unread arrays."""
    return any(type(source.image) is UnreadArray for source in sources_of(slots_of(sample)))


def rest_of(sample: Any) -> list[Any]:
    """Return the parts of a sample other than its images, in order."""
    return [part for part in leaves(sample) if not isinstance(part, (PendingTensor, PendingImage))]


def _alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _shared(steps: list[Step]) -> int:
    """Return the number of transforms that all steps begin with; -1 if some steps have more in common than others."""
    if len(steps) < 2:
        return 0
    depths = {
        sum(a is b for a, b in zip(one.chain, other.chain, strict=False))
        for i, one in enumerate(steps)
        for other in steps[:i]
    }
    return depths.pop() if len(depths) == 1 else -1


def _pending(part: Any) -> Pending:
    """Return the pending result of an image; for a copy, the original. In a batch, every image has its own pixels."""
    return _original(object.__getattribute__(part, "pending"))


def _original(pending: Pending) -> Pending:
    return _original(pending.of) if isinstance(pending, Copied) else pending


def _pendings(sample: Any) -> Iterator[Pending]:
    """Iterate over results of transforms, also those within arrangements."""

    def inner(pending: Pending) -> Iterator[Pending]:
        if isinstance(pending, Arranged):
            for part in map(_original, pending.parts):
                yield from inner(part)
        else:
            yield pending

    for part in leaves(sample):
        if isinstance(part, (PendingTensor, PendingImage)):
            yield from inner(_pending(part))


def read(ds: Any, index: int, run: SampleCall, *, arrays: bool) -> Any:
    """Return ``ds[index]`` with pending results of transforms.

    Args:
        arrays: use unread arrays of images, if all of them go to transforms and no other code reads them.
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
    """Copy the containers that lead to images, with ``change(part, path)`` for each image and each part without
    images."""
    if not _holds_images(part):
        return change(part, path)
    if isinstance(part, Mapping):
        made = {key: placed(change, value, (*path, key)) for key, value in part.items()}
        return with_values(part, made)
    return rebuilt(part, [placed(change, value, (*path, i)) for i, value in enumerate(part)])


def _tokens(leaf: Callable[[Any], Any], part: Any) -> Any:
    """Return a tree as tuples, without parts that contain no image."""
    if not _holds_images(part):
        return leaf(part)
    pairs = part.items() if isinstance(part, Mapping) else enumerate(part)
    return type(part).__qualname__, tuple((key, _tokens(leaf, value)) for key, value in pairs)


def _is_pair(sample: Any) -> bool:
    """Tell whether a sample is an image and a number or an array, whose batch is ``[images, tensor]``."""
    numbers = (int, float, np.ndarray, np.generic, torch.Tensor)
    pair = type(sample) in (tuple, list) and len(sample) == 2 and isinstance(sample[0], PendingTensor)
    return pair and isinstance(sample[1], numbers) and not isinstance(sample[1], PendingTensor)
