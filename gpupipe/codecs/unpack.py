"""Unpacking of bytes that are stored compressed.

The standard library handles some codecs; pyarrow, which wrote the others, handles those.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple


class Packed(NamedTuple):
    """Way to unpack stored bytes, and the part of the result that is wanted.

    >>> unpack(zlib.compress(b"abcdef")[2:-4], Packed("deflate", 6, 2, 3))
    b'cde'
    """

    codec: str
    """One of :data:`CODECS`."""
    size: int
    """Bytes of the whole after unpacking."""
    skip: int
    """Bytes before the wanted part."""
    take: int
    """Bytes of the wanted part."""

    @property
    def shared(self) -> bool:
        """Whether other samples are packed together with this one, so that keeping the whole pays."""
        return self.codec in ARROW_CODECS and 2 * self.take <= self.size

    def part_of(self, whole: bytes) -> bytes:
        """Return the wanted part of the unpacked bytes. Raises :class:`ValueError` if it is not within."""
        if not 0 <= self.skip <= self.skip + self.take <= self.size:
            raise ValueError(f"it should be bytes {self.skip} to {self.skip + self.take} of {self.size}")
        return whole[self.skip : self.skip + self.take]


Stored = bytes | memoryview


def _deflate(data: Stored, size: int) -> bytes:
    # One byte more than expected shows that the data are wrong, without unpacking all that a bomb has.
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)


def _arrow(name: str) -> Callable[[Stored, int], bytes]:
    def decompress(data: Stored, size: int) -> bytes:
        from pyarrow import Codec

        return bytes(Codec(name).decompress(data, size, asbytes=True))

    return decompress


ARROW_CODECS = ("snappy", "gzip", "brotli", "zstd", "lz4_raw")
"""Codecs that compress pages of Parquet."""

CODECS: dict[str, Callable[[Stored, int], bytes]] = {
    "deflate": _deflate,
    **{name: _arrow(name) for name in ARROW_CODECS},
}
"""``unpack(stored, size after unpacking)`` by codec name. Names are written to disk: they keep their meaning."""


def unpack(stored: Stored, packed: Packed) -> bytes:
    """Return the wanted part of the unpacked bytes. Raises the errors of :func:`unpack_whole`."""
    return packed.part_of(unpack_whole(stored, packed))


def unpack_whole(stored: Stored, packed: Packed) -> bytes:
    """Return all unpacked bytes, also those that are not wanted.

    Raises:
        ValueError: the stored bytes are damaged.
        ImportError: the package that unpacks them is not installed.
    """
    try:
        whole = CODECS[packed.codec](stored, packed.size)
    except (zlib.error, OSError, ValueError) as e:  # pyarrow's errors are the last two
        raise ValueError(f"its {packed.codec} data are damaged: {e}") from None
    if len(whole) != packed.size:
        raise ValueError(f"its {packed.codec} data are damaged: {len(whole)} bytes, not {packed.size}")
    return whole
