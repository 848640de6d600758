"""The index of videos: an index of files, plus the times of all frames.

Times with equal steps are stored as the first one and the step, others as a list. A hundred thousand videos with
constant rates therefore take a few megabytes, regardless of their length.
"""

from __future__ import annotations

import importlib.metadata
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs.coding import VideoCoding
from ...codecs.files import Place
from ...codecs.probe import UNDECODABLE
from ...codecs.video.probe import EXACT, LEADING, LENIENT, SURE, VARIABLE, VideoProbe, probe
from ...codecs.video.types import VideoEntry
from ...sources.base import Listing
from ..video.sampling import Times
from .column_file import Column, Columns
from .open_index import IndexKind, Probed
from .probe_pool import Prober
from .table import Index

I64 = npt.NDArray[np.int64]

FORMAT = 5
"""Part of every index file's name, so that files of other versions are never opened."""
_MOST_FRAMES = 1 << 40


class VideoIndex(Index):
    """An open index of ``V`` videos.

    Raises :class:`ColumnsError` if the file is incomplete.
    """

    decoder = "PyAV"
    coding_type = VideoCoding

    def __init__(self, columns: Columns):
        super().__init__(columns)
        get, n = columns.column, self.count
        self.flags = get("flags", "|u1", n)
        self.frames = get("frames", "<i8", n)
        """i64[V]: number of frames of each video, 0 for bad ones."""
        self.first = get("first", "<i8", n)
        """i64[V]: time of the first frame, in units of ``time_base``."""
        self.step = get("step", "<i8", n)
        """i64[V]: time between consecutive frames; 0 if it varies, and ``pts`` has the times."""
        self.duration = get("duration", "<i8", n)
        """i64[V]: from the first frame to the end of the last one."""
        self.time_base = get("time_base", "<i4", n, 2)
        """i32[V, 2]: seconds per unit of time, as numerator and denominator."""
        self.rate = get("rate", "<i4", n, 2)
        """i32[V, 2]: average frames per second, as numerator and denominator."""
        self.pts = get("pts", "<i8", -1)
        self.pts_offsets = self._offsets("pts", len(self.pts))
        self.keys = get("keys", "<i8", -1, 3)
        self.key_offsets = self._offsets("keys", len(self.keys))

    def _offsets(self, name: str, length: int) -> Column:
        offsets = self.columns.column(f"{name}_offsets", "<i8", self.count + 1)
        if offsets.part(0, 1)[0] != 0 or offsets.part(self.count, self.count + 1)[0] != length:
            raise self._spoiled(f"{name}_offsets do not fit")
        return offsets

    @classmethod
    def decoder_version(cls) -> str:
        try:
            return importlib.metadata.version("av")
        except importlib.metadata.PackageNotFoundError:
            return ""

    def __reduce__(self) -> tuple[type[Index], tuple[Columns]]:
        return VideoIndex, (self.columns,)

    def times(self, rows: I64, *, frames: bool = True) -> Times:
        """Return the times of all frames of the videos ``rows`` i64[B].

        ``frames=False`` omits ``pts``, which is large for many videos. Raises :class:`ColumnsError` if the numbers are
        inconsistent.
        """
        count, step, start = self.frames.all[rows], self.step.all[rows], self.pts_offsets.all[rows]
        base = self.time_base.all[rows].astype(np.int64)
        stored = self.pts_offsets.all[rows + 1] - start
        duration = self.duration.all[rows]
        wrong = (count < 0) | (count > _MOST_FRAMES) | (step < 0) | (start < 0) | (duration < 0)
        # Times are stored, all of them, only if there is no common step.
        wrong |= stored != np.where(step > 0, 0, count)
        wrong |= start + stored > len(self.pts)
        wrong |= (count > 0) & ((base < 1).any(axis=1) | (duration < 1))
        if wrong.any():
            raise self._spoiled(f"the times of video {rows[int(np.argmax(wrong))]} are damaged")
        pts = b"".join(self.pts.pieces(start, start + stored)) if frames else b""
        ends = np.cumsum(stored)
        return Times(
            count=count,
            first=self.first.all[rows],
            step=step,
            duration=duration,
            numerator=base[:, 0],
            denominator=base[:, 1],
            start=ends - stored,
            pts=np.frombuffer(pts, np.int64),
        )

    def pts_of(self, row: int) -> I64:
        """Return i64[F], the time of every frame of one video, in units of its time base."""
        times = self.times(np.array([row], np.int64))
        count, step = int(times.count[0]), int(times.step[0])
        return np.arange(count, dtype=np.int64) * step + int(times.first[0]) if step else times.pts

    def keys_of(self, row: int) -> I64:
        """Return i64[K, 3] for the frames of one video at which decoding can begin.

        A row has the frame's number, the time of the packet to begin with, and its position in the file in bytes (-1 if
        unknown).
        """
        start, end = self.key_offsets.part(row, row + 2).tolist()
        fits = 0 <= start <= end <= len(self.keys)
        keys: I64 = self.keys.part(start, end) if fits else np.empty((0, 3), np.int64)
        numbers = keys[:, 0]
        if not fits or (numbers < 0).any() or (np.diff(numbers) <= 0).any():
            raise self._spoiled(f"the key frames of video {row} are damaged")
        return keys

    def entry(self, row: int, path: str) -> VideoEntry:
        """Return what the decoder needs to know about one video."""
        height, width = self.stored_sizes.all[row].tolist()
        flags = int(self.flags.all[row])
        num, den = self.time_base.all[row].tolist()
        coding = self._coding(row)
        # Leaving pictures out needs the strict decoder, which such a video makes raise; see VideoEntry.skips.
        opens = flags & LEADING and coding.codec == "h264"
        return VideoEntry(
            path=path,
            height=height,
            width=width,
            pts=self.pts_of(row),
            keys=self.keys_of(row),
            time_base=Fraction(num, max(den, 1)),
            exact=bool(flags & EXACT),
            orientation=int(self.orientation.all[row]),
            container=coding.container,
            sure=bool(flags & SURE),
            skips=flags & (SURE | VARIABLE) == SURE and not opens,
            strict=not flags & LENIENT,
        )

    def _coding(self, row: int) -> VideoCoding:
        code = int(self.coding.all[row])
        coding: VideoCoding = self.codings[code] if code < len(self.codings) else VideoCoding()
        return coding

    def is_variable(self) -> npt.NDArray[np.bool_]:
        """Return bool[V]: some frame deviates from a constant rate by more than one unit of time."""
        return np.asarray(self.flags.all & VARIABLE > 0)


