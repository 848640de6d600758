"""Nesting of images in a sample, and the transforms that made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import reduce
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
    kept,
    leaves,
    rebuilt,
    with_values,
)
from ..errors import PipelineError
from ..global_rng import rewind
from ..reasons import Reason
from ..transforms.chosen import Chosen
from ..transforms.compose import Compose
from .chains import Chains, channels_of
from .pending import PendingImage, PendingTensor, PendingTVImage, settled_part
from .same_names import UnsupportedError
from .steps import Arranged, Copied, OneOf, Pending, SampleCall, Source, Step, WrittenStep, running
from .transforms import Translated
from .unread_arrays import ComputedArray, unread_arrays
from .written import recording_calls

_MOST_IMAGES = 16
"""Largest number of images in a sample."""
_MOST_WASTE = 2
"""Largest number of computed results per result in a sample. If images go through different transforms, an engine
applies all of them to every image."""


_PENDING = (PendingTensor, PendingImage)


@dataclass(frozen=True)
class Shape:
    """Common structure of a dataset's samples.

    Attributes:
        tree: containers that lead to images, as tuples, with tokens in place of images and of everything else.
        slots: (number of its image among those of the sample, places of its transforms) of each different result.
    """

    tree: Any
    slots: tuple[tuple[int, tuple[int, ...]], ...]
    # Number of transforms that all results begin with; -1 if some have more in common than others.
    shared: int
    examples: tuple[tuple[float, ...], ...] = ()
    """Numbers that the script's own code chose in the trials; see :meth:`rows`."""

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
            # Two results of one image by the same transforms are two draws, so they need two chains.
            free = [way for way, other in enumerate(ways) if other == places and (source, way) not in chosen]
            if not free:
                ways.append(places)
            chosen.append((source, free[0] if free else len(ways) - 1))
        return ways, chosen

    def pipeline(self, chains: Chains, channels: int = 3) -> Translated:
        """Return what makes the results of one image. Raises :class:`UnsupportedError`."""
        found = [chains.translated(places, channels) for places in self._results[0]]
        if len(found) == 1:
            return self._with_examples(found[0])
        shared = self.slots[0][1][: self.shared]
        first = chains.translated(shared, channels).pipeline.transforms if shared else ()
        # Common transforms stand before the branches, so that all results get the same draws of them.
        count = min((_alike(first, one.pipeline.transforms) for one in found), default=0)
        # The script drew once for several results, but after the branches each would draw for itself.
        if any(transform.draws for transform in first[count:]):
            raise UnsupportedError("its transforms do not fit together", "transform-order")
        drawing = [n for n, transform in enumerate(first[:count], 1) if transform.draws]
        # Branches begin with a PIL image. Common transforms that do not draw may also stand in each of them, such as
        # ToTensor before the Normalize of one result.
        for at in (count, max(drawing, default=0)):
            with suppress(PipelineError):
                branches = [Compose(one.pipeline.transforms[at:]) for one in found]
                return Translated(Compose([*first[:at], ours.MultiView(branches)]), None, found[0].kind)
        raise UnsupportedError("its transforms do not fit together", "transform-order")

    def _with_examples(self, found: Translated) -> Translated:
        """Give every operation that the script's own code calls the numbers of the trials."""
        if not self.examples:
            return found
        transforms, at = list[Any](), 0
        for transform in found.pipeline:
            if isinstance(transform, Chosen):
                # A row has the numbers of all operations one after another.
                rows = tuple(row[at : at + transform.columns] for row in self.examples)
                at += transform.columns
                transforms.append(replace(transform, examples=rows))
            else:
                transforms.append(transform)
        return found._replace(pipeline=Compose(transforms, memory_format=found.pipeline.memory_format))

    def frame(self, chains: Chains) -> Shape:
        """Return the shape without operations that the script's own code calls with numbers. Samples need not have them
        in common."""
        if not chains.has_written:
            return self
        slots = tuple((source, _frame(chains, places)) for source, places in self.slots)
        return replace(self, slots=slots, examples=())

    def rows(self, steps: Sequence[Step], chains: Chains) -> list[tuple[float, ...]] | None:
        """Return the numbers that the script's own code chose for each image, for all operations of this shape.

        Args:
            steps: slots of the sample, whose shape without these operations is the same.

        Returns ``None`` if the sample has other operations, or some in another order.
        """
        rows = [_row(chains, places, step) for (_, places), step in zip(self.slots, steps, strict=True)]
        return None if any(row is None for row in rows) else rows  # type: ignore[return-value]

    def check(self, images: Sequence[Any]) -> None:
        """Raise :class:`UnsupportedError` if no engine can make samples of this shape.

        Args:
            images: the pending images of such a sample.
        """
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
        several = any(isinstance(pending, OneOf) for image in images for pending in _pendings_of(image))
        if several and len(self.slots) > 1:
            raise UnsupportedError("more than one of its transforms makes several views", "views")

    def form(self, sample: Any, steps: Sequence[Step], *, mixed: bool) -> SampleForm | None:
        """Return how a batch is put together; ``None`` for ``[images, target]``.

        Args:
            sample: a sample of this shape.
            steps: its slots.
            mixed: whether images are mixed with their targets, which only such batches are.
        """
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


