"""What a dataset is: a columnar index of samples. It knows nothing of batches, orders or devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from .. import provided
from ..codecs import damage
from ..codecs.coding import Coding
from ..codecs.decode import Media, Pixels, Smaller, open_rgb, open_smaller
from ..codecs.files import Place, Undecodable
from ..codecs.limits import MAX_BYTES, Limits
from ..errors import BadSample, ConfigError, MissingDependency, PipelineError, SampleError
from ..media import IMAGE, Medium
from ..sources.base import Source
from ..sources.storage import Found
from ..targets import Labels, Target
from ..transforms.compose import Compose
from ..types import ByHand
from .sample_form import SampleForm

if TYPE_CHECKING:
    from ..codecs.video.decode import VideoEntry

__all__ = ["Dataset", "checked_limits"]


class Dataset(ABC):
    """Base class. Columns are numpy arrays with one row per sample."""

    kind: Literal["files", "pixels", "clips", "user code"]
    """Where samples come from: encoded images in files, pixels in memory, clips of videos, or user code, which belongs
    into worker processes. For :mod:`gpupipe.reading` alone."""
    whole_files: bool = False
    """Whether every sample is a whole local file, which an engine may open by itself."""
    limits: Limits = Limits()
    """How encoded images are turned, and which are bad samples: found by the index, or if there is none when each
    sample is read."""
    medium: Medium = IMAGE
    """What a sample shows, and how a batch of it lies in memory."""
    upright: bool = False
    """Of clips: whether frames are turned as their file asks for."""
    transform: Compose
    form: SampleForm | None = None
    """How images and the rest stand in a batch, if not as ``[images, target]``."""

    keeps_targets: bool = False
    """Of user code: whether the targets of a batch stay a list, for a collate function."""
    makes_by_hand: bool = False
    """Whether :meth:`by_hand` can make single samples. Only datasets of user code can."""
    results: tuple[tuple[int, int], ...] = ()
    """Of user code whose samples are of several images: for each result in a sample the number of its image, and that
    of the view which the pipeline makes of every image."""
    images_per_sample: int = 1
    """How many images :meth:`fetch` returns for a sample: a list if there are several. Only user code has several."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def sizes(self) -> npt.NDArray[np.int32] | None:
        """i32[N, 2]: height and width as decoded (upright if ``limits.exif``), 0 and 0 of a bad sample; ``None`` if
        only reading tells."""

    def common_size(self) -> tuple[int, int] | None:
        """(height, width) if it is known, and the same for all samples that are not bad. Looks at all of them."""
        sizes = self.sizes
        if sizes is None or not len(sizes):
            return None
        good = sizes[:, 0] > 0
        first = sizes[int(np.argmax(good))]
        same = bool(((sizes == first).all(axis=1) | ~good).all()) and bool(good.any())
        return (int(first[0]), int(first[1])) if same else None

    @property
    def runs_user_code(self) -> bool:
        """Whether :meth:`fetch` runs user code."""
        return self.kind == "user code"

    def refresh(self) -> None:  # noqa: B027
        """The script has changed its dataset; nothing is to be done unless something was copied from it."""

    def check_transform(self) -> None:
        """Raise :class:`PipelineError` if the transform is for samples of another kind."""
        if self.transform.temporal and not self.medium.moves:
            raise PipelineError(
                f"{self.transform.temporal[0]!r} chooses among the frames of clips, and {self!r} has images; leave it "
                "out, or use datasets.VideoFolder or datasets.VideoList"
            )

    def forget(self, index: int) -> bool:
        """Whatever copy of a sample's bytes this machine has is not read any more. Whether there was one."""
        return False

    def by_hand(self, index: int) -> ByHand:
        """The sample as the script's own code makes it, transforms and all; with ``makes_by_hand`` only."""
        raise NotImplementedError

    @property
    @abstractmethod
    def labels(self) -> npt.NDArray[np.int64] | None:
        """i64[N], or ``None`` if there are none, or if only :meth:`fetch` knows them (``runs_user_code``)."""

    @property
    def target_columns(self) -> Mapping[str, Target]:
        """What belongs to every image and is known before it is decoded, by name; empty if there is nothing."""
        labels: Mapping[str, Target] = {} if self.labels is None else {"label": Labels(self.labels)}
        return {**labels, **self.columns}

    @property
    def columns(self) -> Mapping[str, Target]:
        """Those of ``target_columns`` that come with each sample beside its label."""
        return {}

    @property
    def codings(self) -> tuple[npt.NDArray[np.uint8], Sequence[Coding]] | None:
        """(u8[N], codings): how each file is encoded, as an index into codings. An index behind the last of them is a
        coding without a name. ``None`` if only reading tells."""
        return None

    @property
    def orientations(self) -> npt.NDArray[np.uint8] | None:
        """u8[N]: how each image must be turned to be upright, 1 to 8 as EXIF counts; 1 of all without ``limits.exif``.
        ``None`` if only reading tells."""
        return None

    @property
    def file_sizes(self) -> npt.NDArray[np.int64] | None:
        """i64[N]: bytes of each encoded image; ``None`` if only reading tells."""
        return None

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A short text that changes when the samples do; what a resumed run is checked against."""

    @abstractmethod
    def fetch(self, index: int) -> tuple[Media, Any]:
        """(media, target) of one sample; the target is ``None`` if there is none."""

    def describe(self, index: int) -> str:
        """The sample's path, or another name that a person can find it by."""
        return f"sample {index} of {type(self).__name__}"

    def bad(self, indices: npt.NDArray[np.int64]) -> list[BadSample]:
        """Those of ``indices`` that are known to be unreadable."""
        return []

    def open(self, media: Media, *, strict: bool = False) -> Pixels | Image.Image:
        """What :meth:`fetch` gave of one of its images, decoded within its limits; see
        :func:`~gpupipe.codecs.decode.open_rgb`. ``strict``: refuse a JPEG that libjpeg repairs, which the index of a
        strict dataset knows already."""
        return open_rgb(media, self.limits._replace(strict=strict))

    def open_smaller(self, media: str | bytes, factor: int) -> Smaller:
        """The same of a JPEG, at 1/``factor``; see :func:`~gpupipe.codecs.decode.open_smaller`."""
        return open_smaller(media, factor, self.limits)

    def raw(self, index: int) -> tuple[Any, Any]:
        """(what the transform is given, label) of one sample, for looking at data by hand: a PIL image in RGB, upright
        if ``limits.exif``; of clips the frames u8[T, H, W, 3] that seed 0 gives in epoch 0.

        Raises :class:`~gpupipe.codecs.files.Undecodable`.
        """
        media, label = self.fetch(index)
        image = self.open(media, strict=self.limits.strict)
        return Image.fromarray(image) if isinstance(image, np.ndarray) else image, label

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """(transformed image, label) of one sample, as torchvision's datasets give it: what :meth:`raw` gives if there
        is no transform, else a tensor [C, H, W] (a tuple of them for several views, a clip in its layout) by the
        reference's operations. Random numbers come from torch's generator. MixUp and CutMix, which work on batches, are
        left out. For a look at single samples; training goes through the loader.

        Raises IndexError, and :class:`~gpupipe.errors.SampleError` if it cannot be read.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        index %= len(self)
        try:
            if not len(self.transform):
                return self.raw(index)
            return provided.one_sample(self, index)
        except Undecodable as e:
            raise SampleError([BadSample(index, self.describe(index), e.kind, e.reason)]) from None

    @property
    def source(self) -> Source:
        """What reads the bytes of samples; of ``"files"`` only."""
        raise NotImplementedError

    def place(self, index: int) -> Place:
        """Where the bytes of a sample are; of ``"files"`` only."""
        raise NotImplementedError

    def file(self, index: int) -> bytes:
        """The path of the file that a sample is in; of ``"files"`` and ``"clips"`` only."""
        return self.place(index).path

    def found(self, index: int) -> Found:
        """What the file that a sample is in was when it was indexed; of ``"files"`` only."""
        raise NotImplementedError

    def encoded_paths(self, indices: npt.NDArray[np.int64]) -> list[npt.NDArray[np.uint8]]:
        """The absolute paths as bytes, u8[L] each; of ``whole_files`` only."""
        raise NotImplementedError

    def encoded_sizes(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """The bytes of each of these files when it was indexed, i64[L]; ``None`` if nobody knows."""
        return None

    def choose(
        self, seed: int, epoch: int, keys: npt.NDArray[np.uint64], indices: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64] | None:
        """The frames i64[B, T] of the clips ``indices``; ``None`` of images."""
        return None

    def entry(self, index: int) -> VideoEntry:
        """What decoding a clip needs to know of its video; of clips only."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} samples)"


