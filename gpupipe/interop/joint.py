"""torchvision v2 transforms that a script calls with an image and its masks, boxes, keypoints or further images.

The image becomes a pending result. Everything else is computed at once, with the draws of the same sample, and then
travels as an ordinary part of the sample. Masks, boxes and keypoints follow the ops of the image's transforms. The
script's own transforms change their types and values, such as ``ToDtype`` and ``SanitizeBoundingBoxes``.

torchvision decides by type which parts of a sample a transform applies to. That decision is torchvision's here too, for
a sample with a tiny image in place of the pending one.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils import _pytree

from ..errors import GpupipeError, TranslationError
from ..kernels.moving import Moves
from ..reasons import Reason, failure
from ..transforms.boxes import BatchBoxes, check_boxes
from ..transforms.ops import Crop, Flip, Op, Resize
from .classes import changed_methods, class_name, known_class, shown
from .noting import cannot_follow
from .own_windows import is_own, of_size
from .pending import PendingImage, PendingTensor, exact, pending_step
from .same_names import UnsupportedError
from .steps import Source, Stage, Step
from .transforms import parts_of

_V2 = "torchvision.transforms.v2"
_OF_VALUES = {"ConvertImageDtype", "PILToTensor", "ToDtype", "ToImage", "ToPILImage", "ToPureTensor", "ToTensor"}
"""Transforms that may change the type or the values of a target, and do not draw."""
_OF_SAMPLES = {
    "ClampBoundingBoxes", "ClampKeyPoints", "ConvertBoundingBoxFormat", "SanitizeBoundingBoxes", "SanitizeKeyPoints",
    "SetClampingMode",
}  # fmt: skip
"""Transforms of targets alone, which get the whole sample."""
_OF_IMAGES = {"GaussianNoise", "JPEG", "RandomChannelPermutation", "RandomPhotometricDistort"}
"""Transforms that leave targets alone and run as functions, which could move pixels."""
_OF_ONE_IMAGE = {"AugMix", "AutoAugment", "RandAugment", "TrivialAugmentWide"}
"""Transforms that raise an error for masks, boxes, keypoints and several images."""
_ALWAYS_CROP = {"CenterCrop", "Pad", "RandomResizedCrop"}
"""Transforms that crop even if the window is the whole image."""
_CONTAINERS = {"RandomApply", "RandomChoice", "RandomOrder"}


def is_joint(transform: Any, given: tuple[Any, ...]) -> bool:
    """Return whether ``given`` is more than one value and torchvision v2 takes it apart."""
    several = len(given) > 1 or (len(given) == 1 and isinstance(given[0], (dict, list, tuple)))
    return several and _is_of_second_generation(transform)


def joint(transform: Any, place: int, given: tuple[Any, ...], noted: Any) -> Any:
    """Return what the transform at ``place`` makes of an image and what belongs to it.

    Returns ``NotImplemented`` if the transform has to be called.

    Args:
        transform: the script's transform.
        place: its number.
        given: the arguments of the call.
        noted: makes a pending result from a place and an image.
    """
    inputs = given if len(given) > 1 else given[0]
    leaves, spec = _pytree.tree_flatten(inputs)
    main = _main_image(leaves)
    if main is None:
        return NotImplemented
    # Parts whose bits the script's own code determines are computed now; only the image stays pending.
    leaves = [leaf if i == main else exact(leaf) for i, leaf in enumerate(leaves)]
    image = leaves[main]
    made = noted(place, image)
    if made is NotImplemented:
        return NotImplemented
    step = pending_step(made)
    try:
        if step is None:
            raise UnsupportedError("it makes several views of an image with targets", "views")
        sample = _Sample(leaves, spec, main, several=len(given) > 1)
        step.has_targets = sample.has_targets
        sample.go_through(step, place)
    except (UnsupportedError, GpupipeError) as e:
        what = ", ".join(dict.fromkeys(type(leaf).__name__ for leaf in leaves[:main] + leaves[main + 1 :]))
        text = f"it gives an image with {what} to {type(transform).__name__}: {e}"
        cannot_follow(TranslationError(text, [Reason(text, getattr(e, "code", "beside-image"))]))
        return NotImplemented
    sample.leaves[main] = made
    return _pytree.tree_unflatten(sample.leaves, spec)


class _Sample:
    """Parts of a sample on their way through transforms. The image's place is empty.

    Args:
        leaves: the parts, in pytree's order.
        spec: their structure.
        main: place of the image.
        several: whether the transform was called with several values.
    """

    def __init__(self, leaves: list[Any], spec: Any, main: int, *, several: bool):
        self.leaves, self._main, self._spec, self._several = list(leaves), main, spec, several
        self._image = leaves[main]
        self.leaves[main] = None
        self._others = [i for i, leaf in enumerate(self.leaves) if _is_explicit(leaf)]
        """Places of further images."""
        self._ops: list[tuple[Op, Any]] = []
        """Ops that targets have not followed yet, each with its transform."""
        self._size = (0, 0)
        """Height and width of the image before them."""
        self._boxes_changed = False
        """Whether a transform of targets alone has run, which may have changed the boxes."""

    @property
    def has_targets(self) -> bool:
        """Whether anything moves with the image."""
        return bool(self._others) or any(map(_is_moved, self.leaves))

    def go_through(self, step: Step, place: int) -> None:
        """Apply the transforms at ``place``. Raises :class:`UnsupportedError` or :class:`~gpupipe.errors.GpupipeError`
        if a part cannot follow the image."""
        self._give_boxes(step)
        stages = step.run.computes.stages(step, place)
        # Only trials have a notice, and only they compare with what torchvision does.
        is_trial = step.run.notice is not None
        if self._others:
            self._check_images(step, stages)
        for stage in stages:
            # The conversion of a gray image, which moves nothing.
            if stage.item is None:
                continue
            try:
                self._apply(stage, is_trial)
            except UnsupportedError as e:
                raise UnsupportedError(f"{shown(stage.item)}: {e}", e.code) from None
        self._move(is_trial)
        for i in self._others:
            self.leaves[i] = _second_image(step, self.leaves[i])

    def _apply(self, stage: Stage, is_trial: bool) -> None:
        item, name = stage.item, _name(stage.item)
        if is_own(item) and all(isinstance(op, Crop) for op in stage.ops):  # and not called as a function
            self._move(is_trial)
            # Its code sees targets as the transforms before it have left them.
            self._by_itself(stage)
            return
        if not name:
            raise UnsupportedError("gpupipe does not know how it moves targets", "beside-image")
        targets = self.has_targets
        if targets and name in _OF_ONE_IMAGE:
            raise UnsupportedError(
                "torchvision refuses samples with masks, boxes, keypoints or several images", "beside-image"
            )
        if targets and name in _CONTAINERS:
            _check_container(item)
        if name in _OF_SAMPLES:
            self._move(is_trial)
            self._whole(item)
            self._boxes_changed = True
            return
        # It has drawn by the boxes that the script gave, and these are no longer the same.
        if self._boxes_changed and any(isinstance(op, Crop) and op.by_center for op in stage.ops):
            raise UnsupportedError("put it before transforms that change boxes alone", "transform-order")
        chosen = self._chosen(item, stage.kind)
        if name in _OF_VALUES and chosen:
            self._move(is_trial)
            for i in chosen:
                self.leaves[i] = item.transform(self.leaves[i], {})
        if name == "CenterCrop" and any(min(op.top[0], op.left[0]) < 0 for op in stage.ops if isinstance(op, Crop)):
            # torchvision places a window that is larger than the image differently for boxes and for pixels.
            self._move(is_trial)
            for i in chosen:
                self.leaves[i] = item.transform(self.leaves[i], {})
            return
        if name in _OF_IMAGES:
            return
        # Waiting ops begin with an image of this size.
        if not self._ops:
            self._size = stage.size
        whole = name not in _ALWAYS_CROP and any(_is_whole(op, stage.size) for op in stage.ops)
        self._ops += [(op, item) for op in stage.ops if op.geometric and not whole]

    def _give_boxes(self, step: Step) -> None:
        """Note the boxes if the transform draws by them."""
        # The step draws by boxes if the chain with it has more transforms that do so than the chain before it.
        computes, earlier = step.run.computes, () if step.before is None else step.before.chain
        if computes.draw_by_boxes(step.places) == computes.draw_by_boxes(tuple(one.place for one in earlier)):
            return
        found = [leaf for leaf in self.leaves if isinstance(leaf, _tv("BoundingBoxes"))]
        if len(found) != 1:
            raise UnsupportedError(
                f"it draws by boxes, and the sample has {len(found)} BoundingBoxes instead of one", "beside-image"
            )
        before = (op for one in earlier for stage in computes.stages(one, one.place) for op in stage.ops)
        if any(op.geometric for op in before):
            raise UnsupportedError(
                "it draws by boxes, and an earlier call has moved the image; use one Compose for both",
                "transform-order",
            )
        values = check_boxes(_values(found[0]), found[0].format.value)
        clamping: Any = getattr(found[0], "clamping_mode", "soft")
        step.boxes = BatchBoxes(values, np.zeros(len(values), np.int64), found[0].format.value, clamping)

    def _move(self, is_trial: bool) -> None:
        """Let targets follow the ops up to here."""
        ops, self._ops = self._ops, []
        places = [i for i, leaf in enumerate(self.leaves) if _is_moved(leaf)]
        if not ops or not places:
            return
        moves = Moves.of([op for op, _ in ops], 0, self._size)
        for i in places:
            leaf = self.leaves[i]
            self.leaves[i] = _moved(leaf, moves, ops)
            if is_trial:
                _check_moved(leaf, self.leaves[i], ops)

    def _by_itself(self, stage: Stage) -> None:
        """Let the script's own transform move targets."""
        chosen = self._chosen(stage.item, stage.kind)
        # torchvision gives make_params() the parts that the transform applies to.
        given = [i for i in range(len(self.leaves)) if i in chosen or i == self._main or i in self._others]
        params = stage.item.make_params([of_size(*stage.size) if i == self._main else self.leaves[i] for i in given])
        for i in chosen:
            self.leaves[i] = stage.item.transform(self.leaves[i], params)

    def _whole(self, item: Any) -> None:
        """Call a transform of targets with the whole sample."""
        # torchvision passes on objects of a class that it does not know.
        empty = _Unseen()
        self.leaves[self._main] = empty
        inputs = _pytree.tree_unflatten(self.leaves, self._spec)
        try:
            made = item(*inputs) if self._several else item(inputs)
        except Exception as e:
            raise UnsupportedError(failure(e), "sample-fails") from None
        self.leaves, spec = _pytree.tree_flatten(made)
        if spec != self._spec or self.leaves[self._main] is not empty:
            raise UnsupportedError("it changes the form of the sample", "beside-image")
        self.leaves[self._main] = None

    def _chosen(self, item: Any, kind: str) -> list[int]:
        """Return the places of the parts, other than images, that torchvision applies a transform to."""
        leaves = [*self.leaves]
        # torchvision decides by type: it transforms a plain tensor only if there is no other image, and only the first.
        leaves[self._main] = _small(kind)
        chosen = [i for i, needed in enumerate(item._needs_transform_list(leaves)) if needed]
        others = [i for i in chosen if i != self._main and i not in self._others]
        if kind == "tensor" and any(type(leaves[i]) is torch.Tensor for i in others):
            raise UnsupportedError(
                "it applies to another tensor than the image, which stands before it", "beside-image"
            )
        return others

    def _check_images(self, step: Step, stages: Sequence[Stage]) -> None:
        """Raise :class:`UnsupportedError` unless all images go through all transforms alike."""
        if not (step.before is None or step.before.is_exact) or any(stage.kind == "tensor" for stage in stages):
            raise UnsupportedError(
                "only the first of several images goes through all of its transforms", "beside-image"
            )
        if any(hasattr(op, "seed") for stage in stages for op in stage.ops):
            raise UnsupportedError("each of several images has random pixels of its own", "beside-image")
        for i in self._others:
            other = self.leaves[i]
            if isinstance(other, PendingImage | PendingTensor) or getattr(other, "mode", "") not in ("RGB", "L"):
                raise UnsupportedError(f"its second image is {_described(other)}", "beside-image")
            if other.size != self._image.size:
                raise UnsupportedError("its images have different sizes", "beside-image")


