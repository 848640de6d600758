"""Unpacking of bytes that are stored compressed.

The standard library handles some codecs; pyarrow, which wrote the others, handles those.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import IO, NamedTuple

from .raw_file import RawFile


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


_WHOLE = 4 << 20
"""Bytes up to which data are inflated at once."""
_AT_ONCE = 64 << 20
"""Maximum number of bytes returned by a read without a size."""
_PIECE = 64 << 10
"""Bytes of deflated data that are inflated at a time; they become at most 64 MiB."""
_WINDOW = 1 << 20
"""Inflated bytes that are kept at the beginning, and before the current position."""


def open_unpacked(stored: IO[bytes], packed: Packed) -> IO[bytes]:
    """Open the wanted part as a file.

    Deflated data of more than 4 MiB are inflated only as far as they are read, and never kept as a whole: a few
    thousand bytes can claim to be gigabytes.

    Raises the errors of :func:`unpack`. The file itself raises :class:`OSError` if its data are damaged;
    :func:`check_unpacked` reads the rest of it.
    """
    if packed.codec != "deflate" or packed.size <= _WHOLE:
        return io.BytesIO(unpack(stored.read(), packed))
    return io.BufferedReader(_Inflating(stored, packed))


def check_unpacked(file: IO[bytes]) -> None:
    """Raise :class:`OSError` unless a file from :func:`open_unpacked` has the expected size."""
    raw = getattr(file, "raw", None)
    if isinstance(raw, _Inflating):
        raw.finish()


class _Inflating(RawFile):
    def __init__(self, stored: IO[bytes], packed: Packed):
        super().__init__(packed.take)
        self._stored, self._packed = stored, packed
        self._head = b""
        self._restart()

    def _restart(self) -> None:
        self._stored.seek(0)
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._window, self._start = bytearray(), 0

    def readall(self) -> bytes:
        if self.size - self.tell() > _AT_ONCE:  # WebP and AVIF, which Pillow reads this way even for their size
            raise OSError(
                f"it unpacks into {self.size} bytes, but its format can only be unpacked as a whole: at most {_AT_ONCE}"
            )
        return super().readall() or b""

    def at(self, position: int, count: int) -> bytes | bytearray:
        start = self._packed.skip + position
        length = max(min(count, self.size - position), 0)
        # Pillow returns to the beginning of a file, which must not inflate everything again.
        if start + length <= len(self._head):
            return self._head[start : start + length]
        length = min(length, _WINDOW)
        self._reach(start, start + length)
        return self._window[start - self._start : start - self._start + length]

    def finish(self) -> None:
        """Raise :class:`OSError` unless all of the data can be inflated and has the expected size."""
        size = self._packed.size
        self._reach(size, size)
        # The expected bytes came; there must not be more.
        if self._start + len(self._window) > size or self._more(1):
            raise OSError(f"its deflate data are damaged: more than {size} bytes")

    def _reach(self, start: int, end: int) -> None:
        """Read the bytes from ``start`` to ``end`` into the window. Raises :class:`OSError` if they do not exist."""
        # Inflating cannot go back, so it begins again.
        if start < self._start:
            self._restart()
        while self._start + len(self._window) < end:
            part = self._more(_WINDOW)
            if not part:
                there = self._start + len(self._window)
                raise OSError(f"its deflate data are damaged: {there} bytes, not {self._packed.size}")
            self._window += part
            # Until the window moves, it begins with the first byte.
            if not self._start:
                self._head = bytes(self._window[:_WINDOW])
            # Drop what exceeds the window, but nothing from start on.
            surplus = min(len(self._window) - _WINDOW, start - self._start)
            if surplus > 0:
                del self._window[:surplus]
                self._start += surplus

    def _more(self, most: int) -> bytes:
        """Return the next bytes; none at the end."""
        part = b""
        while not part and not self._inflate.eof:
            stored = self._inflate.unconsumed_tail or self._stored.read(_PIECE)
            try:
                part = self._inflate.decompress(stored, most)
            except zlib.error as e:
                raise OSError(f"its deflate data are damaged: {e}") from None
            # There is no more input, and what zlib held back came with this call.
            if not stored:
                break
        return part
