"""Open video files with PyAV, and turn its errors into :class:`~gpupipe.codecs.files.Undecodable`.

The probing processes and the decoder share this module. It imports only modules that a probing process loads without
the rest of the package.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from ..files import Undecodable, attempts
from ..retry import is_transient
from ..truncation import end_of_boxes

T = TypeVar("T")

FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,live_flv,asf,ogg,ivf,h264,hevc,m4v,mjpeg,"
    "gif,apng,rm,dv,mxf,nut,yuv4mpegpipe,wtv,vob,obu,av1"
)
"""The demuxers of FFmpeg that may open a file. Playlists are excluded: they name other files and addresses, which would
be opened with the user's rights."""

STRICT = frozenset({"hevc", "mjpeg", "mpeg1video", "mpeg2video", "mpeg4"})
"""Codecs whose decoders neither raise at a damaged picture nor mark the right one, unless FFmpeg's
``err_detect=explode`` tells them to raise. The missing part of such a picture would be whatever the memory held before.
"""

_NOT_ALLOWED = (
    "FFmpeg does not open it as a video: its container is not allowed, as for sound files with a cover picture, "
    "images and playlists, or its header is damaged"
)


def reading(path: bytes, work: Callable[[], T]) -> T:
    """Call ``work()``, which reads the file with PyAV, and retry after transient errors of the system.

    Raises:
        Undecodable: kind ``missing``, ``unreadable``, ``empty``, ``truncated`` or ``undecodable``, or the kind that
            ``work`` raises.
    """

    def once(file: Any) -> T:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise Undecodable("empty", "0 bytes")
        try:
            return work()
        except Undecodable:
            raise
        except Exception as e:  # each demuxer and decoder has its own
            if not_its_fault(e):
                raise
            raise named(e, file.fileno()) from None

    return attempts(path, once)


def not_its_fault(error: BaseException) -> bool:
    """Return whether the machine caused an error, and not the video.

    FFmpeg reports a lack of memory if the file claims an impossible size of a packet; Python and numpy report it if the
    machine has no memory left.
    """
    if isinstance(error, MemoryError):
        return getattr(error, "errno", None) is None
    return isinstance(error, ImportError) or is_transient(error)


def named(error: Exception, fd: int) -> Undecodable:
    """Convert an error of PyAV for an open file."""
    # A missing end explains whatever the demuxer complains about.
    cut = cut_short(fd, os.fstat(fd).st_size)
    if cut is not None or isinstance(error, EOFError):
        return Undecodable("truncated", cut or str(error))
    return Undecodable("undecodable", f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}")


@contextlib.contextmanager
def opened(path: bytes, *, strict: frozenset[str] = frozenset(), known: str = "") -> Iterator[tuple[Any, Any]]:
    """Open a file: (container, its first video stream), ready to demux and decode in one thread: many processes decode.

    Nothing of them may be used afterwards, because PyAV's objects point into memory that closing frees.

    Args:
        strict: codecs whose decoders must raise at any error in a picture.
        known: FFmpeg's name of the container of an indexed file, which is then not analyzed: FFmpeg would otherwise
            guess the container, and decode pictures to find out what the index knows. Only packets of the video are
            read.

    Raises:
        Undecodable: kind ``no-video``, or ``undecodable`` if the container is not in :data:`FORMATS`.
        av.error.FFmpegError: PyAV's own errors.
    """
    import av

    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    how: dict[str, Any] = {}
    if known:
        # The smallest value that FFmpeg accepts. With skip_frame, its analysis decodes no pictures.
        options["probesize"] = "32"
        how = {"format": known, "options": {"skip_frame": "all"}}
    try:
        # fsdecode, because PyAV encodes it back in the same way.
        found = av.open(os.fsdecode(path), container_options=options, **how)
    except av.error.ArgumentError:  # FFmpeg's answer if a format is not in the list
        raise Undecodable("undecodable", _NOT_ALLOWED) from None
    with found as c:
        if not c.streams.video:
            kinds = sorted({s.type for s in c.streams})
            raise Undecodable("no-video", f"no video among its streams ({', '.join(kinds) or 'there are none'})")
        stream = c.streams.video[0]
        context = stream.codec_context
        if context is None:
            raise Undecodable("undecodable", "this FFmpeg has no decoder for the video's codec")
        # Only with slice threads, at least two, does the decoder of VP8 notice that data end too early.
        context.thread_count, context.thread_type = (2, "SLICE") if codec_of(stream) == "vp8" else (1, "NONE")
        if codec_of(stream) in strict:
            context.options = {"err_detect": "explode"}
        if known and hasattr(type(stream), "discard"):  # from PyAV 18 on
            for other in c.streams:
                if other.index != stream.index:
                    other.discard = av.stream.Discard.all
        yield c, stream


def codec_of(stream: Any) -> str:
    """FFmpeg's name of the codec, where PyAV may return that of a decoder."""
    name = str(stream.codec_context.name)
    return {"libdav1d": "av1", "libaom-av1": "av1", "libvpx": "vp8", "libvpx-vp9": "vp9"}.get(name, name)


def cut_short(fd: int, size: int) -> str | None:
    """Say how much of a file is missing, from the sizes in MP4 boxes, in the segment of Matroska and WebM, and in the
    RIFF header of AVI; ``None`` if nothing is missing or known."""
    head = os.pread(fd, 64, 0)
    needed = 0
    if head[:4] == b"RIFF":
        needed = 8 + int.from_bytes(head[4:8], "little")
    elif head[:4] == b"\x1aE\xdf\xa3":
        needed = _matroska(fd, head)
    elif head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"):
        # What MP4 and QuickTime files begin with.
        needed = end_of_boxes(partial(os.pread, fd), size)
    return f"the file has {size} bytes, but needs {needed}" if needed > size else None


def _vint(data: bytes) -> tuple[int | None, int]:
    """(value, or ``None`` for "unknown"; number of bytes) of Matroska's variable-length integer."""
    if not data or not data[0]:
        return None, 1
    # The zeros before the first one tell how many bytes follow. A value of all ones means unknown.
    length = 9 - data[0].bit_length()
    value = int.from_bytes(data[:length], "big") & (1 << 7 * length) - 1
    return (None if value == (1 << 7 * length) - 1 else value), length


def _matroska(fd: int, head: bytes) -> int:
    value, length = _vint(head[4:])
    at = 4 + length + (value or 0)
    # The segment, which holds everything else, follows the EBML header.
    segment = os.pread(fd, 12, at)
    if segment[:4] != b"\x18S\x80g":
        return 0
    value, length = _vint(segment[4:])
    return 0 if value is None else at + 4 + length + value


def orientation_of(frame: Any) -> int:
    """Rotation to apply to a decoded frame for display, as an EXIF orientation: 1 to 8; 1 if the display matrix is no
    multiple of 90 degrees."""
    try:
        for data in frame.side_data:
            if data.type.name == "DISPLAYMATRIX":
                return _ORIENTATIONS.get(_signs(bytes(data)), 1)
    except ValueError:  # a kind of side data that this PyAV has no name for
        return {90: 8, -90: 6, 180: 3, -180: 3}.get(frame.rotation, 1)
    return 1


def _signs(matrix: bytes) -> tuple[int, ...]:
    """Signs of a, b, c, d in x' = a x + c y, y' = b x + d y; 16.16 fixed-point numbers in native byte order."""
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
