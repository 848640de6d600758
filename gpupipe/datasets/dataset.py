"""The base class of datasets: columnar indexes of samples that know nothing of batches, orders or devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from .. import provided
from ..codecs.coding import Coding
from ..codecs.decode import Media, Pixels, Smaller, open_rgb, open_smaller
from ..codecs.files import Place, Undecodable
from ..codecs.limits import MAX_BYTES, Limits
from ..errors import BadSample, ConfigError, SampleError
from ..media import IMAGE, Medium
from ..sources.base import Source
from ..sources.storage import Found
from ..targets import Labels, Target
from ..transforms.compose import Compose
from .sample_form import SampleForm

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ..codecs.video.decode import VideoEntry

    Sample = TypeVar("Sample", covariant=True, default=Any)
    Batches = TypeVar("Batches", covariant=True, default=Any)
    Seen = TypeVar("Seen", covariant=True, default=Any)
else:
    from typing import TypeVar  # without defaults before Python 3.13

    Sample = TypeVar("Sample", covariant=True)
    Batches = TypeVar("Batches", covariant=True)
    Seen = TypeVar("Seen", covariant=True)  # the image of a sample


class Dataset(ABC, Generic[Sample, Batches]):
    """Base class of datasets. Columns are numpy arrays with one row per sample.

    Type checkers know ``dataset[i]`` as ``Sample``, and the batches of a loader as ``Batches``.
    """

    kind: Literal["files", "pixels", "clips", "mixture"]
    """Source of the samples: encoded images in files, pixels in memory, clips of videos, or other datasets, see
    :attr:`parts`. Only :mod:`gpupipe.reading` uses this."""
    whole_files: bool = False
    """Whether every sample is a whole local file, which an engine may open itself."""
    limits: Limits = Limits()
    """Orientation and limits of encoded images. The index finds violations."""
    medium: Medium = IMAGE
    """Content of a sample, and memory layout of a batch of it."""
    upright: bool = False
    """For clips: whether frames are rotated as their file requests."""
    transform: Compose
    form: SampleForm | None = None
    """Structure of a batch, if it is not ``[images, target]``."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def parts(self) -> tuple[Dataset, ...]:
        """The datasets that a mixture consists of; otherwise this dataset alone."""
        return (self,)

    @property
    @abstractmethod
    def sizes(self) -> npt.NDArray[np.int32] | None:
        """i32[N, 2]: height and width after decoding (upright if ``limits.exif``), 0 and 0 for bad samples; ``None`` if
        they are unknown before reading."""

    def common_size(self) -> tuple[int, int] | None:
        """Return (height, width) if it is known and equal for all samples that are not bad. Checks all of them."""
        sizes = self.sizes
        if sizes is None or not len(sizes):
            return None
        good = sizes[:, 0] > 0
        # argmax() of truth values finds the first one.
        first = sizes[int(np.argmax(good))]
        same = bool(((sizes == first).all(axis=1) | ~good).all()) and bool(good.any())
        return (int(first[0]), int(first[1])) if same else None

    @property
    def in_files(self) -> bool:
        """Whether samples lie in files, so that they change only if the files do."""
        return self.kind in ("files", "clips")

    def forget(self, index: int) -> bool:
        """Discard this machine's copy of a sample's bytes. Return whether there was one."""
        return False

    @property
    @abstractmethod
    def labels(self) -> npt.NDArray[np.int64] | None:
        """i64[N], or ``None`` if there are no labels."""

    @property
    def target_columns(self) -> Mapping[str, Target]:
        """Targets by name: values that belong to every image and are known before decoding."""
        labels: Mapping[str, Target] = {} if self.labels is None else {"label": Labels(self.labels)}
        return {**labels, **self.columns}

    @property
    def columns(self) -> Mapping[str, Target]:
        """Members of ``target_columns`` that accompany the label of each sample."""
        return {}

    @property
    def codings(self) -> tuple[npt.NDArray[np.uint8], Sequence[Coding]] | None:
        """(u8[N], codings): encoding of each file, as an index into codings. A larger index is a coding without a name.
        ``None`` if codings are unknown before reading."""
        return None

    @property
    def orientations(self) -> npt.NDArray[np.uint8] | None:
        """u8[N]: EXIF orientation of each image, 1 to 8; always 1 without ``limits.exif``. ``None`` if orientations are
        unknown before reading."""
        return None

    @property
    def file_sizes(self) -> npt.NDArray[np.int64] | None:
        """i64[N]: bytes of each encoded image; ``None`` if they are unknown before reading."""
        return None

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Short text that changes when the samples do. Resumed runs are checked against it."""

    @abstractmethod
    def fetch(self, index: int) -> tuple[Media, Any]:
        """Return (media, target) of one sample; the target may be ``None``."""

    def describe(self, index: int) -> str:
        """Return the sample's path, or another name by which a person can find it."""
        return f"sample {index} of {type(self).__name__}"

    def bad(self, indices: npt.NDArray[np.int64]) -> list[BadSample]:
        """Return those of ``indices`` that are known to be unreadable."""
        return []

    def open(self, media: Media) -> Pixels | Image.Image:
        """Decode one image that :meth:`fetch` returned; see :func:`~gpupipe.codecs.decode.open_rgb`."""
        return open_rgb(media, self.limits)

    def open_smaller(self, media: str | bytes, factor: int) -> Smaller:
        """Decode a JPEG at 1/``factor`` of its size; see :func:`~gpupipe.codecs.decode.open_smaller`."""
        return open_smaller(media, factor, self.limits)

    def raw(self, index: int) -> tuple[Any, Any]:
        """Return (input of the transform, label) of one sample, to look at data.

        The input is a PIL image in RGB, upright if ``limits.exif``, or the frames u8[T, H, W, 3] that a clip has with
        seed 0 in epoch 0.

        Raises :class:`~gpupipe.codecs.files.Undecodable`.
        """
        media, label = self.fetch(index)
        image = self.open(media)
        return Image.fromarray(image) if isinstance(image, np.ndarray) else image, label

    def __getitem__(self, index: int) -> Sample:
        """Return (transformed image, label) of one sample, as torchvision's datasets do. Use a loader for training.

        Without a transform the image is that of :meth:`raw`. Otherwise it is a tensor [C, H, W], a tuple of tensors for
        several views, or a clip in its layout, computed by the reference. Random numbers come from torch's generator.
        MixUp and CutMix, which work on batches, are skipped.

        A dataset with further columns returns them as its batches do, after the label or in a dictionary: masks, boxes
        and keypoints as tensors that moved with the image, numbers and texts as they are.

        Raises IndexError, and :class:`~gpupipe.errors.SampleError` if the sample cannot be read.
        """
        index = self.checked_index(index)
        try:
            if not len(self.transform) and not self.columns:
                return self.raw(index)  # type: ignore[return-value]
            return provided.one_sample(self, index)  # type: ignore[no-any-return]
        except Undecodable as e:
            raise SampleError([BadSample(index, self.describe(index), e.kind, e.reason)]) from None

    def checked_index(self, index: int) -> int:
        """Count a negative index from the end. Raises IndexError."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} samples")
        return index % len(self)

    @property
    def source(self) -> Source:
        """Reader of the samples' bytes; only for ``"files"``."""
        raise NotImplementedError

    def place(self, index: int) -> Place:
        """Return the location of a sample's bytes; only for ``"files"``."""
        raise NotImplementedError

    def file(self, index: int) -> bytes:
        """Return the path of the file that contains a sample; only for ``"files"`` and ``"clips"``."""
        return self.place(index).path

    def found(self, index: int) -> Found:
        """Return the state of a sample's file when it was indexed; only for ``"files"``."""
        raise NotImplementedError

    def encoded_paths(self, indices: npt.NDArray[np.int64]) -> list[npt.NDArray[np.uint8]]:
        """Return the absolute paths as bytes, u8[L] each; only for ``whole_files``."""
        raise NotImplementedError

    def encoded_sizes(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Return the size in bytes of each file when it was indexed, i64[L], or ``None`` if unknown."""
        return None

    def choose(
        self, seed: int, epoch: int, keys: npt.NDArray[np.uint64], indices: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64] | None:
        """Return the frames i64[B, T] of the clips ``indices``, or ``None`` for images."""
        return None

    @property
    def pictures_per_sample(self) -> int:
        """T, the number of frames of a clip; 1 for images."""
        return 1

    def entry(self, index: int) -> VideoEntry:
        """Return what decoding a clip needs to know about its video; only for clips."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} samples)"


def checked_limits(limits: Limits) -> Limits:
    """Validate the image options of a public constructor. Raises :class:`ConfigError`."""
    exif, max_pixels, max_bytes = limits
    if max_pixels is not None and (type(max_pixels) is not int or max_pixels < 1):
        raise ConfigError(f"max_pixels must be a positive integer or None, not {max_pixels!r}")
    most = Image.MAX_IMAGE_PIXELS
    if max_pixels is not None and most is not None and max_pixels > 2 * most:
        raise ConfigError(
            f"max_pixels={max_pixels} exceeds Pillow's limit, which is twice PIL.Image.MAX_IMAGE_PIXELS ({most}); "
            "raise that first, or remove max_pixels"
        )
    if type(max_bytes) is not int or max_bytes < 1:
        raise ConfigError(f"max_bytes must be a positive integer, not {max_bytes!r}; the default is {MAX_BYTES}")
    return limits._replace(exif=bool(exif))
