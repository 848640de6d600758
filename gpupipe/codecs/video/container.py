"""Opening video files with PyAV, and saying in one way what is wrong with those that cannot be.

Shared by the probing processes and by the decoder. Nothing of gpupipe is imported but modules that a probing process
loads without the rest of the package.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..files import Undecodable, attempts
from ..retry import is_transient

__all__ = ["cut_short", "opened", "orientation_of", "reading"]

T = TypeVar("T")

FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,live_flv,asf,ogg,ivf,h264,hevc,m4v,mjpeg,"
    "gif,apng,rm,dv,mxf,nut,yuv4mpegpipe,wtv,vob,obu,av1"
)
"""FFmpeg's demuxers that are let at a file. Playlists are none of them: such a file may name other files and addresses,
which would be opened with the rights of whoever trains."""

_BOXES = 256


def reading(path: bytes, work: Callable[[], T]) -> T:
    """``work()``, which reads the file with PyAV. Transient errors of the system are tried again.

    Raises :class:`Undecodable` of kind ``missing``, ``unreadable``, ``empty``, ``truncated`` or ``undecodable``, or of
    the kind that ``work`` raises.
    """

    def once(file: Any) -> T:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise Undecodable("empty", "0 bytes")
        try:
            return work()
        except (MemoryError, ImportError, Undecodable):
            raise  # the first two are the machine's trouble, not the video's
        except Exception as e:  # each demuxer and decoder has its own
            if is_transient(e):
                raise
            cut = cut_short(file.fileno(), size)
            if cut is not None or isinstance(e, EOFError):
                raise Undecodable("truncated", cut or str(e)) from None
            raise Undecodable("undecodable", f"{type(e).__name__}: {getattr(e, 'strerror', None) or e}") from None

    return attempts(path, once)


@contextlib.contextmanager
def opened(path: bytes, *, threads: int = 1, thread_type: str = "NONE") -> Iterator[tuple[Any, Any]]:
    """(container, its first video stream), ready to demux and decode. Nothing of them may be used afterwards: PyAV's
    objects point into memory that closing gives back.

    Raises :class:`Undecodable` of kind ``no-video``, and PyAV's own errors.
    """
    import av

    # fsdecode, because PyAV encodes it back in the same way.
    with av.open(os.fsdecode(path), container_options={"format_whitelist": FORMATS, "protocol_whitelist": "file"}) as c:
        if not c.streams.video:
            kinds = sorted({s.type for s in c.streams})
            raise Undecodable("no-video", f"no video among its streams ({', '.join(kinds) or 'there are none'})")
        stream = c.streams.video[0]
        context = stream.codec_context
        if context is None:
            raise Undecodable("undecodable", "this FFmpeg has no decoder for the video's codec")
        context.thread_count = threads
        context.thread_type = thread_type
        yield c, stream


def cut_short(fd: int, size: int) -> str | None:
    """What a file says of its own length, where that is more than there is: the boxes of MP4, the segment of Matroska
    and WebM, the RIFF of AVI. ``None`` where it fits or nothing is known."""
    head = os.pread(fd, 64, 0)
    needed = 0
    if head[:4] == b"RIFF":
        needed = 8 + int.from_bytes(head[4:8], "little")
    elif head[:4] == b"\x1aE\xdf\xa3":
        needed = _matroska(fd, head)
    elif head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        needed = _boxes(fd, size)
    return f"the file has {size} bytes, and needs {needed}" if needed > size else None


def _vint(data: bytes) -> tuple[int | None, int]:
    """(value or ``None`` where it is "unknown", bytes)"""
    if not data or not data[0]:
        return None, 1
    length = 9 - data[0].bit_length()
    value = int.from_bytes(data[:length], "big") & (1 << 7 * length) - 1
    return (None if value == (1 << 7 * length) - 1 else value), length


def _matroska(fd: int, head: bytes) -> int:
    value, length = _vint(head[4:])
    at = 4 + length + (value or 0)
    segment = os.pread(fd, 12, at)
    if segment[:4] != b"\x18S\x80g":
        return 0
    value, length = _vint(segment[4:])
    return 0 if value is None else at + 4 + length + value


def _boxes(fd: int, size: int) -> int:
    at = 0
    for _ in range(_BOXES):
        if at >= size:
            break
        head = os.pread(fd, 16, at)
        if len(head) < 8:
            return at + 8
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length < 8:  # 0: up to the end of the file, wherever that was
            return 0
        at += length
    return at


def orientation_of(frame: Any) -> int:
    """1 to 8 as EXIF counts, of a decoded frame's display matrix: how it must be turned to be looked at. 1 where the
    turn is not by quarters."""
    try:
        for data in frame.side_data:
            if data.type.name == "DISPLAYMATRIX":
                return _ORIENTATIONS.get(_signs(bytes(data)), 1)
    except ValueError:  # a kind of side data that this PyAV has no name for
        return {90: 8, -90: 6, 180: 3, -180: 3}.get(frame.rotation, 1)
    return 1


def _signs(matrix: bytes) -> tuple[int, ...]:
    """Signs of a, b, c, d of x' = a x + c y, y' = b x + d y; 16.16 numbers in the machine's order."""
    if len(matrix) < 36:
        return ()
    a, b, _, c, d = struct.unpack_from("=5i", matrix)
    return tuple((v > 0) - (v < 0) for v in (a, b, c, d))


_ORIENTATIONS: dict[tuple[int, ...], int] = {
    (1, 0, 0, 1): 1,
    (-1, 0, 0, 1): 2,
    (-1, 0, 0, -1): 3,
    (1, 0, 0, -1): 4,
    (0, 1, 1, 0): 5,
    (0, 1, -1, 0): 6,
    (0, -1, -1, 0): 7,
    (0, -1, 1, 0): 8,
}