class _Columns(Probed):
    index = VideoIndex

    def __init__(self, listing: Listing, old: Index | None = None):
        n = len(listing)
        self.flags = np.zeros(n, np.uint8)
        self.frames, self.first, self.step, self.duration = (np.zeros(n, np.int64) for _ in range(4))
        self.time_base = np.tile(np.array([0, 1], np.int32), (n, 1))
        self.rate = self.time_base.copy()
        self.pts: dict[int, I64] = {}
        self.keys: dict[int, I64] = {}
        super().__init__(listing, old)

    def _keep(self, old: Index, rows: I64) -> None:
        super()._keep(old, rows)
        assert isinstance(old, VideoIndex)
        here, there = np.flatnonzero(self.kept), rows[self.kept]
        for name in ("flags", "frames", "first", "step", "duration", "time_base", "rate"):
            getattr(self, name)[here] = getattr(old, name).all[there]
        for i, k in zip(here.tolist(), there.tolist(), strict=True):
            self.keys[i] = old.keys_of(k)
            if not self.step[i] and self.frames[i]:
                self.pts[i] = old.pts_of(k)

    def put(self, i: int, result: Any) -> None:
        super().put(i, result)
        video: VideoProbe = result
        self.flags[i], self.duration[i], self.frames[i] = video.flags, video.duration, len(video.pts)
        self.time_base[i], self.rate[i] = video.time_base, video.rate
        pts = np.array(video.pts, np.int64)
        self.keys[i] = np.array(video.keys, np.int64).reshape(-1, 3)
        if not len(pts):
            return
        steps = np.diff(pts)
        self.first[i] = pts[0]
        if len(pts) == 1:
            self.step[i] = max(video.duration, 1)
        elif steps[0] > 0 and (steps == steps[0]).all():
            self.step[i] = steps[0]
        else:
            self.pts[i] = pts

    def extra(self) -> dict[str, npt.NDArray[Any]]:
        names = ("flags", "frames", "first", "step", "duration", "time_base", "rate")
        columns: dict[str, npt.NDArray[Any]] = {name: getattr(self, name) for name in names}
        n = len(self.flags)
        for name, parts, empty in (
            ("pts", self.pts, np.empty(0, np.int64)),
            ("keys", self.keys, np.empty((0, 3), np.int64)),
        ):
            lengths = np.zeros(n, np.int64)
            lengths[list(parts)] = [len(part) for part in parts.values()]
            columns[name] = np.concatenate([empty, *(parts[i] for i in sorted(parts))])
            columns[f"{name}_offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return columns


class _VideoProber(Prober[VideoProbe]):
    program = "gpupipe.codecs.video.probe"
    pool_from = 64
    chunk = 8

    def here(self, place: Place) -> VideoProbe:
        return probe(place.path)

    def died(self, reason: str) -> VideoProbe:
        return VideoProbe(UNDECODABLE, reason=reason)


VIDEOS = IndexKind(VideoIndex, _Columns, _VideoProber(), ("video", FORMAT))
"""The kind of index for videos, for :func:`~gpupipe.datasets.index.open_index.open_kind`."""
