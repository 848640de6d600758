"""Bytes that are stored in another form than they are used: compressed, or in pieces. The standard library does some;
pyarrow, which wrote the others, does those.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["ARROW_CODECS", "CODECS", "Packed", "unpack"]


class Packed(NamedTuple):
    """How stored bytes are unpacked, and which part of them is wanted.

    >>> unpack(zlib.compress(b"abcdef", wbits=-15), Packed("deflate", 6, 2, 3))
    b'cde'
    """

    codec: str
    """One of :data:`CODECS`."""
    size: int
    """Bytes of the whole after unpacking."""
    skip: int
    """Bytes before the part that is wanted."""
    take: int
    """Bytes of it."""


_MAGIC = struct.pack("<I", 0xCED7230A)
_HEAD = struct.Struct("<4sI")


def _deflate(data: bytes, size: int) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)


def _recordio(data: bytes, size: int) -> bytes:
    """The parts of one record of RecordIO: if a record holds the magic number it is cut, and the number left out."""
    parts, at = [], 0
    while at < len(data):
        magic, word = _HEAD.unpack_from(data, at)
        if magic != _MAGIC:
            raise ValueError("a part does not begin with the magic number")
        at += _HEAD.size
        length = word & (1 << 29) - 1
        parts.append(data[at : at + length])
        at += (length + 3) & ~3
    return _MAGIC.join(parts)


def _arrow(name: str) -> Callable[[bytes, int], bytes]:
    def decompress(data: bytes, size: int) -> bytes:
        from pyarrow import Codec

        return bytes(Codec(name).decompress(data, size))

    return decompress


ARROW_CODECS = ("snappy", "gzip", "brotli", "zstd", "lz4_raw")
"""What compresses pages of Parquet."""

CODECS: dict[str, Callable[[bytes, int], bytes]] = {
    "deflate": _deflate,
    "recordio": _recordio,
    **{name: _arrow(name) for name in ARROW_CODECS},
}
"""By name: ``unpack(stored, size after unpacking)``. Names are written to disk: they keep their meaning."""


def unpack(stored: bytes, packed: Packed) -> bytes:
    """The wanted part. Raises :class:`ValueError` if the stored bytes are damaged, and :class:`ImportError` if what
    unpacks them is not installed."""
    try:
        whole = CODECS[packed.codec](stored, packed.size)
    except (zlib.error, struct.error, OSError, ValueError) as e:  # pyarrow's errors are the last two
        raise ValueError(f"its {packed.codec} data are damaged: {e}") from None
    if len(whole) != packed.size:
        raise ValueError(f"its {packed.codec} data are damaged: {len(whole)} bytes, not {packed.size}")
    if not 0 <= packed.skip <= packed.skip + packed.take <= packed.size:
        raise ValueError(f"it should be bytes {packed.skip} to {packed.skip + packed.take} of {packed.size}")
    return whole[packed.skip : packed.skip + packed.take]