class Structure:
    """Pending images of a sample.

    Attributes:
        images: the parts of the sample that are pending, in order.
        steps: the different results of transforms that they stand for, in order.
        tree: see :class:`Shape`.
    """

    def __init__(self, sample: Any):
        self.images: list[Any] = []
        self.steps: list[Step] = []
        self._numbers: dict[int, int] = {}
        self.tree = self._tokens(sample)

    @property
    def sources(self) -> list[Source]:
        """The different images that the results are made of, in order."""
        return list({id(step.source): step.source for step in self.steps}.values())

    @property
    def shape(self) -> Shape:
        numbers = {id(source): number for number, source in enumerate(self.sources)}
        slots = tuple([(numbers[id(step.source)], step.places) for step in self.steps])
        return Shape(self.tree, slots, _shared(self.steps))

    def _tokens(self, part: Any) -> Any:
        """Return a tree as tuples, with ``"rest"`` in place of parts that contain no image."""
        if type(part) in _NO_CONTAINERS:
            return "rest"
        if isinstance(part, _PENDING):
            self.images.append(part)
            return type(part).__name__, self._token(_pending(part))
        if not isinstance(part, (list, tuple, Mapping)):
            return "rest"
        pairs = part.items() if isinstance(part, Mapping) else enumerate(part)
        tokens = [(key, self._tokens(value)) for key, value in pairs]
        return "rest" if all(token == "rest" for _, token in tokens) else (type(part).__qualname__, tuple(tokens))

    def _token(self, pending: Pending) -> Any:
        if isinstance(pending, Arranged):
            return (pending.name, pending.arguments, *[self._token(_original(part)) for part in pending.parts])
        if isinstance(pending, OneOf):
            return "one of", self._number(pending.step), pending.number
        assert isinstance(pending, Step)
        return "view", self._number(pending)

    def _number(self, step: Step) -> int:
        number = self._numbers.setdefault(id(step), len(self.steps))
        if number == len(self.steps):
            self.steps.append(step)
        return number


def common_shape(structures: Sequence[Structure], chains: Chains) -> Shape:
    """Return the shape that has all operations of several samples, whose shapes are equal without them."""
    first = structures[0].shape
    chains_of = [step.places for structure in structures for step in structure.steps]
    if not any(chains.chosen_at(place) is not None for places in chains_of for place in places):
        return first
    places = reduce(lambda one, other: _merged(chains, one, other), dict.fromkeys(chains_of))
    # With such operations, every image has one result, and all go through the same transforms.
    shape = replace(first, slots=tuple((source, places) for source, _ in first.slots))
    rows = [row for structure in structures for row in shape.rows(structure.steps, chains) or ()]
    return replace(shape, examples=tuple(dict.fromkeys(rows)))


def _frame(chains: Chains, places: Sequence[int]) -> tuple[int, ...]:
    return tuple(place for place in places if chains.chosen_at(place) is None)


