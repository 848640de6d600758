"""Files that are compressed as a whole, such as ``a.tar.gz``. They are read once, from the beginning to the end."""

from __future__ import annotations

import bz2
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from .extras import need

_ENDINGS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd", ".zstd": "zstd", ".br": "brotli"}
_SHORT = {".tgz": ".tar", ".tbz2": ".tar", ".txz": ".tar", ".tzst": ".tar"}
_BEGINNINGS = {
    "gzip": re.compile(rb"\x1f\x8b\x08[\x00-\x1f]"),
    "bzip2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "zlib": re.compile(rb"\x78[\x01\x5e\x9c\xda]"),
}
_HEAD = 1 << 10
_PIECE = 1 << 18
"""Compressed bytes that are read, and unpacked bytes that are returned, at a time."""
_DICTIONARY = 256 << 20
"""Maximum number of bytes that unpacking may keep; ``xz -9`` needs 65 MB."""
_UNSUSPECTED, _RATIO = 1 << 30, 256
"""A file may unpack into ``_UNSUSPECTED`` bytes, or into ``_RATIO`` bytes for each compressed byte."""


class InOrder(ValueError):
    """The samples of a shard are no ranges of bytes, so it can only be read as a whole. The message says why."""


def plain_name(name: str) -> str:
    """Return the name that a file has after unpacking.

    >>> plain_name("a.tar.gz"), plain_name("a.tgz"), plain_name("a.tar")
    ('a.tar', 'a.tar', 'a.tar')
    """
    stem, dot, ending = name.rpartition(".")
    ending = f"{dot}{ending}".lower()
    return stem if ending in _ENDINGS else stem + _SHORT[ending] if ending in _SHORT else name


def codec_of(file: IO[bytes], path: str | bytes = b"") -> str:
    """Return the codec of a compressed file, by its beginning; empty if there is none.

    The name decides only for brotli, whose files begin like any others. A file of another format may begin so too:
    first try to read it as what it should be.
    """
    file.seek(0)
    head = file.read(_HEAD)
    codec = next((name for name, begins in _BEGINNINGS.items() if begins.match(head)), "")
    ends = path if isinstance(path, bytes) else path.encode(errors="surrogateescape")
    if codec == "zlib":  # two bytes say little
        try:
            zlib.decompressobj().decompress(head, 1)
        except zlib.error:
            return ""
    return codec or ("brotli" if ends.lower().endswith(b".br") else "")


def unpacked(file: IO[bytes], codec: str) -> Iterator[bytes]:
    """Yield the bytes of a compressed file, a piece at a time.

    Raises :class:`ValueError` if they are damaged, or far more than the file can hold, and :class:`OSError`.
    """
    file.seek(0)
    size, most = 0, _UNSUSPECTED
    try:
        for piece in _with_pyarrow(file, codec) if codec in ("zstd", "brotli") else _pieces(file, codec):
            size += len(piece)
            # The position grows with what was read, so it is asked for only if the limit known so far is exceeded.
            if size > most and size > (most := max(most, _RATIO * file.tell())):
                raise ValueError(
                    f"it unpacks into more than {_RATIO} bytes for each of its first {file.tell():,} bytes: images do "
                    "not shrink like this; if you trust it, unpack it yourself"
                )
            yield piece
    except (zlib.error, lzma.LZMAError) as e:
        raise ValueError(f"its {codec} data are damaged: {e}") from None


def _pieces(file: IO[bytes], codec: str) -> Iterator[bytes]:
    """Several compressed streams may follow one another, as ``cat`` joins them."""
    new: dict[str, Callable[[], Any]] = {
        "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
        "zlib": zlib.decompressobj,
        "bzip2": bz2.BZ2Decompressor,
        "xz": lambda: lzma.LZMADecompressor(memlimit=_DICTIONARY),
    }
    data = file.read(_PIECE)
    while data:
        stream = new[codec]()
        while not stream.eof:
            try:
                piece = stream.decompress(data, _PIECE)
            except OSError as e:  # bzip2's own
                raise ValueError(f"its {codec} data are damaged: {e}") from None
            if piece:
                yield piece
            # zlib hands back what it did not use; bz2 and lzma keep it, and needs_input tells whether they want more.
            data = getattr(stream, "unconsumed_tail", b"")
            if not stream.eof and not data and getattr(stream, "needs_input", not piece):
                data = file.read(_PIECE)
                if not data and not piece:
                    raise ValueError(f"its {codec} data end too early: it is truncated")
        data = (stream.unused_data or file.read(_PIECE)).lstrip(b"\0")  # a tape may add zeros


class _Unclosed(io.RawIOBase):
    """A file for pyarrow, which closes what it reads."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _with_pyarrow(file: IO[bytes], codec: str) -> Iterator[bytes]:
    pa = need("pyarrow", "parquet", f"files compressed with {codec} are unpacked with pyarrow")
    stream = pa.CompressedInputStream(pa.PythonFile(_Unclosed(file), "r"), codec)
    while True:
        try:
            piece = stream.read(_PIECE)
        except OSError as e:  # pyarrow's own, without a number
            if e.errno is not None:
                raise
            raise ValueError(f"its {codec} data are damaged: {e}") from None
        if not piece:
            return
        yield piece
