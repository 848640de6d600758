"""Input of the decoder: the index entry of a video."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class VideoEntry:
    """The part of the index that decoding one video needs. Small and picklable."""

    path: str
    height: int
    """Pixels as decoded, before any rotation."""
    width: int
    pts: I64
    """i64[F]: time of every frame, in units of ``time_base``."""
    keys: I64
    """i64[K, 3]: the *entries*, which are the frames that decoding can begin with: frame number, time of the packet to
    begin with, and offset of that packet in the file in bytes (-1 if unknown)."""
    time_base: Fraction
    """Seconds."""
    exact: bool
    """Whether frames can be identified by their times; otherwise they are counted from the beginning."""
    orientation: int = 1
    """Rotation to apply for display, as an EXIF orientation: 1 to 8."""
    container: str = ""
    """FFmpeg's name of the container format."""
    sure: bool = False
    """Whether every packet that is shown is certainly one frame, with the packet's time."""
    skips: bool = False
    """Whether pictures may be left out as well. The frame rate is constant, so a wrong time would be noticed. H.264
    with open groups of pictures is excluded: leaving pictures out needs the strict decoder, which would raise at the
    first pictures of a group, because they refer to pictures before the entry."""
    strict: bool = False
    """Whether to decode with ``err_detect=explode``; see :data:`gpupipe.codecs.video.container.STRICT`."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) as decoded."""
        return self.height, self.width

    def __repr__(self) -> str:
        return f"VideoEntry({self.path!r}: {len(self.pts):,} frames of {self.height}x{self.width})"
