"""One sample of a plan: its pixels, and how many of the plan's ops are done to them.

Whoever needs the pixels of a sample takes it here: the threads that read for DALI, the worker processes of the
reference engine, the reference itself, and the second look at a batch that DALI failed on. An image in a file comes
through a chain of decoders: :class:`~.kept.Kept` remembers what was decoded before, :class:`~.tiles.Sliced` reads the
tiles under a window, and :class:`~.decoder.Whole` decodes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import PIL
from PIL import features

from ..codecs.decode import Media
from ..codecs.files import Undecodable
from ..codecs.video.decode import decode_clip, pyav_version
from ..datasets.base import Dataset
from ..kernels.picture import Picture
from ..transforms.compose import Compose
from ..types import ByHand, Plan
from .decoder import Decoder, Part, Wanted, Whole
from .kept import DecodedCache, Kept
from .smaller import Smaller
from .tiles import Cuts, Sliced
from .windows import ops_left, window_of

if TYPE_CHECKING:
    from ..transforms.ops import Op
    from .setup import Setup

__all__ = ["Take", "TakeBatch", "Taken", "decoder_name"]

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]


class Taken(NamedTuple):
    """The pixels of a sample."""

    pictures: Sequence[Picture]
    """Its image; its images, if it has several; or the frames of a clip. Each is u8[H, W, 3], or a PIL image in RGB."""
    done: int = 0
    """So many of the plan's ops, from the first one on, are done to every picture."""
    target: Any = None
    """What user code returned beside the images."""
    decoded: bool = True
    """``False`` if the pixels were kept from before."""


@dataclass(frozen=True)
class Take:
    """Takes samples of a dataset. Picklable; safe in any thread."""

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
        sliced: bool = True,
    ) -> Take:
        """With the options of a loader: ``cache`` keeps decoded images, ``scaled`` decodes large ones smaller, and
        ``sliced`` decodes only the tiles under a window where a file has tiles."""
        decoder: Decoder = Whole(dataset)
        cuts = Cuts.of(dataset) if sliced else None
        if cuts is not None:
            decoder = Sliced(decoder, cuts)
        if cache is not None:
            decoder = Kept(decoder, dataset, cache)
        return cls(dataset, decoder, Smaller.of(dataset, pipeline) if scaled else None)

    @classmethod
    def of_setup(cls, setup: Setup) -> Take:
        return cls.of(setup.dataset, setup.pipeline, cache=setup.cache, scaled=setup.scaled)

    def batch(self, plan: Plan, encoded: Sequence[bytes | Undecodable] | None = None) -> TakeBatch:
        """What takes the samples of a plan.

        Args:
            encoded: by row the bytes of every file, or why there are none, if they were read already.
        """
        return TakeBatch(self, plan, encoded)

    def read_together(self, plan: Plan) -> list[bytes | Undecodable] | None:
        """The encoded images of a plan, where one request for all of them is cheaper than one for each: neighbours in a
        container are read together, and a network answers many at a time. ``None`` elsewhere."""
        dataset = self.dataset
        if dataset.kind != "files" or dataset.whole_files or isinstance(self.decoder, Kept):
            return None
        if isinstance(self.decoder, Sliced) and self.decoder.cuts.in_parts:
            return None
        return dataset.source.read([dataset.place(i) for i in plan.indices.tolist()])

    def factors(self, plan: Plan) -> U8:
        """u8[B]: how many times smaller each image is decoded."""
        return np.ones(len(plan), np.uint8) if self.smaller is None else self.smaller.factors(plan)


class TakeBatch:
    """Takes the samples of one plan, in any order and in any thread."""

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
        """u8[B]: :attr:`Taken.done` of each image in a file."""
        if take.smaller is not None:
            self.done[self.factors > 1] = take.smaller.done

    def sizes(self) -> I32:
        """i32[B, 2]: height and width of each image in a file, as it is taken."""
        plan, window = self._plan, window_of(self._plan.ops or ())
        assert plan.sizes is not None
        sizes = plan.sizes if window is None else np.stack([window.height, window.width], axis=1)
        if self._take.smaller is None:
            return sizes
        return np.where(self.factors[:, None] > 1, self._take.smaller.resized_to(plan), sizes)

    def ops_left(self) -> tuple[Op, ...]:
        """The plan's ops, as they are for a batch of images as they are taken."""
        return ops_left(self._plan, self.done)

    def __call__(self, row: int) -> Taken | ByHand:
        """The sample of a row; what the script's own code made, if it made the sample.

        Raises :class:`~gpupipe.codecs.files.Undecodable`, and what user code raises.
        """
        dataset, index = self._take.dataset, int(self._plan.indices[row])
        if dataset.runs_user_code:
            fetched: Any = dataset.fetch(index)
            if isinstance(fetched, ByHand):
                return fetched
            media, target = fetched
            images = media if dataset.images_per_sample > 1 else [media]
            return Taken([self.image(row, image).pictures[0] for image in images], target=target)
        return self.known(row)

    def known(self, row: int) -> Taken:
        """The sample of a row, by what the dataset knows of it without user code.

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
        """The image of a row.

        Args:
            media: what is to be decoded; ``None``: the file that the dataset has.

        Raises :class:`~gpupipe.codecs.files.Undecodable`.
        """
        smaller, factor = self._take.smaller, int(self.factors[row])
        wanted = Wanted(self._plan, row, None if self._boxes is None else self._boxes[row], factor, media)
        part = self._take.decoder(wanted)
        if factor > 1:
            assert smaller is not None
            return Taken([smaller.resized(part, wanted)], smaller.done, decoded=part.decoded)
        if self._boxes is None:
            return Taken([part.picture], decoded=part.decoded)
        return Taken([_window(part, wanted)], 1, decoded=part.decoded)


def decoder_name(dataset: Dataset) -> str:
    """What decodes samples of a dataset here, with its version."""
    if dataset.kind == "clips":
        return pyav_version()
    turbo = features.version_feature("libjpeg_turbo")
    return f"Pillow {PIL.__version__}" + (f", libjpeg-turbo {turbo}" if turbo else "")


def _window(part: Part, wanted: Wanted) -> Picture:
    top, left, bottom, right = map(int, wanted.inside(part.top, part.left))
    if isinstance(part.picture, np.ndarray):
        return part.picture[top:bottom, left:right]
    return part.picture.crop((left, top, right, bottom))
