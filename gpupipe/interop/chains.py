"""Chains of a script's own transforms: their translation, and what the reference computes with them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..datasets.sample_form import tv_image
from ..errors import TranslationError
from ..kernels.apply import apply_sample, apply_tail, head_and_tail
from ..kernels.picture import pil
from ..kernels.stacking import stack_images
from ..rng import uniforms
from ..transforms import PILToTensor, ToImage, Transform
from ..transforms.albumentations import ToArray
from ..transforms.boxes import BatchBoxes
from ..transforms.chosen import Chosen, chosen
from ..transforms.compose import Resolved
from ..transforms.ops import Op
from ..transforms.ops.op import F64
from ..transforms.transform import Images
from .same_names import UnsupportedError
from .steps import TO_ARRAY, TO_IMAGE, TO_TENSOR, WRITTEN, Stage, Step, WrittenStep, running
from .transforms import Translated, parts_of, translation
from .unread_arrays import UnreadArray
from .user_functions import are_alike

_MADE = {TO_ARRAY: ToArray(), TO_TENSOR: PILToTensor(), TO_IMAGE: ToImage()}
"""What makes an array or a tensor of an image, by its place."""


class Chains:
    """Transforms that a dataset holds, by their places. Picklable; remembers what was found out about them.

    Args:
        held: the script's objects.
        are_marked: whether something stands in their place while the dataset runs. Otherwise they run, and what they
            call is recorded.
    """

    def __init__(self, held: list[Any], *, are_marked: bool = True):
        self._held, self.are_marked = held, are_marked
        self._made: dict[tuple[int, ...], tuple[str, Any]] = {}
        """Kind of the results, and how several results are nested, by places."""
        self._first: dict[int, int] = {}
        self._known: dict[tuple[tuple[int, ...], int], Translated] = {}
        self._written: list[Transform] = []
        """Operations that the script's own code calls; see :data:`~.steps.WRITTEN`."""
        self._is_complete = False

    @property
    def has_written(self) -> bool:
        """Whether the script's own code calls operations that an engine could do."""
        return bool(self._written)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that an engine could do."""
        return not self._held and not self._written

    def complete(self) -> None:
        """End the trials: operations that they have not shown remain unknown."""
        self._is_complete = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}  # translated again where a value is asked for, which is rare

    def are_like(self, held: list[Any]) -> bool:
        """Tell whether ``held``, from a copy of the dataset, may be the same transforms."""
        return [*map(type, held)] == [*map(type, self._held)]

    @property
    def is_callable(self) -> bool:
        """Whether torch could run the transforms. gpupipe's own are not called but resolved."""
        return all(map(callable, self._held))

    def translated(self, places: tuple[int, ...], channels: int = 3) -> Translated:
        """Return the translation of a chain. Raises :class:`~gpupipe.errors.TranslationError`."""
        if (places, channels) not in self._known:
            with running(None):  # which tries functions of the script on images of its own
                found = translation([*map(self._object, places)], channels=channels, joint=True)
            self._known[places, channels] = found
        return self._known[places, channels]

    def may_draw(self) -> bool:
        """Tell whether any of the transforms may draw random numbers."""
        for place in range(len(self._held)):
            try:
                if any(transform.draws for transform in self.translated((place,)).pipeline):
                    return True
            except (UnsupportedError, TranslationError):
                return True
        return False

    def _object(self, place: int) -> Any:
        if place in _MADE:
            return _MADE[place]
        if place <= WRITTEN:
            return self._written[WRITTEN - place]
        # rest() encodes (begun, place) as place + begun * len(held), so that a place stays one number.
        begun, place = divmod(place, len(self._held))
        return (parts_of(self._held[place]) or [])[begun:] if begun else self._held[place]

    # ---- what pending results ask for

    def rest(self, place: int, begun: int) -> int:
        """Return the place of what remains of a container after its first ``begun`` transforms."""
        return place + begun * len(self._held)

    def place(self, place: int) -> int:
        """Return the first place with an equal transform. Each part of a dataset may hold an equal one of its own."""
        # Negative places are conversions and written operations; places beyond the list are rests of containers.
        if not 0 <= place < len(self._held):
            return place
        if place not in self._first:
            earlier = (k for k in range(place) if self._are_equal(k, place))
            self._first[place] = next(earlier, place)
        return self._first[place]

    def _are_equal(self, one: int, other: int) -> bool:
        if type(self._held[one]) is not type(self._held[other]):
            return False
        try:
            a, b = self.translated((one,)), self.translated((other,))
        except (UnsupportedError, TranslationError):
            # Without a translation there is nothing to compare, so both keep their own places.
            return False
        return (a.tree, a.kind) == (b.tree, b.kind) and are_alike(a.pipeline, b.pipeline)

    def written(self, op: Op) -> tuple[int, tuple[float, ...]] | None:
        transform, row = chosen(op)
        place = self.fixed(transform)
        return None if place is None else (place, row)

    def fixed(self, transform: Transform) -> int | None:
        known = next((n for n, one in enumerate(self._written) if one == transform), None)
        if known is None:
            # The pipeline is built from what the trials showed, so a new operation would have no place in it.
            if self._is_complete:
                return None
            known = len(self._written)
            self._written.append(transform)
        return WRITTEN - known

    def chosen_at(self, place: int) -> Chosen | None:
        """Return the operation with numbers that a place stands for; ``None`` for any other transform."""
        found = self._written[WRITTEN - place] if place <= WRITTEN else None
        return found if isinstance(found, Chosen) else None

    def draws(self, step: Step) -> bool:
        try:
            # translated() covers the whole chain, and its first transforms belong to the steps before.
            count = 0 if step.before is None else len(self.translated(step.before.places).pipeline)
            return any(transform.draws for transform in self.translated(step.places).pipeline.transforms[count:])
        except (UnsupportedError, TranslationError):
            return True

    def draw_by_boxes(self, places: tuple[int, ...]) -> int:
        return sum(transform.draws_by_boxes for transform in self.translated(places).pipeline)

    def kind(self, places: tuple[int, ...]) -> str:
        return self._of(places)[0]

    def tree(self, places: tuple[int, ...]) -> Any:
        return self._of(places)[1]

    def _of(self, places: tuple[int, ...]) -> tuple[str, Any]:
        if places not in self._made:
            found = self.translated(places)
            self._made[places] = found.kind, found.nested
        return self._made[places]

    def outputs(self, step: Step) -> list[tuple[tuple[int, ...], torch.dtype]]:
        images = self._resolved(step, *_channels_and_size(step.source.image)).images
        return [
            (view.shape or (view.channels, *map(int, view.sizes[0])), getattr(torch, view.dtype))
            for view in images.views or (images,)
        ]

    def dtypes(self, places: tuple[int, ...]) -> list[torch.dtype]:
        return [getattr(torch, output.dtype) for output in self.translated(places).pipeline.outputs]

    def values(self, step: Step) -> list[Any]:
        picture = decoded(step.source.image)
        head, tail = head_and_tail(self._resolved(step, *_channels_and_size(picture)).ops)
        made = apply_sample(picture, head, 0)
        # The tail works on batches, so the image goes through it as a batch of one.
        batches = apply_tail(stack_images([made]), tail)
        views = batches if isinstance(batches, tuple) else (batches,)
        kind = self.kind(step.places)
        return [_as(kind, view[0]) for view in views]

    def stages(self, step: Step, place: int) -> list[Stage]:
        channels, size = _channels_and_size(step.source.image)
        # An equal transform may fill masks with another value, so it is this one that is asked for its parts.
        found = self.translated((*step.places[:-1], place), channels)
        if not found.steps or found.pipeline.mixing or len(found.pipeline.outputs) > 1:
            raise UnsupportedError("its parts cannot be told apart", "beside-image")
        draw = self._draw(step, channels)
        boxes = _boxes(step) if found.pipeline.draws_by_boxes else None
        images = Images(np.array([size]), chosen=_chosen(step), boxes=boxes)
        # found.steps says how many of the pipeline's transforms stand for each of the script's, in the same order.
        keyed = iter(zip(found.pipeline.transforms, found.pipeline.draw_keys, strict=True))
        stages = list[Stage]()
        for item, kind, count in found.steps:
            ops: list[Op] = []
            height, width = map(int, images.sizes[0])
            for transform, key in islice(keyed, count):
                made, images = transform.resolved(draw(key, transform.draws), images)
                ops += made
            stages.append(Stage(item, kind, tuple(ops), (height, width)))
        before = step.before
        # The stages of the steps before ran when those steps were made.
        return stages if before is None else stages[len(self.translated(before.places, channels).steps) :]

    def _resolved(self, step: Step, channels: int, size: tuple[int, int]) -> Resolved:
        """Resolve one sample."""
        pipeline = self.translated(step.places, channels).pipeline
        sizes = np.array([size], np.int32)
        return pipeline.resolve_with(self._draw(step, channels), sizes, _boxes(step), _chosen(step))

    def _draw(self, step: Step, channels: int) -> Callable[[int, int], F64]:
        """Return what draws for a sample: the numbers of each transform with the seed of its step."""
        run = step.run
        draw_keys = self.translated(step.places, channels).pipeline.draw_keys
        seeds = dict(zip(draw_keys, self._seeds(step, channels), strict=True))
        keys = np.array([run.key], np.uint64)
        return lambda key, draws: uniforms(seeds[key], run.epoch, key, keys, draws)

    def _seeds(self, step: Step, channels: int) -> list[int]:
        """Return one seed for each of gpupipe's transforms."""
        chain, found = step.chain, list[int]()
        # The usual case needs no translation of every prefix.
        if len({one.seed for one in chain}) == 1:
            return [step.seed] * len(self.translated(step.places, channels).pipeline)
        # Steps are prefixes of each other: one.places extends those of the step before. Its own transforms are the last
        # ones of its pipeline, and they take its seed.
        for one in chain:
            found += [one.seed] * (len(self.translated(one.places, channels).pipeline) - len(found))
        return found


