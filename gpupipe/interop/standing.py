"""Stand-in for a transform while a script's dataset runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from ..reasons import Reason
from . import albumentations
from .classes import exact_name, known_class
from .joint import is_joint, joint
from .noting import called, noted, noted_as, rest_of
from .pending import PendingTensor
from .steps import TO_ARRAY, TO_IMAGE, TO_TENSOR
from .transforms import parts_of
from .unread_arrays import UnreadArray


class Standing:
    """Records that a transform was applied to an image, and returns a pending result.

    Args:
        transform: the script's object, which is called with anything other than an image.
        place: its number among those that the dataset holds.
    """

    _transform: Any
    _place: int
    _of_arrays: bool

    def __init__(self, transform: Any, place: int):
        of_arrays = known_class(transform, albumentations.MODULE) is not None
        self.__dict__.update(_transform=transform, _place=place, _of_arrays=of_arrays)

    def __call__(self, *given: Any, **named: Any) -> Any:
        made: Any = NotImplemented
        if self._of_arrays:
            if given or named.keys() != {"image"}:
                what = ", ".join(named) or "something unnamed"
                why = f"it gives {what} to albumentations, which gpupipe replaces only for one image"
                called(Reason(why, "beside-image"))
            elif not _is_color(named["image"]):
                called(Reason("it gives albumentations something other than an image uint8[H, W, 3]", "own-pixels"))
            else:
                made = noted_as(TO_ARRAY, self._place, named["image"])
                made = made if made is NotImplemented else {"image": made}
        elif not named and is_joint(self._transform, given):
            made = joint(self._transform, self._place, given, _noted)
        elif len(given) == 1 and not named:
            made = _noted(self._place, given[0])
            if made is NotImplemented and not _is_image(given[0]):
                return self._begun(given[0])
        return self._transform(*given, **named) if made is NotImplemented else made

    def _begun(self, value: Any) -> Any:
        """Apply a container to something that no engine accepts, such as a path or an image of another mode. Its steps
        run one by one; the rest is recorded as soon as there is an image."""
        steps = parts_of(self._transform)
        # rest_of() returns None where nothing is recorded.
        if steps is None or rest_of(self._place, 1) is None:
            return self._transform(value)
        for begun, step in enumerate(steps, 1):
            value = step(value)
            place = rest_of(self._place, begun)
            if place is not None and begun < len(steps) and (made := _noted(place, value)) is not NotImplemented:
                return made
        return value

    # The script may read attributes of its transform, such as its size. copy and pickle must not get special methods of
    # the transform, so they see none.
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._transform, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._transform, name, value)


def _noted(place: int, given: Any) -> Any:
    if _is_image(given):
        return noted(place, given)
    if _is_color(given):
        return noted_as(TO_ARRAY, place, given)
    is_plain = type(given) is torch.Tensor
    if (is_plain or exact_name(given, "torchvision.tv_tensors") == "Image") and _is_bytes(given):
        return noted_as(TO_TENSOR if is_plain else TO_IMAGE, place, given)
    return NotImplemented


def _is_bytes(image: torch.Tensor) -> bool:
    """Tell whether it is an image uint8[C, H, W] in memory, in color or gray."""
    return image.dtype is torch.uint8 and image.ndim == 3 and image.shape[0] in (1, 3) and image.device.type == "cpu"


def _is_image(given: Any) -> bool:
    """Tell whether engines accept it. Transforms may treat other modes differently, for instance convert them."""
    return isinstance(given, PendingTensor) or (isinstance(given, Image.Image) and given.mode in ("RGB", "L"))


def _is_color(image: Any) -> bool:
    """Tell whether it is an image uint8[H, W, 3]."""
    is_array = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,)
    return type(image) is UnreadArray or is_array
