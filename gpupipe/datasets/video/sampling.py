"""Selection of a clip's frames: pure functions of one uniform number per clip, vectorized over a batch.

    random            starts anywhere where a whole clip fits, with equal probability
    uniform           clip j of k: the first starts with the video, the last ends with it, the others are evenly
                      spread; a single clip is centered
    segments          one random frame of each of T equal parts of the video
    segment_middles   the middle frame of each part; of k clips, clip j has the frames at (2 j + 1) / (2 k) of the parts

``random`` and ``uniform`` take T frames at a distance of ``stride`` frames, or of 1 / ``fps`` seconds: the frames on
screen at these times, regardless of the rate of the video. Training with random starts and testing with evenly spread
clips is Feichtenhofer et al., *SlowFast networks* (ICCV 2019), section 4; ``uniform`` places clips like
``SampleFrames`` of mmaction2 in test mode. Segments are Wang et al., *Temporal segment networks* (ECCV 2016), section
3.1; parts are cut at floor(i n / T), so that their sizes differ by at most one frame and they do not overlap.

Times are integers and fractions, never floating point, so that each frame is met exactly at a video's own rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError
from ...rng import uniforms

I64 = npt.NDArray[np.int64]
Sampling = Literal["random", "uniform", "segments", "segment_middles"]
Padding = Literal["repeat", "loop", "skip"]

_MOST = 65_536
_DENOMINATOR = 10_000


@dataclass(frozen=True)
class Clips:
    """Checked parameters of clips, part of a dataset's fingerprint.

    Raises :class:`ConfigError` for invalid values and combinations.
    """

    frames: int = 16
    """Frames per clip (T)."""
    stride: int | None = None
    """Distance between consecutive frames; 1 if neither this nor ``fps`` is given."""
    fps: float | Fraction | None = None
    """Frames per second of the clip. A float becomes the nearest fraction with a denominator up to 10,000."""
    clips: int = 1
    """Clips per video (k)."""
    sampling: Sampling = "random"
    padding: Padding = "repeat"
    """Treatment of a video that is too short: ``repeat`` its last frame (with segments: a frame for parts without one),
    ``loop`` from the beginning, or ``skip`` it."""
    rate: Fraction | None = field(init=False, repr=False, default=None)
    """``fps`` as a fraction."""

    def __post_init__(self) -> None:
        for name, value in (("frames", self.frames), ("clips", self.clips), ("stride", self.stride)):
            if value is not None and (type(value) is not int or not 1 <= value <= _MOST):
                raise ConfigError(f"{name} must be an integer from 1 to {_MOST}, not {value!r}")
        for name, text, kind in (("sampling", self.sampling, Sampling), ("padding", self.padding, Padding)):
            if text not in get_args(kind):
                raise ConfigError(f"{name} must be one of {', '.join(get_args(kind))}, not {text!r}")
        if self.fps is not None:
            if isinstance(self.fps, bool) or not isinstance(self.fps, (int, float, Fraction)):
                raise ConfigError(f"fps must be a number of frames per second, not {self.fps!r}")
            if not Fraction(1, 1000) <= self.fps <= 1000:
                raise ConfigError(f"fps must be from 0.001 to 1000 frames per second, not {self.fps!r}")
            object.__setattr__(self, "rate", Fraction(self.fps).limit_denominator(_DENOMINATOR))
            if self.stride is not None:
                raise ConfigError(
                    f"stride={self.stride} and fps={self.fps} both set the distance of frames; give only one"
                )
        if self.sampling.startswith("segment") and (self.stride or self.fps):
            raise ConfigError(
                f"sampling={self.sampling!r} spreads {self.frames} frames over the whole video and takes no stride "
                "or fps; remove them, or use sampling='random' or 'uniform'"
            )


@dataclass(frozen=True, eq=False)
class Times:
    """Times of the frames of ``B`` videos, in units of each video's time base."""

    count: I64
    """i64[B]: number of frames; 0 for bad videos."""
    first: I64
    """i64[B]: time of the first frame."""
    step: I64
    """i64[B]: time between consecutive frames; 0 if it varies."""
    duration: I64
    """i64[B]: from the first frame to the end of the last one."""
    numerator: I64
    """i64[B]: seconds per unit of time, over ``denominator``."""
    denominator: I64
    """i64[B]"""
    start: I64
    """i64[B]: position of a video's first time in ``pts``, if its steps vary."""
    pts: I64
    """i64[P]: times of all frames of all videos whose steps vary, one video after another."""