def _merged(chains: Chains, one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Merge two chains with the same frame."""
    made: list[int] = []
    for a, b in zip(_runs(chains, one), _runs(chains, other), strict=True):
        for kind, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            # Keep what either of them has. Its numbers switch it off for samples without it.
            made += a[i:j] if kind == "equal" else a[i:j] + b[k:m]
    return tuple(made)


def _runs(chains: Chains, places: Sequence[int]) -> list[list[int]]:
    """Cut a chain into its frame, each place by itself, and the operations before, between and after."""
    runs: list[list[int]] = [[]]
    for place in places:
        if chains.chosen_at(place) is None:
            runs += [[place], []]
        else:
            runs[-1].append(place)
    return runs


def _row(chains: Chains, places: Sequence[int], step: Step) -> tuple[float, ...] | None:
    row: list[float] = []
    left = list(step.chain)
    for place in places:
        is_next = bool(left) and left[0].place == place
        known = chains.chosen_at(place)
        if known is not None:
            # An operation that this sample lacks is off.
            row += left[0].row if is_next and isinstance(left[0], WrittenStep) else known.off
        elif not is_next:
            return None
        if is_next:
            left.pop(0)
    return None if left else tuple(row)


def _made_by_engines(sample: Any, structure: Structure) -> tuple[Any, Structure]:
    """Return a sample in which only the results that an engine makes are pending, and its structure. All others are
    computed now: masks, for instance, which the script's own code flips with their image.

    An engine makes the results in the color of the first one in RGB, and those of one image if masks, boxes or
    keypoints were moved with it. If the script's own code calls operations, it makes one result of each image, all of
    them by the same transforms.
    """
    left = [step for step in structure.steps if not step.is_computed]
    modes = [mode_of(step.source) for step in left]
    wanted = "RGB" if "RGB" in modes else "L"
    left = [step for step, mode in zip(left, modes, strict=True) if mode == wanted]
    leading = {id(one): one for step in left for one in step.chain if one.has_targets}
    if leading:
        # An engine draws for the first image of a sample what the targets were moved by.
        lead = next((one for one in leading.values() if one.seed == one.run.seed), None)
        if lead is None:
            why = "it transforms another image before the one that masks, boxes or keypoints belong to"
            left[0].run.hint = Reason(why, "beside-image")
        left = [step for step in left if lead in step.chain]
    if any(isinstance(one, WrittenStep) for step in left for one in step.chain):
        frame = [one.place for one in left[0].chain if not isinstance(one, WrittenStep)]
        chosen: dict[int, Step] = {}
        for step in left:
            if [one.place for one in step.chain if not isinstance(one, WrittenStep)] == frame:
                chosen.setdefault(id(step.source), step)
        left = list(chosen.values())
    elif len(left) == len(structure.steps):
        return sample, structure
    keep = {id(step) for step in left}

    def leaf(part: Any) -> Any:
        if not isinstance(part, _PENDING):
            return part
        # Pixels that were read may have been written to, so such an image is finished.
        is_loaded = isinstance(part, PendingImage) and part.is_loaded
        if is_loaded or not all(id(_step_of(pending)) in keep for pending in _pendings_of(part)):
            return settled_part(part)
        return part

    sample = kept(leaf, sample)
    return sample, Structure(sample)


def _step_of(pending: Pending) -> Step:
    step = pending.step if isinstance(pending, OneOf) else pending
    assert isinstance(step, Step)
    return step


def mode_of(source: Source) -> str:
    """Return the mode of an image, as Pillow names it."""
    image = source.image
    return image.mode if isinstance(image, Image.Image) else "L" if channels_of(image) == 1 else "RGB"


def rest_of(sample: Any) -> list[Any]:
    """Return the parts of a sample other than its images, in order."""
    return [part for part in leaves(sample) if not isinstance(part, _PENDING)]


def _alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _shared(steps: list[Step]) -> int:
    """Return the number of transforms that all steps begin with; -1 if some steps have more in common than others."""
    if len(steps) < 2:
        return 0
    both = [
        [a for a, b in zip(one.chain, other.chain, strict=False) if a is b]
        for i, one in enumerate(steps)
        for other in steps[:i]
    ]
    # An engine repeats for every result what the script's own code did once.
    depths = {0 if not common or common[-1].is_exact else len(common) for common in both}
    return depths.pop() if len(depths) == 1 else -1


def _pending(part: Any) -> Pending:
    """Return the pending result of an image; for a copy, the original. In a batch, every image has its own pixels."""
    return _original(object.__getattribute__(part, "pending"))


def _original(pending: Pending) -> Pending:
    return _original(pending.of) if isinstance(pending, Copied) else pending


def _pendings_of(part: Any) -> Iterator[Pending]:
    """Iterate over the results of transforms in one part of a sample."""

    def inner(pending: Pending) -> Iterator[Pending]:
        if isinstance(pending, Arranged):
            for one in map(_original, pending.parts):
                yield from inner(one)
        else:
            yield pending

    return inner(_pending(part))


def read(ds: Any, index: int, run: SampleCall, *, arrays: bool, calls: bool = True) -> tuple[Any, Structure]:
    """Return ``ds[index]`` with pending results of transforms, and its structure.

    Args:
        arrays: use unread arrays of images, if all of them go to transforms and no other code reads them.
        calls: record operations that the script's own code calls with numbers.
    """
    with unread(), running(run), recording_calls() if calls else nullcontext():
        sample, is_whole = None, False
        if arrays:
            restore = rewind()
            # Whatever the code raises here, it runs again with real arrays below.
            with suppress(Exception), unread_arrays() as made:
                sample = ds[index]
                used = [array.made for array in run.arrays]
                # Every array must have gone to a transform, and none that is computed may stay in the sample.
                is_whole = all(one in used and not one.looked for one in made) and not any(
                    type(part) is ComputedArray for part in leaves(sample)
                )
            if not is_whole:  # the same draws, or code that looks only after a rare draw would hardly ever do so
                restore()
                run.restart()
        if not is_whole:
            sample = ds[index]
        run.forget_given()
    structure = Structure(sample)
    _refuse_outdated(run, structure.images)
    with unread():  # it keeps files open that the rest of the sample needs
        return _made_by_engines(sample, structure)


def _refuse_outdated(run: SampleCall, images: list[Any]) -> None:
    """Raise :class:`UnsupportedError` if code has written to a tensor after another one was made from it. Made later,
    the other one would be a copy with the change, or a view without it."""
    if run.made_late or any(object.__getattribute__(image, "pending").is_outdated for image in images):
        why = "it writes to a tensor of an image after it has made another one from it"
        run.hint = Reason(why, "looks-at-values")
        raise UnsupportedError(why, "looks-at-values")


# ---- containers


_NO_CONTAINERS = {int, float, str, bool, torch.Tensor}


def _holds_images(part: Any) -> bool:
    if type(part) in _NO_CONTAINERS or not isinstance(part, (list, tuple, Mapping)):
        return False
    return any(isinstance(leaf, _PENDING) for leaf in leaves(part))


def placed(change: Callable[[Any, tuple[Any, ...]], Any], part: Any, path: tuple[Any, ...] = ()) -> Any:
    """Copy the containers that lead to images, with ``change(part, path)`` for each image and each part without
    images."""
    if not _holds_images(part):
        return change(part, path)
    if isinstance(part, Mapping):
        made = {key: placed(change, value, (*path, key)) for key, value in part.items()}
        return with_values(part, made)
    return rebuilt(part, [placed(change, value, (*path, i)) for i, value in enumerate(part)])


def _is_pair(sample: Any) -> bool:
    """Tell whether a sample is an image and a number or an array, whose batch is ``[images, tensor]``."""
    numbers = (int, float, np.ndarray, np.generic, torch.Tensor)
    pair = type(sample) in (tuple, list) and len(sample) == 2 and isinstance(sample[0], PendingTensor)
    return pair and isinstance(sample[1], numbers) and not isinstance(sample[1], PendingTensor)
