"""Decoders of single images, chained: each does one thing and passes the rest on to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import PIL
from PIL import features

from ..codecs.decode import Media
from ..datasets.dataset import Dataset
from ..kernels.picture import Picture, size_of
from ..types import Plan
from .sample import changed


def pillow_version() -> str:
    """Return the versions of Pillow and of its JPEG decoder."""
    turbo = features.version_feature("libjpeg_turbo")
    return f"Pillow {PIL.__version__}" + (f", libjpeg-turbo {turbo}" if turbo else "")


@dataclass(frozen=True)
class Wanted:
    """A window of the image in one row of a plan."""

    plan: Plan
    row: int
    box: tuple[int, int, int, int] | None = None
    """Top, left, height and width of the window in the upright image, in pixels; ``None`` means the whole image."""
    factor: int = 1
    """Reduction: the image is decoded at 1/``factor`` of its size, 1, 2, 4 or 8."""
    encoded: Media | None = None
    """Bytes or path of the file, if already known."""

    @property
    def index(self) -> int:
        """Index of the sample in the dataset."""
        return int(self.plan.indices[self.row])

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright image, as indexed."""
        assert self.plan.sizes is not None
        height, width = self.plan.sizes[self.row].tolist()
        return height, width

    def inside(self, top: float, left: float) -> tuple[float, float, float, float]:
        """Return the window in a decoded picture: top, left, bottom and right, in its pixels.

        Args:
            top, left: position of the upright image's first pixel in the picture.
        """
        first_row, first_column, height, width = self.box or (0, 0, *self.size)
        y, x = top + first_row / self.factor, left + first_column / self.factor  # eighths are exact
        return y, x, y + height / self.factor, x + width / self.factor


class Part(NamedTuple):
    """A decoded window, possibly with pixels around it."""

    picture: Picture
    """u8[H, W, 3], or a PIL image in RGB."""
    top: float = 0
    """Position of the upright image's first pixel, in pixels of ``picture``; negative if it is outside."""
    left: float = 0


class Decoder(Protocol):
    """Decodes images of one dataset. Picklable and thread-safe."""

    def __call__(self, wanted: Wanted) -> Part:
        """Decode a window. Raises :class:`~gpupipe.codecs.files.Undecodable`."""


@dataclass(frozen=True)
class Whole:
    """Decodes whole files with Pillow."""

    dataset: Dataset

    def __call__(self, wanted: Wanted) -> Part:
        dataset = self.dataset
        media: Any = dataset.fetch(wanted.index)[0] if wanted.encoded is None else wanted.encoded
        if wanted.factor > 1:
            found = dataset.open_smaller(media, wanted.factor)
            part, size = Part(found.image, found.top, found.left), found.size
        else:
            part = Part(dataset.open(media))
            size = size_of(part.picture)
        if wanted.plan.sizes is not None and size != wanted.size:
            raise changed(wanted.size, size)
        return part
