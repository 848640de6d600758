"""Masks, boxes and keypoints of torchvision that move with the images of a batch."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..kernels.moving import Moves
from ..transforms.ops import Op, Views
from ..translate.classes import exact_name
from ..translate.transforms import parts_of


def name_of_target(part: Any) -> str | None:
    """Return ``"BoundingBoxes"``, ``"KeyPoints"`` or ``"Mask"``; ``None`` for anything else."""
    name = exact_name(part, "torchvision.tv_tensors")
    return name if name in ("BoundingBoxes", "KeyPoints", "Mask") else None


def wrapped(values: Tensor, like: Tensor, **settings: Any) -> Tensor:
    """Return a tensor of the class of ``like``, which is a plain tensor or one of ``tv_tensors``."""
    if type(like) is Tensor:
        return values
    made: Tensor = sys.modules["torchvision.tv_tensors"].wrap(values, like=like, **settings)
    return made


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Change the elements of a list, tuple or mapping."""
    if isinstance(tree, Mapping):
        made = {key: change(part) for key, part in tree.items()}
        if isinstance(tree, MutableMapping) and type(tree) is not dict:
            other = copy.copy(tree)  # constructors may take other arguments, like defaultdict's
            other.update(made)
            return other
        return made if type(tree) is dict else type(tree)(made)  # type: ignore[call-arg]
    parts = [*map(change, tree)]
    if hasattr(tree, "_fields"):
        return type(tree)(*parts)
    return tuple(parts) if isinstance(tree, tuple) else parts


class MovedTargets:
    """Moves what belongs to the images of a batch.

    Args:
        transforms: the script's objects.
        ops: what they became, with a row for each image.
        count: number of images.
        size: height and width of the images before the ops.
    """

    def __init__(self, transforms: Any, ops: Sequence[Op], count: int, size: tuple[int, int]):
        self._transforms, self._ops, self._count, self._size = transforms, ops, count, size
        self._moves: dict[int, Moves] = {}
        self._check_types()

    def moved(self, part: Any, row: int | None = None) -> Any:
        """Move the targets in a part of the batch, or of image ``row``.

        Raises:
            ConfigError: it is unclear which image a target belongs to, or the target is for another size.
            PipelineError: an op does not say how targets move.
        """
        name = name_of_target(part)
        if name is None:
            if exact_name(part, "torchvision.tv_tensors"):
                raise ConfigError(
                    f"augment: a {type(part).__name__} beside the images; only the first tensor is augmented"
                )
            if row is None and isinstance(part, list) and len(part) == self._count:
                return [self.moved(one, i) for i, one in enumerate(part)]
            return mapped(lambda one: self.moved(one, row), part) if isinstance(part, (Mapping, list, tuple)) else part
        if row is not None:
            return self._one(part, name, row)
        if name != "Mask" or len(part) != self._count:
            raise ConfigError(
                f"augment: {name} {list(part.shape)} for all of {self._count} images; give a list with one for each"
            )
        return wrapped(torch.stack([self._mask(mask, i) for i, mask in enumerate(part.as_subclass(Tensor))]), part)

    def _one(self, part: Any, name: str, row: int) -> Tensor:
        if name == "Mask":
            return wrapped(self._mask(part.as_subclass(Tensor), row), part)
        moves = self._moves_of(row)
        if tuple(part.canvas_size) != self._size:
            raise ConfigError(
                f"augment: {name} for an image of {tuple(part.canvas_size)} pixels, but the images have {self._size}"
            )
        values = part.as_subclass(Tensor).cpu().numpy()
        if name == "BoundingBoxes":
            made = moves.boxes(values, part.format.value, getattr(part, "clamping_mode", "soft"))
        else:
            made = moves.keypoints(values)
        return wrapped(torch.from_numpy(made).to(part.device), part, canvas_size=moves.out_size)

    def _mask(self, mask: Tensor, row: int) -> Tensor:
        made = self._moves_of(row).mask(mask.cpu().numpy(), fill=self._fills)
        return torch.from_numpy(made).to(mask.device, self._mask_type or mask.dtype)

    def _moves_of(self, row: int) -> Moves:
        if row not in self._moves:
            if any(isinstance(op, Views) for op in self._ops):
                raise ConfigError("augment: masks, boxes and keypoints cannot move to several views")
            self._moves[row] = Moves.of(self._ops, row, self._size)
        return self._moves[row]

    @cached_property
    def _fills(self) -> list[float]:
        """The value of mask pixels outside the image, for each op."""
        transforms = list(_flat(self._transforms))
        if any(isinstance(getattr(transform, "fill", None), dict) for transform in transforms):
            values = [_of_masks(transform.fill) for transform in transforms if hasattr(transform, "fill")]
            # CenterCrop has no fill and pads with zeros.
            values += [0.0 for transform in transforms if type(transform).__name__ == "CenterCrop"]
            if any(value != values[0] for value in values) or isinstance(values[0], (list, tuple)):
                raise ConfigError(f"augment: the transforms fill masks with {values}, but masks need one value for all")
            return [float(values[0] or 0)] * len(self._ops)
        fills = [set(getattr(op, "fill", None) or (0.0,)) for op in self._ops]
        if several := next((fill for fill in fills if len(fill) > 1), None):
            raise ConfigError(f"augment: fill={sorted(several)} has a value for each channel, but masks need one value")
        return [fill.pop() for fill in fills]

    def _check_types(self) -> None:
        """Raise :class:`ConfigError` if a transform changes the type of anything but images and masks."""
        for wanted in self._dtypes:
            if any(dtype is not None for kind, dtype in wanted.items() if kind not in ("Image", "Mask", "Tensor")):
                raise ConfigError(f"augment: dtype={wanted!r} is for more than images and masks; convert these later")

    @property
    def _mask_type(self) -> torch.dtype | None:
        return next((wanted["Mask"] for wanted in reversed(self._dtypes) if wanted.get("Mask") is not None), None)

    @cached_property
    def _dtypes(self) -> list[dict[str, Any]]:
        """Data types by the name of a class, of each transform that has such."""
        found = [getattr(transform, "dtype", None) for transform in _flat(self._transforms)]
        return [_by_name(each) for each in found if isinstance(each, dict)]


def _of_masks(fill: Any) -> Any:
    if not isinstance(fill, dict):
        return fill or 0.0
    by_name = _by_name(fill)
    return by_name.get("Mask", by_name.get("others")) or 0.0


def _by_name(values: dict[Any, Any]) -> dict[str, Any]:
    """Return values by the name of a class, or by ``"others"``."""
    return {str(getattr(kind, "__name__", kind)): value for kind, value in values.items()}


def _flat(transforms: Any) -> Iterator[Any]:
    yield transforms
    for part in parts_of(transforms) or getattr(transforms, "transforms", None) or ():
        yield from _flat(part)
