"""Access to one sample of a plan: its pixels, and the number of the plan's ops already applied to them.

All code that needs the pixels of a sample uses this: threads that read for DALI, worker processes of the reference
engine, the reference itself, and the retry of a batch that DALI failed on. Images in files come through a chain of
decoders: :class:`~.kept.Kept` caches decoded images, and :class:`~.decoder.Whole` decodes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..codecs.decode import Media
from ..codecs.files import Undecodable
from ..codecs.video.decode import decode_clip, pyav_version
from ..datasets.dataset import Dataset
from ..kernels.picture import Picture
from ..stages import STORAGE
from ..transforms.compose import Compose
from ..types import Plan
from .decoder import Decoder, Part, Wanted, Whole, pillow_version
from .kept import DecodedCache, Kept
from .smaller import Smaller
from .windows import ops_left, window_of

if TYPE_CHECKING:
    from ..transforms.ops import Op
    from .setup import Setup

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]


class Taken(NamedTuple):
    """Pixels of a sample."""

    pictures: Sequence[Picture]
    """Its image, or the frames of a clip, each u8[H, W, 3] or a PIL image in RGB."""
    done: int = 0
    """Number of the plan's ops, from the first, that are already applied to every picture."""


@dataclass(frozen=True)
class Take:
    """Reads samples of a dataset. Picklable and thread-safe."""

    dataset: Dataset
    decoder: Decoder
    smaller: Smaller | None = None

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        pipeline: Compose,
        *,
        cache: DecodedCache | None = None,
        scaled: bool = False,
    ) -> Take:
        """Build with options of a loader.

        ``cache`` stores decoded images, and ``scaled`` decodes large ones at a reduced size.
        """
        decoder: Decoder = Whole(dataset)
        # Outermost, because a cached image need not be read at all.
        if cache is not None:
            decoder = Kept(decoder, dataset, cache)
        return cls(dataset, decoder, Smaller.of(dataset, pipeline) if scaled else None)

    @classmethod
    def of_setup(cls, setup: Setup) -> Take:
        """Build for a loader."""
        return cls.of(setup.dataset, setup.pipeline, cache=setup.cache, scaled=setup.scaled)

    def batch(self, plan: Plan, encoded: Sequence[bytes | Undecodable] | None = None) -> TakeBatch:
        """Return a reader for the samples of a plan.

        Args:
            encoded: the bytes of every file by row, or why they are missing, if they were read already.
        """
        return TakeBatch(self, plan, encoded)

    def read_together(self, plan: Plan) -> list[bytes | Undecodable] | None:
        """Return the encoded images of a plan if one request for all is cheaper than one for each, otherwise ``None``.

        Neighbors in a container are read together, and a network answers many requests at a time.
        """
        dataset = self.dataset
        # Kept images need no file.
        if dataset.kind != "files" or dataset.whole_files or isinstance(self.decoder, Kept):
            return None
        with STORAGE:
            return dataset.source.read([dataset.place(i) for i in plan.indices.tolist()])

    def factors(self, plan: Plan) -> U8:
        """Return u8[B], the reduction of each image."""
        return np.ones(len(plan), np.uint8) if self.smaller is None else self.smaller.factors(plan)


class TakeBatch:
    """Reads the samples of one plan, in any order and in any thread."""

    def __init__(self, take: Take, plan: Plan, encoded: Sequence[bytes | Undecodable] | None = None):
        self._take, self._plan, self._encoded = take, plan, encoded
        self.factors = take.factors(plan)
        """u8[B]"""
        window = window_of(plan.ops or ())
        self._boxes: list[tuple[int, int, int, int]] | None = None
        if window is not None:
            self._boxes = list(
                zip(*(a.tolist() for a in (window.top, window.left, window.height, window.width)), strict=True)
            )
        self.done = np.full(len(plan), int(window is not None), np.uint8)
        """u8[B]: :attr:`Taken.done` for each image in a file."""
        if take.smaller is not None:
            self.done[self.factors > 1] = take.smaller.done

    def sizes(self) -> I32:
        """Return i32[B, 2], height and width of each image in a file when it is taken."""
        plan, window = self._plan, window_of(self._plan.ops or ())
        assert plan.sizes is not None
        sizes = plan.sizes if window is None else np.stack([window.height, window.width], axis=1)
        if self._take.smaller is None:
            return sizes
        return np.where(self.factors[:, None] > 1, self._take.smaller.resized_to(plan), sizes)

    def ops_left(self) -> tuple[Op, ...]:
        """Return the plan's remaining ops for a batch of taken images."""
        return ops_left(self._plan, self.done)

    def __call__(self, row: int) -> Taken:
        """Return the sample of a row.

        Raises :class:`~gpupipe.codecs.files.Undecodable`.
        """
        dataset, plan = self._take.dataset, self._plan
        if plan.frames is not None:
            entry = dataset.entry(int(plan.indices[row]))
            return Taken(list(decode_clip(entry, plan.frames[row], upright=dataset.upright)))
        read = None if self._encoded is None else self._encoded[row]
        if isinstance(read, Undecodable):
            raise read
        return self.image(row, read)

    def image(self, row: int, media: Media | None = None) -> Taken:
        """Return the image of a row.

        Args:
            media: object to decode; ``None`` means the file of the dataset.

        Raises :class:`~gpupipe.codecs.files.Undecodable`.
        """
        smaller, factor = self._take.smaller, int(self.factors[row])
        wanted = Wanted(self._plan, row, None if self._boxes is None else self._boxes[row], factor, media)
        part = self._take.decoder(wanted)
        if factor > 1:
            assert smaller is not None
            return Taken([smaller.resized(part, wanted)], smaller.done)
        if self._boxes is None:
            return Taken([part.picture])
        return Taken([_window(part, wanted)], 1)


def decoder_name(dataset: Dataset) -> str:
    """Return name and version of the decoder for samples of a dataset."""
    if dataset.kind == "clips":
        return pyav_version()
    return pillow_version()


def _window(part: Part, wanted: Wanted) -> Picture:
    # Without a reduction these are whole numbers.
    top, left, bottom, right = map(int, wanted.inside(part.top, part.left))
    if isinstance(part.picture, np.ndarray):
        return part.picture[top:bottom, left:right]
    return part.picture.crop((left, top, right, bottom))