class _Unseen:
    """Placeholder of an image for transforms of targets."""


# ---- what torchvision calls what


def _is_of_second_generation(transform: Any) -> bool:
    return all(known_class(item, _V2) is not None for item in _flat(transform))


def _flat(transform: Any) -> list[Any]:
    parts = parts_of(transform)
    return [transform] if parts is None else [item for part in parts for item in _flat(part)]


def _name(item: Any) -> str:
    """Return the name of a transform of torchvision; ``""`` for anything else and for subclasses that change one."""
    cls = known_class(item, _V2)
    return "" if cls is None or changed_methods(item, cls) else cls.__name__


def _tv(name: str) -> Any:
    """Return a class of ``torchvision.tv_tensors``; ``()`` if this release has none of that name."""
    return getattr(sys.modules["torchvision.tv_tensors"], name, ())


def _is_explicit(leaf: Any) -> bool:
    return isinstance(leaf, (Image.Image, _tv("Image"), _tv("Video")))


def _is_moved(leaf: Any) -> bool:
    return isinstance(leaf, (_tv("Mask"), _tv("BoundingBoxes"), _tv("KeyPoints")))


def _main_image(leaves: list[Any]) -> int | None:
    """Return the place of the image that torchvision finds first; ``None`` if there is none."""
    # A plain tensor is the image only if nothing else is.
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
        raise UnsupportedError(f"it holds {', '.join(wrong)}", "beside-image")


