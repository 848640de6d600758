"""Transforms of torchvision's second generation that a script calls with an image and what belongs to it.

The image becomes a pending result. Everything else is computed at once, with the numbers of the same sample: masks,
boxes and keypoints move by the ops that the image's transforms resolve into, and what a transform does to values, such
as ``ToDtype`` and ``SanitizeBoundingBoxes``, the script's own object does. So they travel as ordinary parts of the
sample.

torchvision decides by type what a transform applies to, and its own rule is asked here, with a small image in the place
of the pending one.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from PIL import Image
from torch.utils import _pytree

from ..errors import GpupipeError, TranslationError
from ..reasons import Reason, failure
from ..transforms.ops import Crop, Flip, Resize
from .classes import class_name, known_class, shown
from .pending import PendingImage, PendingTensor, Source, Stage, Step, cannot_follow, pending_step
from .same_names import Refused
from .transforms import parts_of

__all__ = ["is_joint", "joint"]

_V2 = "torchvision.transforms.v2"
_OF_VALUES = {"ConvertImageDtype", "PILToTensor", "ToDtype", "ToImage", "ToPILImage", "ToPureTensor", "ToTensor"}
"""Change the type of a target or of its values, and draw nothing."""
_OF_SAMPLES = {
    "ClampBoundingBoxes", "ClampKeyPoints", "ConvertBoundingBoxFormat", "SanitizeBoundingBoxes", "SanitizeKeyPoints",
    "SetClampingMode",
}  # fmt: skip
"""Look at targets alone, and may see the whole sample."""
_OF_ONE_IMAGE = {"AugMix", "AutoAugment", "RandAugment", "TrivialAugmentWide"}
"""Raise if the sample has masks, boxes, keypoints or a second image."""
_CONTAINERS = {"RandomApply", "RandomChoice", "RandomOrder"}


def is_joint(transform: Any, given: tuple[Any, ...]) -> bool:
    """Whether torchvision would take ``given`` apart: several values, or one container of them."""
    several = len(given) > 1 or (len(given) == 1 and isinstance(given[0], (dict, list, tuple)))
    return several and _is_of_second_generation(transform)


def joint(transform: Any, place: int, given: tuple[Any, ...], noted: Any) -> Any:
    """What the transform at ``place`` returns for an image and what belongs to it; ``NotImplemented`` if it has to be
    called.

    Args:
        noted: makes a pending result of a place and an image.
    """
    inputs = given if len(given) > 1 else given[0]
    leaves, spec = _pytree.tree_flatten(inputs)
    main = _main_image(leaves)
    if main is None:
        return NotImplemented
    image = leaves[main]
    made = noted(place, image)
    if made is NotImplemented:
        return NotImplemented
    step = pending_step(made)
    try:
        if step is None:
            raise Refused("it makes several views of an image with targets", "views")
        sample = _Sample(transform, leaves, spec, main, several=len(given) > 1)
        sample.go_through(step, place)
    except (Refused, GpupipeError) as e:
        what = ", ".join(dict.fromkeys(type(leaf).__name__ for leaf in leaves[:main] + leaves[main + 1 :]))
        text = f"it gives an image with {what} to {type(transform).__name__}: {e}"
        cannot_follow(TranslationError(text, [Reason(text, getattr(e, "code", "beside-image"))]))
        return NotImplemented
    sample.leaves[main] = made
    return _pytree.tree_unflatten(sample.leaves, spec)


class _Sample:
    """The parts of a sample, on their way through transforms. The image's place is empty.

    Args:
        several: whether the transform was called with several values.
    """

    def __init__(self, transform: Any, leaves: list[Any], spec: Any, main: int, *, several: bool):
        self.leaves, self._main, self._spec, self._several = list(leaves), main, spec, several
        self._image = leaves[main]
        self.leaves[main] = None
        self._others = [i for i, leaf in enumerate(self.leaves) if _is_explicit(leaf)]
        """Further images."""

    def go_through(self, step: Step, place: int) -> None:
        """Raises :class:`Refused` or :class:`~gpupipe.errors.GpupipeError` if a part cannot follow the image."""
        stages = step.run.computes.stages(step, place)
        if self._others:
            self._check_images(step, stages)
        for stage in stages:
            if stage.item is not None:
                try:
                    self._apply(stage)
                except Refused as e:
                    raise Refused(f"{shown(stage.item)}: {e}", e.code) from None
        for i in self._others:
            self.leaves[i] = _second_image(step, self.leaves[i])

    def _apply(self, stage: Stage) -> None:
        item, name = stage.item, _name(stage.item)
        if name in _OF_SAMPLES:
            self._whole(item)
            return
        chosen = self._chosen(item, stage.kind)
        moves = any(op.geometric for op in stage.ops)
        if name in _CONTAINERS and any(map(_is_moved, self.leaves)):
            _check_container(item)
        if name in _OF_ONE_IMAGE and (self._others or any(_is_moved(leaf) for leaf in self.leaves)):
            raise Refused("torchvision refuses samples with more than one image", "beside-image")
        if name in _OF_VALUES:
            for i in chosen:
                self.leaves[i] = item.transform(self.leaves[i], {})
        elif moves:
            for i in chosen:
                self.leaves[i] = _moved(self.leaves[i], stage)

    def _whole(self, item: Any) -> None:
        """Give the sample to a transform that leaves the image alone."""
        empty = _Unseen()
        self.leaves[self._main] = empty
        inputs = _pytree.tree_unflatten(self.leaves, self._spec)
        try:
            made = item(*inputs) if self._several else item(inputs)
        except Exception as e:
            raise Refused(failure(e), "sample-fails") from None
        self.leaves, spec = _pytree.tree_flatten(made)
        if spec != self._spec or self.leaves[self._main] is not empty:
            raise Refused("it changes the form of the sample", "beside-image")
        self.leaves[self._main] = None

    def _chosen(self, item: Any, kind: str) -> list[int]:
        """The parts beside images that torchvision gives to a transform."""
        leaves = [*self.leaves]
        leaves[self._main] = _small(kind)
        chosen = [i for i, needed in enumerate(item._needs_transform_list(leaves)) if needed]
        others = [i for i in chosen if i != self._main and i not in self._others]
        if kind == "tensor" and any(type(leaves[i]) is torch.Tensor for i in others):
            raise Refused("it applies to another tensor than the image, which stands before it", "beside-image")
        return others

    def _check_images(self, step: Step, stages: Sequence[Stage]) -> None:
        """A second image is made like the first one, as a whole, if torchvision does so as well."""
        if step.before is not None or any(stage.kind == "tensor" for stage in stages):
            raise Refused("only the first of several images goes through all of its transforms", "beside-image")
        if any(hasattr(op, "seed") for stage in stages for op in stage.ops):
            raise Refused("each of several images has random pixels of its own", "beside-image")
        for i in self._others:
            other = self.leaves[i]
            if isinstance(other, PendingImage | PendingTensor) or getattr(other, "mode", "") not in ("RGB", "L"):
                raise Refused(f"its second image is {_described(other)}", "beside-image")
            if other.size != self._image.size:
                raise Refused("its images have different sizes", "beside-image")


class _Unseen:
    """In the place of an image for a transform of targets."""


# ---- what torchvision calls what


def _is_of_second_generation(transform: Any) -> bool:
    return all(known_class(item, _V2) is not None for item in _flat(transform))


def _flat(transform: Any) -> list[Any]:
    parts = parts_of(transform)
    return [transform] if parts is None else [item for part in parts for item in _flat(part)]


def _name(item: Any) -> str:
    cls = known_class(item, _V2)
    assert cls is not None
    return cls.__name__


def _tv(name: str) -> Any:
    """A class of torchvision's, which is imported by whoever holds its transforms."""
    return getattr(sys.modules["torchvision.tv_tensors"], name, ())