def checked_limits(limits: Limits) -> Limits:
    """The image options of a public constructor. Raises :class:`ConfigError` and :class:`MissingDependency`."""
    exif, max_pixels, max_bytes, strict = limits
    if not isinstance(strict, bool):
        raise ConfigError(f"strict must be True or False, not {strict!r}")
    if strict and not damage.installed():
        raise MissingDependency(
            "strict=True asks simplejpeg what libjpeg repairs, and it is not installed: pip install "
            "'gpupipe-loader[strict]', or leave strict out"
        )
    if max_pixels is not None and (type(max_pixels) is not int or max_pixels < 1):
        raise ConfigError(f"max_pixels must be a positive integer or None, not {max_pixels!r}")
    most = Image.MAX_IMAGE_PIXELS
    if max_pixels is not None and most is not None and max_pixels > 2 * most:
        raise ConfigError(
            f"max_pixels={max_pixels} is more than Pillow opens, which is twice PIL.Image.MAX_IMAGE_PIXELS ({most}); "
            "raise that first, or leave max_pixels out"
        )
    if type(max_bytes) is not int or max_bytes < 1:
        raise ConfigError(f"max_bytes must be a positive integer, not {max_bytes!r}; leave it out for {MAX_BYTES}")
    return limits._replace(exif=bool(exif))
