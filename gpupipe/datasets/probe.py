"""What the first bytes of an image file say: size, format, orientation. Pixels are not decoded.

This file is also the program of the worker processes (see :mod:`gpupipe.datasets.pool`), which is why it imports
Pillow and the standard library only, and nothing of gpupipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from PIL import Image, UnidentifiedImageError

__all__ = ["KINDS", "Probe", "probe", "quiet"]

KINDS = ("ok", "missing", "empty", "unreadable", "undecodable", "bomb", "zero-sized")
"""What a status number means. Written to disk: append only."""
OK, MISSING, EMPTY, UNREADABLE, UNDECODABLE, BOMB, ZERO_SIZED = range(len(KINDS))

_ORIENTATION = 0x0112


class Probe(NamedTuple):
    """What became known of one file. ``height`` and ``width`` are as stored, before any orientation."""

    status: int
    height: int = 0
    width: int = 0
    format: str = ""
    orientation: int = 1
    reason: str = ""


def probe(path: bytes) -> Probe:
    """Read the header of one file. Never raises for what a file may hold; call it inside :func:`quiet`."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return Probe(EMPTY, reason="the file has 0 bytes")
            return _identify(file)
    except FileNotFoundError as e:
        return Probe(MISSING, reason=e.strerror or str(e))
    except OSError as e:
        return Probe(UNREADABLE, reason=e.strerror or str(e))


def _identify(file: BinaryIO) -> Probe:
    try:
        with Image.open(file) as image:
            width, height = image.size
            kind = image.format or ""
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and width * height > 2 * limit:
                return Probe(BOMB, format=kind, reason=_bomb(width * height, limit))
            if width < 1 or height < 1 or max(width, height) >= 1 << 31:
                return Probe(ZERO_SIZED, format=kind, reason=f"the image is {width}x{height}")
            return Probe(OK, height, width, kind, _orientation(image))
    except Image.DecompressionBombError as e:
        return Probe(BOMB, reason=str(e))
    except UnidentifiedImageError:
        return Probe(UNDECODABLE, reason="Pillow knows no image format that starts like this")
    except OSError as e:
        if e.errno is not None:  # the disk's failure, not the format's
            raise
        return Probe(UNDECODABLE, reason=str(e))
    except Exception as e:  # Pillow's parsers raise nearly everything: struct.error, ValueError, SyntaxError, KeyError
        return Probe(UNDECODABLE, reason=f"{type(e).__name__}: {e}")


def _bomb(pixels: int, limit: int) -> str:
    return f"{pixels} pixels are more than twice PIL.Image.MAX_IMAGE_PIXELS ({limit})"


def _orientation(image: Image.Image) -> int:
    # Pillow turns a TIFF upright itself, whoever opens it; its size is the turned one already.
    # Other formats only where the header brought something: PNG's getexif() would decode the whole image to look for
    # a chunk behind the pixels.
    if image.format == "TIFF" or not {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"} & image.info.keys():
        return 1
    try:
        value: Any = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged EXIF block does not make a damaged image
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps Pillow's warnings away (large images, odd EXIF): what matters of them is in the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ------------------------------------------------------------------ the worker's side and the words on the wire
# Request: u32 length, then paths separated by NUL. Answer: u32 length, then one record per path.

_LENGTH = struct.Struct("<I")
_RECORD = struct.Struct("<BBiiHH")


def pack(result: Probe) -> bytes:
    name, reason = result.format.encode()[:99], result.reason.encode(errors="replace")[:2000]
    numbers = (result.status, result.orientation, result.height, result.width, len(name), len(reason))
    return _RECORD.pack(*numbers) + name + reason


def unpack(data: bytes) -> list[Probe]:
    results, at = [], 0
    while at < len(data):
        status, orientation, height, width, n, r = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        name, reason = data[at : at + n].decode(), data[at + n : at + n + r].decode(errors="replace")
        at += n + r
        results.append(Probe(status, height, width, name, orientation, reason))
    return results


def send(stream: BinaryIO, message: bytes) -> None:
    stream.write(_LENGTH.pack(len(message)) + message)
    stream.flush()


def receive(stream: BinaryIO) -> bytes | None:
    """The next message, or ``None`` where the other side has gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = stream.read(length)
    return message if len(message) == length else None


def serve() -> None:
    """Answer requests from stdin on stdout until stdin is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes stdin
    out = sys.stdout.buffer
    with quiet():
        while (request := receive(sys.stdin.buffer)) is not None:
            send(out, b"".join(pack(probe(path)) for path in request.split(b"\0")))


if __name__ == "__main__":
    Image.MAX_IMAGE_PIXELS = int(sys.argv[1]) or None
    serve()
