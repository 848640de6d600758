"""Reading of masks, whose pixels are ids and not colors."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .files import Place, Undecodable, read_place
from .limits import Limits
from .pillow import guarded, open_image, quiet

_GRAY = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L", "F")


def read_mask(path: str | os.PathLike[str], *, rgb_ids: bool = False, limits: Limits = Limits()) -> npt.NDArray[Any]:
    """Return the ids [H, W] of a mask file.

    Palette images (VOC, ADE20K) and gray images give uint8, also those of one bit, with 0 and 1. Images of 16 bits
    (Cityscapes, KITTI) and 32 bits give int32, because torch computes little with uint16. Images of floats, such as
    depth, stay float32.

    Args:
        rgb_ids: whether colors are ids: ``red + 256 * green + 65536 * blue``, as in COCO's panoptic masks. int32.

    Raises:
        Undecodable: the file cannot be read, or has colors without ``rgb_ids``.
    """
    encoded = read_place(Place(os.fsencode(path), max_bytes=limits.max_bytes))
    if not encoded:
        raise Undecodable("empty", "0 bytes")

    def ids() -> npt.NDArray[Any]:
        image = open_image(io.BytesIO(encoded), limits.max_pixels)
        if rgb_ids and image.mode in ("RGB", "RGBA"):
            red, green, blue = np.moveaxis(np.asarray(image)[..., :3].astype(np.int32), -1, 0)
            return np.asarray(red + 256 * green + 65536 * blue)
        if image.mode not in _GRAY or rgb_ids:
            raise Undecodable("mask", f"mode {image.mode} {_ADVICE[rgb_ids]}")
        values = np.array(image)
        small = values.dtype.kind == "b" or values.dtype == np.uint8
        return values.astype(np.uint8 if small else np.float32 if values.dtype.kind == "f" else np.int32, copy=False)

    with quiet():
        return guarded(ids)


_ADVICE = {
    False: "has colors, but the pixels of a mask are ids; use rgb_ids=True if colors encode ids as in COCO's panoptic "
    "masks, or convert the file",
    True: "has no colors that encode ids; remove rgb_ids=True",
}