# ---- moving


def _is_whole(op: Op, size: tuple[int, int]) -> bool:
    """Return whether an op crops the whole image. torchvision then calls no functional, which could round boxes."""
    return isinstance(op, Crop) and (op.top[0], op.left[0], op.height[0], op.width[0]) == (0, 0, *size)


def _second_image(step: Step, image: Any) -> Any:
    # The copy keeps the seed, so both images draw the same numbers.
    other = copy.copy(step)
    other.source, other.before, other.places = Source(image), None, (step.place,)
    other._values = other._outputs = None
    return step.run.computes.values(other)[0]


def _moved(leaf: Any, moves: Moves, ops: Sequence[tuple[Op, Any]]) -> Any:
    size = tuple(leaf.shape[-2:]) if isinstance(leaf, _tv("Mask")) else tuple(leaf.canvas_size)
    if size != moves.size:
        have, wanted = (f"{height}x{width}" for height, width in (size, moves.size))
        raise UnsupportedError(
            f"a {type(leaf).__name__} of size {have} cannot follow an image of {wanted}", "beside-image"
        )
    array = _values(leaf)
    wrap = sys.modules["torchvision.tv_tensors"].wrap
    if isinstance(leaf, _tv("Mask")):
        made = moves.mask(array, "floor", [_fill(item, type(leaf)) for _, item in ops])
        return wrap(torch.from_numpy(made), like=leaf)
    if any(isinstance(op, Crop) and op.padded and op.mode != "constant" for op, _ in ops):
        raise UnsupportedError(
            f"a {type(leaf).__name__} cannot follow padding by the image's own pixels", "beside-image"
        )
    if isinstance(leaf, _tv("BoundingBoxes")):
        made = moves.boxes(array, leaf.format.value, getattr(leaf, "clamping_mode", "soft"))
    else:
        made = moves.keypoints(array)
    return wrap(torch.from_numpy(made), like=leaf, canvas_size=moves.out_size)


