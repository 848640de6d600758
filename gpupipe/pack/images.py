"""Conversions of the bytes of images: none, or smaller ones, encoded again."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from ..codecs.decode import open_rgb
from ..codecs.files import Undecodable
from ..codecs.limits import Limits
from ..codecs.pillow import guarded, open_image, orientation_of, quiet
from ..transforms import Resize
from ..transforms.transform import Images

QUALITY = 90
_ORIENTATION = 0x0112


class Kept(NamedTuple):
    """The reason why a sample is copied unchanged."""

    kind: str
    """A short word."""
    reason: str
    """A sentence."""


class AsIs:
    """Copies samples byte for byte."""

    def __str__(self) -> str:
        return "as they are"

    def __call__(self, data: bytes) -> bytes:
        return data


@dataclass(frozen=True)
class Reencoded:
    """Images in RGB as gpupipe decodes them, reduced and encoded as JPEG. The only metadata that is kept is the EXIF
    orientation.

    Args:
        side: shorter side in pixels to which larger images are reduced, as torchvision's ``Resize(side)`` does with a
            PIL image. Smaller images are never enlarged.
        quality: JPEG quality, 1 to 100.
        upright: turn images by their EXIF orientation.
    """

    side: int
    quality: int = QUALITY
    upright: bool = False

    def __str__(self) -> str:
        return f"shorter side at most {self.side}, JPEG of quality {self.quality}{', upright' if self.upright else ''}"

    def __call__(self, data: bytes) -> bytes | Kept | Undecodable:
        with quiet():
            return self._one(data)

    def _one(self, data: bytes) -> bytes | Kept | Undecodable:
        try:
            orientation = guarded(lambda: orientation_of(open_image(io.BytesIO(data)))) if data else 1
            image = open_rgb(data, Limits(exif=self.upright))
        except Undecodable as e:
            return e
        assert isinstance(image, Image.Image)
        turned = self.upright and orientation != 1
        if min(image.size) > self.side:
            image = image.resize(_size(image, self.side), Image.Resampling.BILINEAR)
        elif not turned:
            return Kept("small", f"its shorter side has {min(image.size)} pixels already")
        out, exif = io.BytesIO(), Image.Exif()
        if not self.upright and orientation != 1:
            exif[_ORIENTATION] = orientation
        image.save(out, "JPEG", quality=self.quality, exif=exif)
        return out.getvalue()


def _size(image: Image.Image, side: int) -> tuple[int, int]:
    """(width, height)"""
    # The transform itself computes the size, so that it is torchvision's.
    _, images = Resize(side).resolve(np.empty((1, 0)), Images(np.array([[image.height, image.width]])))
    return int(images.width[0]), int(images.height[0])


Conversion = AsIs | Reencoded
"""A function from the bytes of a sample to new ones, why it is copied unchanged, or why it is left out. Picklable; the
journal keeps its ``str()``."""
