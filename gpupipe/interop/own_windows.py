"""Transforms that a script derives from torchvision's ``v2.Transform`` and that pad or crop by the size of an image.

``PadIfSmaller`` of torchvision's reference for segmentation is one. Such a transform runs with an image that has a size
and no pixels, and notes which window of it remains. It is used only if it draws nothing, if everything that its code
reaches is known, and if real images of several sizes come out equal in every bit.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
import torch

from ..global_rng import drawn, lent, seed_all
from ..kernels.apply import apply_sample
from ..kernels.picture import pil
from ..reasons import failure
from ..transforms.fields import frozen
from ..transforms.numbers import i32
from ..transforms.ops import Crop
from ..transforms.ops.op import F64, Kind
from ..transforms.transform import Images, Ops, Transform
from .classes import changed_methods, known_class
from .closed import NotClosed, outside
from .same_names import UnsupportedError

_METHODS = {"make_params", "transform", "check_inputs", "_transformed_types"}
"""Members that such a class may define."""
_SIZES = ((9, 13), (40, 200), (300, 31), (701, 822))
"""Heights and widths of the images that it is tried with."""


def is_own(t: Any) -> bool:
    """Return whether ``t`` is of a class that a script derives from torchvision's ``v2.Transform`` itself."""
    cls = known_class(t, "torchvision.transforms.v2")
    return cls is not None and cls.__name__ == "Transform" and type(t) is not cls


@frozen
class Window(Transform):
    """Do what a script's own transform of windows does."""

    theirs: Any

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        try:
            found = [_window(self.theirs, *size) for size in images.sizes.tolist()]
        except Exception as e:
            raise self.refuse(f"it fails for an image: {failure(e)}") from e
        fills = {fill for *_, fill in found if fill is not None}
        if len(fills) > 1:
            raise self.refuse("it fills images of different sizes with different values")
        top, left, height, width = (i32(np.array([window[k] for window in found])) for k in range(4))
        crop = Crop(top, left, height, width, padded=True, fill=fills.pop() if fills else (0.0,))
        return (crop,), images.sized(height.astype(np.int64), width.astype(np.int64))


def own_window(t: Any, kind: Kind, channels: int) -> Window:
    """Translate a transform of windows. Raises :class:`UnsupportedError` if it is none."""
    cls = known_class(t, "torchvision.transforms.v2")
    assert cls is not None
    changed = {name.rpartition(".")[2] for name in changed_methods(t, cls)}
    try:
        for name in changed - {"_transformed_types"}:
            outside(getattr(type(t), name))
    except NotClosed as e:
        raise UnsupportedError(f"its code may see something that changes: {e}", "own-methods") from None
    if changed - _METHODS:
        raise UnsupportedError(f"it defines {', '.join(sorted(changed - _METHODS))}", "own-methods")
    made = Window(t)
    rng = np.random.default_rng(0)
    with lent():
        seed_all(0)
        for height, width in _SIZES:
            pixels = rng.integers(0, 256, (height, width, channels), np.uint8)
            # A draw shows here even if it did not change this window.
            before = drawn()
            try:
                theirs = t(_as(kind, pixels))
                ours = made.resolve(np.zeros((1, 0)), Images(np.array([[height, width]]), kind, channels=channels))[0]
                alike = np.array_equal(_pixels(theirs), np.atleast_3d(apply_sample(pixels, ours, 0)))
            except Exception as e:
                raise UnsupportedError(f"it cannot be tried: {failure(e)}", "own-methods") from None
            if drawn() != before or not alike:
                raise UnsupportedError("it does more than pad or crop by the size of the image", "own-methods")
    return made


def of_size(height: int, width: int) -> Any:
    """Return an image without pixels, which notes how it is padded and cropped."""
    # Expanded from a single byte, so a size of any number of pixels costs nothing.
    made = torch.zeros(1, dtype=torch.uint8).expand(3, height, width).as_subclass(_sized())
    made.window, made.fill = (0, 0, height, width), None
    return made


def _window(t: Any, height: int, width: int) -> tuple[int, int, int, int, tuple[float, ...] | None]:
    """Return top, left, height, width of what remains of an image, and the fill."""
    image = of_size(height, width)
    made = t.transform(image, t.make_params([image]))
    if type(made) is not _sized():
        raise UnsupportedError("it does more than pad or crop", "own-methods")
    return (*made.window, made.fill)


@cache
def _sized() -> Any:
    tv, functional = sys.modules["torchvision.tv_tensors"], sys.modules["torchvision.transforms.v2.functional"]

    class Sized(tv.Image):  # type: ignore[misc, name-defined]
        """An image of which only the size is known."""

        window: tuple[int, int, int, int]
        fill: tuple[float, ...] | None

    def cut(image: Any, top: int, left: int, height: int, width: int, fill: Any = None) -> Any:
        made = of_size(height, width)
        # Relative to the original image, so negative where it was padded.
        made.window = (image.window[0] + top, image.window[1] + left, height, width)
        made.fill = image.fill if fill is None else fill
        if image.fill is not None and fill is not None:
            raise UnsupportedError("it pads twice", "own-methods")
        return made

    def pad(image: Any, padding: Any, fill: Any = None, padding_mode: str = "constant") -> Any:
        sides = [padding] if isinstance(padding, int) else list(padding)
        left, top, right, bottom = sides * (4 // len(sides))
        if padding_mode != "constant":
            raise UnsupportedError("it pads with the image's own pixels", "own-methods")
        values = (
            (0.0,) if fill is None else (float(fill),) if isinstance(fill, (int, float)) else tuple(map(float, fill))
        )
        height, width = image.shape[-2:]
        return cut(image, -top, -left, top + height + bottom, left + width + right, tuple(map(float, values)))

    # v2's functions look up a kernel by the type of their argument, so calls with this class come here.
    functional.register_kernel(functional.pad, Sized)(pad)
    functional.register_kernel(functional.crop, Sized)(cut)
    return Sized


def _as(kind: Kind, pixels: Any) -> Any:
    if kind == "pil":
        return pil(pixels)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    return sys.modules["torchvision.tv_tensors"].Image(tensor)


def _pixels(image: Any) -> Any:
    return np.atleast_3d(image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image))