def _values(leaf: Any) -> Any:
    return leaf.as_subclass(torch.Tensor).numpy()


def _fill(item: Any, kind: Any) -> float:
    """Return what torchvision fills masks with."""
    if _name(item) in _CONTAINERS:
        fills = {_fill(part, kind) for whole in item.transforms for part in _flat(whole)}
        if len(fills) > 1:
            raise UnsupportedError("its transforms fill with different values", "beside-image")
        return fills.pop()
    # v2 stores fill by type, with the value for all other types under "others".
    known = getattr(item, "_fill", {})
    value = known.get(kind, known.get("others"))
    if not isinstance(value, (int, float, type(None))):
        raise UnsupportedError(f"it fills masks with fill={value}; give one number for tv_tensors.Mask", "beside-image")
    return value or 0


def _check_moved(leaf: Any, moved: Any, ops: Sequence[tuple[Op, Any]]) -> None:
    """Raise :class:`UnsupportedError` if this release of torchvision moves a target in another way."""
    F: Any = sys.modules["torchvision.transforms.v2.functional"]
    for op, item in ops:
        if op.passes(0):
            continue
        if isinstance(op, Flip):
            leaf = (F.horizontal_flip if op.axis == "horizontal" else F.vertical_flip)(leaf)
        elif isinstance(op, Resize):
            leaf = F.resize(leaf, [int(op.height[0]), int(op.width[0])])
        elif isinstance(op, Crop):
            top, left, height, width = (int(n[0]) for n in (op.top, op.left, op.height, op.width))
            below, beyond = top + height - F.get_size(leaf)[0], left + width - F.get_size(leaf)[1]
            # In torchvision's order: left, top, right, bottom.
            sides = [max(0, n) for n in (-left, -top, beyond, below)]
            if any(sides):
                fill = _fill(item, type(leaf)) if isinstance(leaf, _tv("Mask")) else 0
                leaf = F.pad(leaf, sides, fill=fill, padding_mode=op.mode)
            outside = op.by_center and isinstance(leaf, _tv("BoundingBoxes")) and ~_centers_within(leaf, op)
            # In the padded target, the window begins at 0 or later.
            leaf = F.crop(leaf, top + sides[1], left + sides[0], height, width)
            # RandomIoUCrop sets the boxes whose center lies outside of the window to zero.
            if outside is not False:
                leaf[outside] = 0
        else:  # whose numbers torchvision does not take
            return
    if not (type(leaf) is type(moved) and leaf.dtype == moved.dtype and torch.equal(leaf, moved)):
        raise UnsupportedError(
            f"this release of torchvision moves a {type(leaf).__name__} in another way", "beside-image"
        )


def _centers_within(boxes: Any, op: Crop) -> Any:
    """Return bool[N]: whether the window of a crop contains the centers of boxes, as ``RandomIoUCrop`` decides it."""
    F: Any = sys.modules["torchvision.transforms.v2.functional"]
    x1, y1, x2, y2 = F.convert_bounding_box_format(boxes.as_subclass(torch.Tensor), boxes.format, "XYXY").unbind(-1)
    x, y, top, left = 0.5 * (x1 + x2), 0.5 * (y1 + y2), int(op.top[0]), int(op.left[0])
    return (left < x) & (x < left + int(op.width[0])) & (top < y) & (y < top + int(op.height[0]))
