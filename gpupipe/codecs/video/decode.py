"""From frame numbers to pixels: the frames of one clip, and no others than are needed to decode them.

The packets of a video can be entered at its key frames. The decoder seeks to the last one at or before the first frame
asked for, decodes forward, and takes frames by their times, which the index knows. What a seek leads to is not
believed: decoding begins with a packet that the index knows as an entry, at or before the frame, or not there at all.
Where that fails the entry before is tried, then the beginning of the file.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from importlib import metadata
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, MissingDependency
from ..files import Undecodable
from .container import opened, reading

__all__ = ["ThreadType", "VideoEntry", "decode_clip", "pyav_version", "require_av"]

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
ThreadType = Literal["none", "slice", "frame", "auto"]

_SEEK_FROM = 12
"""Frames that nobody asked for are decoded up to this many; from then on seeking past them is cheaper. A seek drops the
decoder's state and waits for its delay again."""


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
    position in the file in bytes (-1 where unknown)."""
    time_base: Fraction
    """Seconds."""
    exact: bool
    """Whether frames can be told by their times; otherwise they are counted from the beginning."""
    orientation: int = 1
    """1 to 8, as EXIF counts: how frames must be turned to be looked at."""

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


def require_av() -> None:
    """Raises :class:`MissingDependency` where PyAV is not installed. It is not imported here."""
    if importlib.util.find_spec("av") is None:
        raise MissingDependency("videos are read with PyAV, which is not installed: pip install 'gpupipe[video]'")


def pyav_version() -> str:
    """What decodes, with its version."""
    return f"PyAV {metadata.version('av')}"


def decode_clip(
    entry: VideoEntry,
    frames: npt.ArrayLike,
    *,
    upright: bool = False,
    threads: int = 1,
    thread_type: ThreadType = "none",
    out: U8 | None = None,
) -> U8:
    """The frames of a clip, equal to those of ``[f.to_ndarray(format="rgb24") for f in container.decode(video=0)]``.

    Args:
        frames: int[T], frame numbers from 0 in any order; they may repeat. Each is decoded once.
        upright: turn frames by the rotation that the file asks for. PyAV and torchvision do not, so neither is it done
            by default.
        threads: of the decoder, 0 for one per core. One is best where many processes decode. What a decoder makes up
            for a damaged part of a frame may depend on it; nothing else does.
        thread_type: whether threads share a frame (``slice``), take one each (``frame``), or both (``auto``).
        out: u8[T, H, W, 3] to decode into, of ``entry.size``; what an error leaves there means nothing.

    Returns:
        u8[T, H, W, 3] in RGB, in the order of ``frames``. Height and width are ``entry.size``, or
        ``entry.upright_size`` where ``upright``.

    Raises:
        Undecodable: the file is missing, damaged or not the one that was indexed; ``kind`` and ``reason`` say what.
        IndexError: a frame number that the video does not have.
        ConfigError: ``thread_type`` is none of these.
        MissingDependency: PyAV is not installed.
    """
    require_av()
    if thread_type not in get_args(ThreadType):
        raise ConfigError(f"thread_type must be one of {', '.join(get_args(ThreadType))}, not {thread_type!r}")
    numbers = np.asarray(frames, np.int64).reshape(-1)
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(entry.pts)):
        wrong = numbers[(numbers < 0) | (numbers >= len(entry.pts))][0]
        raise IndexError(f"frame {wrong} of {entry.path}, which has {len(entry.pts)} frames")
    path = os.fsencode(entry.path)
    return reading(path, lambda: _Clip(entry, numbers, path, threads, thread_type.upper(), out).decode(upright))


class _Clip:
    def __init__(self, entry: VideoEntry, numbers: I64, path: bytes, threads: int, thread_type: str, out: U8 | None):
        self._entry, self._numbers, self._path = entry, numbers, path
        self._threads, self._thread_type = threads, thread_type
        shape = (len(numbers), entry.height, entry.width, 3)
        self._out = np.empty(shape, np.uint8) if out is None else out
        self._failure: Exception | None = None

    def decode(self, upright: bool) -> U8:
        wanted = np.unique(self._numbers)
        if len(wanted):
            again = []
            with self._open() as (container, stream):
                for i, run in enumerate(runs(wanted, self._entry.keys) if self._entry.exact else [wanted]):
                    place = self._place(run)
                    if i == 0 and (place < 0 or not self._entry.keys[place, 0]):
                        done = self._attempt(container, stream, run, None)  # it is there already
                    else:
                        done = place >= 0 and self._attempt(container, stream, run, place)
                    if not done:
                        again.append(run)
            for run in again:
                self._retry(run)
        return turned(self._out, self._entry.orientation) if upright else self._out

    def _open(self) -> AbstractContextManager[tuple[Any, Any]]:
        return opened(self._path, threads=self._threads, thread_type=self._thread_type)

    def _place(self, run: I64) -> int:
        """The last entry that leads to all of ``run``; -1 where only the beginning of the file does."""
        return int(np.searchsorted(self._entry.keys[:, 0], run[0], "right")) - 1 if self._entry.exact else -1

    def _retry(self, run: I64) -> None:
        """Decode ``run`` from the entry before the best one, or from the beginning."""
        entry, before = self._entry, self._place(run) - 1
        for place in [before, None] if before >= 0 and entry.keys[before, 0] else [None]:
            with self._open() as (container, stream):
                if self._attempt(container, stream, run, place):
                    return
        if self._failure is not None:
            raise self._failure
        raise Undecodable(
            "undecodable",
            f"frames {run[0]} to {run[-1]} of {len(entry.pts)} do not all come; the file is damaged, or has changed "
            "since it was indexed",
        )

    def _attempt(self, container: Any, stream: Any, run: I64, place: int | None) -> bool:
        """Whether all of ``run``, sorted frame numbers, came when decoding began at ``place``."""
        missing = run.tolist()
        try:
            for number, frame in self._frames(container, stream, place):
                if number > missing[0]:
                    break  # they come in order: what was missed does not come any more
                if number == missing[0]:
                    self._put(missing.pop(0), frame)
                    if not missing:
                        return True
        except (MemoryError, Undecodable):
            raise
        except Exception as e:
            self._failure = e
        return False

    def _frames(self, container: Any, stream: Any, place: int | None) -> Iterator[tuple[int, Any]]:
        """(number, frame) in order, from the key frame ``place`` of the index on, or from the beginning."""
        entry = self._entry
        if not entry.exact:
            yield from enumerate(container.decode(stream))
            return
        if place is not None:
            container.seek(int(entry.keys[place, 1]), stream=stream, backward=True)
        packets = container.demux(stream)
        if place is not None:
            packets = self._landed(packets, place)
        pts = entry.pts
        for packet in packets:
            for frame in packet.decode():
                if frame.pts is None:
                    continue
                # Frames that are shown before the key frame may lack what they refer to; nobody asked for them.
                number = int(np.searchsorted(pts, frame.pts))
                if number < len(pts) and pts[number] == frame.pts:
                    yield number, frame

    def _landed(self, packets: Iterator[Any], place: int) -> Iterator[Any]:
        """The packets from the first one on that is a known entry, at ``place`` or before; none where there is none."""
        keys = self._entry.keys[: place + 1]
        for packet in packets:
            if packet.pts is None or not packet.is_keyframe:
                continue
            known = np.flatnonzero(keys[:, 1] == packet.pts)
            if len(known) and keys[known[0], 2] in (-1, -1 if packet.pos is None else packet.pos):
                yield packet
                yield from packets
                return
            if packet.pts > keys[-1, 1]:
                return

    def _put(self, number: int, frame: Any) -> None:
        entry = self._entry
        if (frame.height, frame.width) != (entry.height, entry.width):
            raise Undecodable(
                "undecodable",
                f"frame {number} is {frame.height}x{frame.width} and the first one {entry.height}x{entry.width} pixels "
                "(height x width)",
            )
        self._out[self._numbers == number] = frame.to_ndarray(format="rgb24")


def runs(wanted: I64, keys: I64) -> list[I64]:
    """Sorted frame numbers in groups, each of which is best decoded in one go: a new one begins where seeking to a key
    frame leaves out more frames than a seek costs."""
    if not len(wanted):
        return []
    at = np.searchsorted(keys[:, 0], wanted, "right") - 1
    entries = np.where(at >= 0, keys[np.maximum(at, 0), 0], 0) if len(keys) else np.zeros(len(wanted), np.int64)
    left_out = entries[1:] - wanted[:-1] - 1
    return np.split(wanted, np.flatnonzero(left_out > _SEEK_FROM) + 1)


def turned(pixels: U8, orientation: int) -> U8:
    """u8[T, H, W, 3] turned by an EXIF orientation: 1 to 8."""
    if orientation >= 5:
        pixels = pixels.transpose(0, 2, 1, 3)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, :, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