def _is_explicit(leaf: Any) -> bool:
    return isinstance(leaf, (Image.Image, _tv("Image"), _tv("Video")))


def _is_moved(leaf: Any) -> bool:
    return isinstance(leaf, (_tv("Mask"), _tv("BoundingBoxes"), _tv("KeyPoints")))


def _main_image(leaves: list[Any]) -> int | None:
    """Where the image stands; ``None`` if there is none."""
    for is_image in (_is_explicit, lambda leaf: type(leaf) in (torch.Tensor, PendingTensor)):
        found = next((i for i, leaf in enumerate(leaves) if is_image(leaf)), None)
        if found is not None:
            return found
    return None


@cache
def _small(kind: str) -> Any:
    if kind == "pil":
        return Image.new("L", (1, 1))
    tensor = torch.zeros(1, 1, 1)
    return _tv("Image")(tensor) if kind == "image" else tensor


def _described(leaf: Any) -> str:
    return f"of mode {leaf.mode}" if isinstance(leaf, Image.Image) else f"a {class_name(leaf)}"


def _check_container(item: Any) -> None:
    inner = {_name(part) for whole in item.transforms for part in _flat(whole)}
    if wrong := sorted(inner & (_OF_VALUES | _OF_SAMPLES | _OF_ONE_IMAGE)):
        raise Refused(f"it holds {', '.join(wrong)}", "beside-image")


# ---- moving


def _second_image(step: Step, image: Any) -> Any:
    other = copy.copy(step)
    other.source, other._values, other._outputs = Source(image), None, None
    return step.run.computes.values(other)[0]


def _fill(item: Any, kind: Any) -> Any:
    """What torchvision fills a target of a type with."""
    if _name(item) in _CONTAINERS:
        fills = [_fill(part, kind) for whole in item.transforms for part in _flat(whole)]
        if any(fill != fills[0] for fill in fills):
            raise Refused("its transforms fill with different values", "beside-image")
        return fills[0]
    known = getattr(item, "_fill", {})
    return known.get(kind, known.get("others"))


def _moved(leaf: Any, stage: Stage) -> Any:
    F = sys.modules["torchvision.transforms.v2.functional"]
    if tuple(F.get_size(leaf)) != stage.size:
        raise Refused(f"the {type(leaf).__name__} is for another size than the image", "beside-image")
    fill = _fill(stage.item, type(leaf))
    for op in stage.ops:
        if not op.geometric or op.passes(0):
            continue
        if isinstance(op, Flip):
            leaf = F.horizontal_flip(leaf) if op.axis == "horizontal" else F.vertical_flip(leaf)
        elif isinstance(op, Resize):
            leaf = F.resize(leaf, [int(op.height[0]), int(op.width[0])])
        elif isinstance(op, Crop):
            h, w = F.get_size(leaf)
            top, left, height, width = (int(x[0]) for x in (op.top, op.left, op.height, op.width))
            pad = [max(0, -left), max(0, -top), max(0, left + width - w), max(0, top + height - h)]
            if any(pad):
                leaf = F.pad(leaf, pad, fill=fill, padding_mode=op.mode)
            leaf = F.crop(leaf, top + pad[1], left + pad[0], height, width)
        else:
            raise Refused(f"{type(leaf).__name__} does not move by {type(op).__name__}", "beside-image")
    return leaf
