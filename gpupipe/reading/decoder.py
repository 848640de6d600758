"""What decodes one image of a file: a chain of decoders. Each does one thing, and leaves the rest to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ..codecs.decode import Media
from ..datasets.base import Dataset
from ..kernels.picture import Picture, size_of
from ..types import Plan
from .sample import changed

__all__ = ["Decoder", "Part", "Wanted", "Whole"]


@dataclass(frozen=True)
class Wanted:
    """A window of the image in one row of a plan."""

    plan: Plan
    row: int
    box: tuple[int, int, int, int] | None = None
    """Top, left, height and width of the window in the upright image, in pixels; ``None``: the whole image."""
    factor: int = 1
    """The image is decoded at 1/``factor`` of its size: 1, 2, 4 or 8."""
    encoded: Media | None = None
    """The bytes of the file, or its path, if they are known already."""

    @property
    def index(self) -> int:
        """Position of the sample in the dataset."""
        return int(self.plan.indices[self.row])

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright image, as indexed."""
        assert self.plan.sizes is not None
        height, width = self.plan.sizes[self.row].tolist()
        return height, width

    def inside(self, top: float, left: float) -> tuple[float, float, float, float]:
        """The window in a decoded picture: top, left, bottom and right, in its pixels.

        Args:
            top, left: where the first pixel of the upright image lies in the picture.
        """
        first_row, first_column, height, width = self.box or (0, 0, *self.size)
        y, x = top + first_row / self.factor, left + first_column / self.factor  # eighths are exact
        return y, x, y + height / self.factor, x + width / self.factor


class Part(NamedTuple):
    """The decoded window, possibly with pixels around it."""

    picture: Picture
    """u8[H, W, 3], or a PIL image in RGB."""
    top: float = 0
    """Where the first pixel of the upright image lies, in pixels of ``picture``: negative if it is not here."""
    left: float = 0
    decoded: bool = True
    """``False`` if the pixels were kept from before."""


class Decoder(Protocol):
    """Decodes images of one dataset. Picklable; safe in any thread."""

    def __call__(self, wanted: Wanted) -> Part:
        """Raises :class:`~gpupipe.codecs.files.Undecodable`."""


@dataclass(frozen=True)
class Whole:
    """Decodes whole files, with Pillow."""

    dataset: Dataset

    def __call__(self, wanted: Wanted) -> Part:
        dataset = self.dataset
        media: Any = dataset.fetch(wanted.index)[0] if wanted.encoded is None else wanted.encoded
        if wanted.factor > 1:
            found = dataset.open_smaller(media, wanted.factor)
            part, size = Part(found.image, found.top, found.left), found.size
        else:
            # The index of a strict dataset knows what is damaged; user code has no index.
            part = Part(dataset.open(media, strict=dataset.limits.strict and dataset.runs_user_code))
            size = size_of(part.picture)
        if wanted.plan.sizes is not None and size != wanted.size:
            raise changed(wanted.size, size)
        return part