def choose(u: npt.NDArray[np.float64], clip: I64, times: Times, how: Clips) -> I64:
    """Select the frames of a batch of clips.

    Args:
        u: f64[B] in [0, 1), the only randomness. Unused if ``how`` is deterministic.
        clip: i64[B], index of each clip among the ``how.clips`` of its video.
        times: of the B videos.

    Returns:
        i64[B, T], frame numbers from 0; all 0 for bad videos.
    """
    if how.sampling.startswith("segment"):
        return _segments(u, clip, times.count, how)
    offsets, length = _offsets(times, how)
    start = _starts(u, clip, length - offsets[:, -1], how)
    at = start[:, None] + offsets
    last = np.maximum(length, 1)[:, None] - 1
    at = at % (last + 1) if how.padding == "loop" else np.minimum(at, last)
    return np.asarray(at) if how.rate is None else on_screen(times, times.first[:, None] + at)


def fits(times: Times, how: Clips) -> npt.NDArray[np.bool_]:
    """Return bool[B]: whether the video is long enough for a clip without repeated frames."""
    if how.sampling.startswith("segment"):
        return np.asarray(times.count >= how.frames)
    offsets, length = _offsets(times, how)
    return np.asarray(length > offsets[:, -1])


def on_screen(times: Times, wanted: I64) -> I64:
    """Return the frame i64[B, T] shown at each time: the last one whose time has come, or else the first.

    ``wanted`` is i64[B, T], in units of each video's time.
    """
    column = times.count[:, None]
    # For videos whose steps vary, this is replaced below.
    even = (wanted - times.first[:, None]) // np.maximum(times.step, 1)[:, None]
    found: I64 = np.clip(even, 0, np.maximum(column - 1, 0))
    rows = np.flatnonzero((times.step == 0) & (times.count > 0))
    if len(rows):
        # Bisect all rows at once: frame low is not too late, frame high is.
        start, target = times.start[rows, None], wanted[rows]
        low = np.zeros(target.shape, np.int64)
        high = np.broadcast_to(times.count[rows, None], target.shape).copy()
        # Each round halves the range, so this many rounds leave one frame.
        for _ in range(int(times.count[rows].max()).bit_length()):
            middle = (low + high) // 2
            late = times.pts[start + middle] > target
            high = np.where(late, middle, high)
            low = np.where(late, low, middle)
        found[rows] = low
    return found


def _offsets(times: Times, how: Clips) -> tuple[I64, I64]:
    """Return (i64[B, T]: frames of a clip relative to its start; i64[B]: length of the video).

    Both are in frames, or in units of time if ``fps`` is given.
    """
    ticks = np.arange(how.frames, dtype=np.int64)[None, :]
    if how.rate is None:
        return np.broadcast_to(ticks * (how.stride or 1), (len(times.count), how.frames)), times.count
    above = times.denominator[:, None] * how.rate.denominator
    below = np.maximum(times.numerator, 1)[:, None] * how.rate.numerator
    # i / fps seconds in units of numerator / denominator seconds, rounded down.
    return ticks * above // below, times.duration


def _starts(u: npt.NDArray[np.float64], clip: I64, places: I64, how: Clips) -> I64:
    """Return i64[B], starts of clips out of ``places`` i64[B]; 0 if a clip does not fit."""
    places = np.maximum(places, 1)
    if how.sampling == "random":
        # u * places may be rounded up to places.
        return np.minimum((u * places).astype(np.int64), places - 1)
    if how.clips == 1:
        return (places - 1) // 2
    gaps = how.clips - 1
    return np.asarray((2 * clip * (places - 1) + gaps) // (2 * gaps))  # rounded to the nearest


def _segments(u: npt.NDArray[np.float64], clip: I64, count: I64, how: Clips) -> I64:
    found: I64
    parts = np.arange(how.frames + 1, dtype=np.int64)[None, :]
    edges = parts * count[:, None] // how.frames
    # In a short video, a part may have no frame of its own.
    low, width = edges[:, :-1], np.maximum(np.diff(edges, axis=1), 1)
    if how.sampling == "segment_middles":
        found = low + width * (2 * clip[:, None] + 1) // (2 * how.clips)
    else:
        # The 53 bits of one uniform number are the key for the numbers of all parts.
        seeds = (np.asarray(u, np.float64) * 2.0**53).astype(np.uint64)
        found = low + np.minimum((uniforms(0, 0, "segments", seeds, how.frames) * width).astype(np.int64), width - 1)
    if how.padding == "loop":
        short = (count < how.frames)[:, None]
        found = np.where(short, parts[:, :-1] % np.maximum(count, 1)[:, None], found)
    return np.asarray(np.minimum(found, np.maximum(count - 1, 0)[:, None]))
