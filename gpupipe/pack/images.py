"""The form of images that are encoded again: smaller, or as pixels."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ..codecs.decode import open_rgb
from ..codecs.files import Undecodable
from ..codecs.limits import Limits
from ..codecs.pillow import guarded, open_image, orientation_of, quiet
from ..errors import ConfigError
from ..transforms import Resize
from ..transforms.transform import Images
from .conversion import Kept

RAW = "PPM"
"""Pillow's name of the format of plain pixels."""
QUALITY = 90
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Reencoded:
    """Images in RGB as gpupipe decodes them, reduced and encoded again. The only metadata that is kept is the EXIF
    orientation, and plain pixels cannot keep that either.

    Args:
        side: shorter side in pixels to which larger images are reduced, as torchvision's ``Resize(side)`` does with a
            PIL image; ``None`` reduces none. Smaller images are never enlarged.
        quality: JPEG quality, 1 to 100.
        raw: write plain pixels instead of JPEG.
        upright: turn images by their EXIF orientation.

    Raises:
        ConfigError: ``side`` or ``quality`` is out of range, or nothing would change but the quality.
    """

    side: int | None
    quality: int = QUALITY
    raw: bool = False
    upright: bool = False

    def __post_init__(self) -> None:
        if self.side is not None and self.side < 1:
            raise ConfigError(f"the side to resize to must be a positive number of pixels, not {self.side}")
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"the quality of JPEG must be 1 to 100, not {self.quality}")
        if self.side is None and not self.raw:
            raise ConfigError("encoding images again without resizing them only loses quality; leave the quality out")

    @property
    def made(self) -> str:
        """Pillow's name of the format of the new bytes."""
        return RAW if self.raw else "JPEG"

    def __str__(self) -> str:
        what = "whole" if self.side is None else f"shorter side at most {self.side}"
        how = f"pixels in {RAW}" if self.raw else f"JPEG of quality {self.quality}"
        return f"{what}, {how}{', upright' if self.upright else ''}"

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
        if self.side is not None and min(image.size) > self.side:
            image = image.resize(_size(image, self.side), Image.Resampling.BILINEAR)
        elif not self.raw and not turned:
            return Kept("small", f"its shorter side has {min(image.size)} pixels already")
        out = io.BytesIO()
        if self.raw:
            image.save(out, RAW)
            return out.getvalue()
        exif = Image.Exif()
        if not self.upright and orientation != 1:
            exif[_ORIENTATION] = orientation
        image.save(out, "JPEG", quality=self.quality, exif=exif)
        return out.getvalue()


def _size(image: Image.Image, side: int) -> tuple[int, int]:
    """(width, height)"""
    # The transform itself computes the size, so that it is torchvision's.
    _, images = Resize(side).resolve(np.empty((1, 0)), Images(np.array([[image.height, image.width]])))
    return int(images.width[0]), int(images.height[0])
