"""Passes over a video file: from an entry forward, packet by packet, up to the last frame that is wanted.

The result of a seek is not trusted. Decoding begins with a packet that the index lists as an entry and whose own bytes
confirm it. From there on, every frame must come in order, with the times in the index. So neither a wrong seek nor
damaged times can put one frame in the place of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from ..files import Undecodable
from .bitstream import is_entry, unreferenced
from .container import codec_of, not_its_fault
from .pixels import rgb
from .types import VideoEntry

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_REORDER = 16
"""The most frames that may be shown before a frame that is decoded before them (H.264 A.3.1, H.265 A.4.2)."""


class UnexpectedFrames(Exception):
    """The decoder does not return the frames that the index lists."""


def _without_frames(error: Exception) -> Exception:
    """Remove the tracebacks of an exception, which refer to the pass that stores it: the memory of such a cycle is only
    freed by the garbage collector."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


@dataclass
class _State:
    """The state of one run."""

    due: int = 0
    """Number of the frame that must come next."""
    begun: bool = False
    """Whether the entry's own frame has come."""
    left_out: set[int] = field(default_factory=set)
    """Numbers of the frames whose packets were not decoded."""


class Pass:
    """Decodes frames of one open file in one or several runs.

    Args:
        skips: leave out pictures that no other picture refers to and that are not requested.

    Attributes:
        came: numbers of the good frames that were passed to ``put``.
        refused: by number, what is wrong with the frames that were decoded and must not be delivered.
        error: the exception that ended the last run too early, if any.
    """

    def __init__(self, entry: VideoEntry, container: Any, stream: Any, put: Callable[[int, U8], None], *, skips: bool):
        self.came: set[int] = set()
        self.refused: dict[int, Undecodable] = {}
        self.error: Exception | None = None
        self._entry, self._container, self._stream = entry, container, stream
        self._put, self._skips = put, skips
        self._packets: Iterator[Any] = container.demux(stream)
        self._near: dict[int | None, int] = {}
        """Numbers of the frames around those that are decoded, by time."""
        self._codec, self._extradata = codec_of(stream), bytes(stream.codec_context.extradata or b"")

    def run(self, place: int | None, wanted: list[int], *, seek: bool = True) -> None:
        """Pass the frames ``wanted``, sorted, to ``put``, as far as they come.

        Args:
            place: row of the index's keys to begin with; ``None`` for the beginning of a file that was just opened.
            seek: go there by a seek, otherwise by skipping packets.
        """
        self.error = None
        asked = set(wanted)
        try:
            for number, frame in self._frames(place, wanted[-1], asked, seek):
                if frame.is_corrupt:
                    self._refuse(number, asked)
                if number in asked and number not in self.refused:
                    self._take(number, frame)
        except Exception as e:
            if not_its_fault(e):
                raise
            self.error = _without_frames(e)

    def _take(self, number: int, frame: Any) -> None:
        entry = self._entry
        if (frame.height, frame.width) != (entry.height, entry.width):
            self.refused[number] = Undecodable(
                "undecodable",
                f"frame {number} is {frame.height}x{frame.width} and the first one {entry.height}x{entry.width} pixels "
                "(height x width)",
            )
            return
        self._put(number, rgb(frame))
        self.came.add(number)

    def _refuse(self, number: int, asked: set[int]) -> None:
        """Refuse a frame that the decoder marked as damaged, and those that may refer to it: up to the next entry, and
        the frames before it that may have been decoded after it."""
        start, end = max(number - _REORDER, 0), len(self._entry.pts)
        if self._entry.exact:
            entries = self._entry.keys[:, 0]
            # Nothing after an entry refers to a frame before it, so damage does not spread beyond.
            after = int(np.searchsorted(entries, number, "right"))
            start = max(start, int(entries[after - 1]) if after else 0)
            end = int(entries[after]) if after < len(entries) else end
        why = Undecodable("undecodable", f"frame {number} is damaged, and so are the frames decoded from it")
        for other in asked:
            if start <= other < end:
                self.refused[other] = why
        # Some were passed on before the mark came.
        self.came -= self.refused.keys()

    # ---- frames

    def _frames(self, place: int | None, last: int, asked: set[int], seek: bool) -> Iterator[tuple[int, Any]]:
        """Yield (number, frame) for all frames that are decoded from the entry on, in order."""
        if not self._entry.exact:
            yield from self._counted(last)
            return
        state = _State()
        if place is not None:
            state.due, entry = self._go(place, seek)
            self._packets = chain([entry], self._packets)
        self._near = self._around(state.due, last)
        for packet in self._fed(state, asked):
            yield from self._numbered(packet.decode(), state, last)
            if state.due > last:
                break
        # Other frames may refer to those that the decoder still holds, so their marks count.
        yield from self._numbered(self._rest(), state, last)

    def _counted(self, last: int) -> Iterator[tuple[int, Any]]:
        number = -1
        for number, frame in enumerate(self._container.decode(self._stream)):
            yield number, frame
            if number >= last:
                break
        yield from enumerate(self._rest(), number + 1)

    def _rest(self) -> list[Any]:
        """Drain the decoder, and reset it so that it can decode from another entry."""
        frames: list[Any] = self._stream.codec_context.decode(None)
        self._stream.codec_context.flush_buffers()
        return frames

    def _fed(self, state: _State, asked: set[int]) -> Iterator[Any]:
        """Yield the packets to decode."""
        tell = unreferenced(self._codec, self._extradata) if self._skips else None
        for packet in self._packets:
            if not packet.size:
                return
            if tell is not None and tell(bytes(packet)):
                number = self._number(packet.pts)
                if number is not None and number not in asked:
                    state.left_out.add(number)
                    continue
            yield packet

    def _around(self, first: int, last: int) -> dict[int | None, int]:
        # Packets come in decoding order, which differs from the order of display by at most _REORDER frames.
        start = max(first - _REORDER, 0)
        return {time: number for number, time in enumerate(self._entry.pts[start : last + _REORDER].tolist(), start)}

    def _number(self, time: int | None) -> int | None:
        """Number of the frame that is shown at a time; ``None`` if the index has none."""
        near = self._near.get(time)
        if near is not None or time is None:
            return near
        pts = self._entry.pts
        number = int(np.searchsorted(pts, time))
        return number if number < len(pts) and pts[number] == time else None

    def _numbered(self, frames: list[Any], state: _State, last: int) -> Iterator[tuple[int, Any]]:
        """Yield (number, frame); the numbers must be consecutive from the entry's to ``last``."""
        for frame in frames:
            number = self._number(frame.pts)
            # Their packets were not decoded, so nothing comes for them.
            while state.due in state.left_out:
                state.due += 1
            # After the last wanted frame the order is of no interest, only whether frames are marked.
            if number == state.due or (state.due > last and number is not None):
                state.begun, state.due = True, number + 1
                yield number, frame
            elif state.begun or (number is not None and number > state.due):
                raise UnexpectedFrames(f"a frame of time {frame.pts} comes in place of frame {state.due}")
            # Otherwise it is shown before the entry, may lack frames it refers to, and was not requested.

    # ---- entries

    def _go(self, place: int, seek: bool) -> tuple[int, Any]:
        """Find an entry, ``place`` or after a seek one before it: (number of its frame, its packet)."""
        keys = self._entry.keys[: place + 1]
        if seek:
            try:
                self._container.seek(int(keys[-1, 1]), stream=self._stream, backward=True)
            except Exception as e:  # some containers cannot; their frames come from the beginning
                if not_its_fault(e):
                    raise
                raise UnexpectedFrames(f"seeking fails: {e}") from None
            self._packets = self._container.demux(self._stream)
        for packet in self._packets:
            if packet.pts is None or not packet.is_keyframe:
                continue
            known = np.flatnonzero(keys[:, 1] == packet.pts)
            # The position in the file confirms the packet, if both the container and the index know it.
            if len(known) and keys[known[0], 2] in (-1, -1 if packet.pos is None else packet.pos):
                if not is_entry(self._codec, self._extradata, bytes(packet)):
                    break
                # A seek may lead to an earlier entry, from which the wanted frames come as well.
                if seek or known[0] == place:
                    return int(keys[known[0], 0]), packet
            # The packet of the entry would have come before this one.
            if packet.pts > keys[-1, 1]:
                break
        raise UnexpectedFrames(f"the entry at frame {keys[-1, 0]} is not found")
