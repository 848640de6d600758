"""What decoding a clip takes: what is known of its video, and which shortcuts are allowed."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

__all__ = ["Shortcuts", "VideoEntry"]

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shortcuts:
    """What is spared in decoding clips. None changes a pixel; each can be switched off, to compare.

    The first three are for videos whose index says it all (:attr:`VideoEntry.sure`). If they fail, a clip is decoded
    again without them.
    """

    unreferenced: bool = True
    """Pictures that no other refers to, and that are not asked for, are not decoded."""
    unanalysed: bool = True
    """MP4 and Matroska files are opened without looking at their streams, and only packets of the video are read."""
    drained: bool = True
    """The decoder is drained as soon as it has all packets that are needed, instead of being fed until it hands the
    last frame on; and packets between a frame and the next entry are passed over."""
    one_scaler: bool = True
    """One swscale context for each thread, without threads of its own."""
    together: bool = True
    """Clips of one video that wait to be decoded are decoded in one pass, if more wait than there are threads."""


@dataclass(frozen=True, eq=False)
class VideoEntry:
    """What the index knows of one video and the decoder needs. Small, and pickled as it is."""

    path: str
    height: int
    """Pixels as decoded, before any rotation."""
    width: int
    pts: I64
    """i64[F]: the time of every frame, in units of ``time_base``."""
    keys: I64
    """i64[K, 3]: of every frame that decoding can begin with its number, the time of the packet to begin with, and its
    position in the file in bytes (-1 if unknown)."""
    time_base: Fraction
    """Seconds."""
    exact: bool
    """Whether frames can be told by their times; otherwise they are counted from the beginning."""
    orientation: int = 1
    """1 to 8, as EXIF counts: how frames must be turned to be looked at."""
    container: str = ""
    """Its format, in FFmpeg's words."""
    sure: bool = False
    """Whether every packet that is shown is one frame, with the packet's time; nothing made that doubtful."""
    skips: bool = False
    """Whether, beyond that, pictures may be left out. The frame rate is constant, so no time can be another than it
    should be. And it is no H.264 with open groups of pictures: their first ones miss what they refer to, at which the
    strict decoder that this takes would raise."""
    strict: bool = False
    """Whether the decoder is told to refuse whatever is wrong with a picture, of codecs that do not mark it."""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) as decoded."""
        return self.height, self.width

    @property
    def upright_size(self) -> tuple[int, int]:
        """(height, width) of what is looked at."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)

    def __repr__(self) -> str:
        return f"VideoEntry({self.path!r}: {len(self.pts):,} frames of {self.height}x{self.width})"