def _chosen(step: Step) -> F64 | None:
    """Return the numbers f64[1, K] that the script's own code chose on the way to a result."""
    rows = [one.row for one in step.chain if isinstance(one, WrittenStep)]
    return np.array([[number for row in rows for number in row]]) if rows else None


def _boxes(step: Step) -> BatchBoxes | None:
    """Return the boxes by which a transform on the way to a result draws."""
    return next((one.boxes for one in step.chain if one.boxes is not None), None)


def decoded(image: Any) -> Any:
    """Load the pixels of an image: an array uint8[H, W, C], or a PIL image in mode RGB or L."""
    if isinstance(image, UnreadArray):
        return image.pixels()
    if isinstance(image, torch.Tensor):
        return np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    if isinstance(image, Image.Image):
        image.load()
    return image


def size_of(image: Any) -> tuple[int, int]:
    """Return (height, width) of an image as the script opened it."""
    if isinstance(image, Image.Image):
        return image.height, image.width
    shape = image.shape[1:] if isinstance(image, torch.Tensor) else image.shape
    return shape[0], shape[1]


def channels_of(image: Any) -> int:
    """Return the number of channels of an image as the script opened it."""
    if isinstance(image, Image.Image):
        return 1 if image.mode == "L" else 3
    return int(image.shape[0 if isinstance(image, torch.Tensor) else 2])


def _channels_and_size(image: Any) -> tuple[int, tuple[int, int]]:
    return channels_of(image), size_of(image)


def _as(kind: str, image: torch.Tensor) -> Any:
    """Convert an image to the kind that the script's own transforms return."""
    if kind == "pil":
        return pil(image.permute(1, 2, 0).contiguous().numpy())
    if kind == "image":
        return tv_image()(image)
    return image
