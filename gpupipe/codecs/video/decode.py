"""Decode the frames of clips, and only those frames that they depend on.

Decoding can begin at the entries of a video, which the index lists. The decoder seeks to the last entry at or before
the first requested frame, decodes forward, and identifies frames by their times (see :mod:`.passes`). If frames do not
come that way, all pictures are decoded from there, then from the entry before, and finally from the beginning of the
file.

A frame is delivered only if a loop over the whole video returns the same one. Frames that the decoder rejects or marks
as damaged, and frames that are decoded from them, are not delivered.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import metadata
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import MissingDependency
from ..files import Undecodable, open_regular
from .container import STRICT, cut_short, named, not_its_fault, opened, reading
from .passes import Pass, UnexpectedFrames
from .types import VideoEntry

__all__ = ["VideoEntry", "decode_clip", "decode_into", "pyav_version", "require_av"]

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_SEEK_FROM = 12
"""Number of unrequested frames that are decoded or skipped in a row. Beyond that, seeking is cheaper."""
_SELF_TIMED = ("mov", "matroska")
"""Containers that store the time of every packet, so that nothing has to be decoded to know it."""


def require_av() -> None:
    """Raise :class:`MissingDependency` if PyAV is not installed, without importing it."""
    if importlib.util.find_spec("av") is None:
        raise MissingDependency("PyAV, which reads videos, is not installed: pip install 'gpupipe-loader[video]'")


def pyav_version() -> str:
    """Name and version of the decoder."""
    return f"PyAV {metadata.version('av')}"


def decode_clip(entry: VideoEntry, frames: npt.ArrayLike, *, upright: bool = False) -> U8:
    """Decode a clip; frames equal ``[f.to_ndarray(format="rgb24") for f in container.decode(video=0)]``.

    Args:
        frames: int[T], frame numbers from 0, in any order; they may repeat. Each is decoded once.
        upright: apply the rotation that the file asks for. PyAV and torchvision do not, so the default is False.

    Returns:
        u8[T, H, W, 3] in RGB, in the order of ``frames``. Height and width are ``entry.size``, swapped if ``upright``
        turns the frames on their side.

    Raises:
        Undecodable: the file is missing, damaged or not the one that was indexed; see its ``kind`` and ``reason``.
        IndexError: the video has no frame of that number.
        MissingDependency: PyAV is not installed.
    """
    numbers = np.asarray(frames, np.int64).reshape(-1)
    made = np.empty((len(numbers), entry.height, entry.width, 3), np.uint8)
    decode_into(entry, numbers, made.__setitem__)
    return turned(made, entry.orientation) if upright else made


def decode_into(entry: VideoEntry, frames: I64, put: Callable[[int, U8], None]) -> None:
    """Decode a clip, and pass every frame to a function as soon as it is there.

    Args:
        frames: i64[T], frame numbers from 0, in any order; they may repeat.
        put: ``put(t, pixels)`` is called for every position t in ``frames``, in the order of the video. ``pixels`` is
            read-only, u8[H, W, 3] of ``entry.size``, and invalid after the call. Pixels of a clip that fails are
            meaningless, and a position may be filled twice.

    Raises:
        Undecodable, IndexError, MissingDependency: as :func:`decode_clip`.
    """
    require_av()
    wrong = frames[(frames < 0) | (frames >= len(entry.pts))]
    if len(wrong):
        raise IndexError(f"frame {wrong[0]} of {entry.path}, which has {len(entry.pts)} frames")
    path = os.fsencode(entry.path)
    reading(path, lambda: _Clip(entry, frames, put, path).decode())


class _Clip:
    """The work of one call of :func:`decode_into`."""

    def __init__(self, entry: VideoEntry, frames: I64, put: Callable[[int, U8], None], path: bytes):
        self._entry, self._give, self._path = entry, put, path
        self._places: dict[int, list[int]] = {}
        """Positions in the clip, by frame number."""
        for t, number in enumerate(frames.tolist()):
            self._places.setdefault(number, []).append(t)
        self._wrong: dict[int, Undecodable] = {}
        """Reasons why frames cannot be delivered, by frame number."""

    def decode(self) -> None:
        wanted = np.array(sorted(self._places), np.int64)
        if len(wanted):
            for group in self._sweep(wanted):
                self._retry(group)
        for number in self._places:
            if number in self._wrong:
                why = self._wrong[number]
                raise Undecodable(why.kind, why.reason)  # a new one: its traceback refers to this object

    def _sweep(self, wanted: I64) -> list[list[int]]:
        """Decode frames in one pass, and return those that did not come, in groups with one entry each."""
        entry = self._entry
        done: set[int] = set()
        parts = runs(wanted, entry.keys) if entry.exact else [wanted]
        try:
            with self._open() as (container, stream):
                way, last = Pass(entry, container, stream, self._put, skips=entry.skips), 0
                for i, run in enumerate(parts):
                    place = self._place(run[0])
                    # Only the beginning of the file leads to these frames, and a file that was just opened is there.
                    if i == 0 and (place < 0 or not entry.keys[place, 0]):
                        way.run(None, run.tolist())  # it is there already
                    else:
                        # A short seek costs more than it saves. After an error, only a seek leads to the next run.
                        far = i == 0 or way.error is not None or entry.keys[place, 0] - last > _SEEK_FROM
                        way.run(place, run.tolist(), seek=far)
                    last = run[-1]
                done = way.came
                # Otherwise refused frames get another chance with all pictures.
                if entry.sure:
                    self._wrong = way.refused
        except Exception as e:
            # Opening without an analysis may be what failed, and _retry() does not open files so.
            if not_its_fault(e) or not self._known():
                raise
        left = [n for n in wanted.tolist() if n not in done and n not in self._wrong]
        return [list(group) for _, group in groupby(left, self._place)]

    def _retry(self, group: list[int]) -> None:
        """Decode a group with all pictures: from its entry, from the entry before, and from the beginning."""
        entry, place = self._entry, self._place(group[0])
        # An entry at frame 0 is the beginning of the file, which is tried in any case.
        places = [p if p >= 0 and entry.keys[p, 0] else None for p in (place, place - 1)]
        for where in dict.fromkeys([*places, None]):
            with self._open(again=True) as (container, stream):
                way = Pass(entry, container, stream, self._put, skips=False)
                way.run(where, group)
            group = [n for n in group if n not in way.came]
            if not group:
                return
            if entry.sure and way.error is not None and not isinstance(way.error, UnexpectedFrames):
                break  # it cannot be decoded from any entry
        why = self._named(way.error, group)
        self._wrong |= {n: way.refused.get(n, why) for n in group}

    def _open(self, *, again: bool = False) -> AbstractContextManager[tuple[Any, Any]]:
        return opened(self._path, strict=self._strict(again), known="" if again else self._known())

    def _strict(self, again: bool) -> frozenset[str]:
        # The pictures that are left out might have revealed damage in those that are decoded.
        if not self._entry.strict:
            return frozenset()
        return STRICT | {"h264"} if self._entry.skips and not again else STRICT

    def _known(self) -> str:
        # FFmpeg names the demuxer by all of its containers: mov,mp4,m4a,3gp,3g2,mj2.
        name = self._entry.container.split(",")[0]
        return name if self._entry.sure and name in _SELF_TIMED else ""

    def _place(self, number: int) -> int:
        """Row of the last entry at or before a frame; -1 if only the beginning of the file leads to it."""
        entry = self._entry
        return int(np.searchsorted(entry.keys[:, 0], number, "right")) - 1 if entry.exact else -1

    def _named(self, error: Exception | None, group: list[int]) -> Undecodable:
        if isinstance(error, Undecodable):
            return error
        with open(self._path, "rb", opener=open_regular) as file:
            if error is not None and not isinstance(error, UnexpectedFrames):
                return named(error, file.fileno())
            cut = cut_short(file.fileno(), os.fstat(file.fileno()).st_size)
        why = "" if error is None else f" ({error})"
        which = f"frames {group[0]} to {group[-1]} of {len(self._entry.pts)} do not all come{why}"
        if cut is not None:
            return Undecodable("truncated", f"{which}: {cut}")
        return Undecodable("undecodable", f"{which}; the file is damaged, or has changed since it was indexed")

    def _put(self, number: int, pixels: U8) -> None:
        for t in self._places[number]:
            self._give(t, pixels)


def runs(wanted: I64, keys: I64) -> list[I64]:
    """Split sorted frame numbers into groups that are best decoded in one run: a new group begins where seeking to an
    entry saves more frames than it costs."""
    if not len(wanted):
        return []
    # The row of the last entry at or before each frame, and the entry's frame: 0 before the first entry.
    at = np.searchsorted(keys[:, 0], wanted, "right") - 1
    entries = np.where(at >= 0, keys[np.maximum(at, 0), 0], 0) if len(keys) else np.zeros(len(wanted), np.int64)
    # A seek saves the frames between one wanted frame and the entry of the next.
    left_out = entries[1:] - wanted[:-1] - 1
    return np.split(wanted, np.flatnonzero(left_out > _SEEK_FROM) + 1)


def turned(pixels: U8, orientation: int) -> U8:
    """Turn u8[T, H, W, 3] by an EXIF orientation, 1 to 8."""
    # Transposing comes first: the flips below concern the axes of the upright picture.
    if orientation >= 5:
        pixels = pixels.transpose(0, 2, 1, 3)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, :, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
