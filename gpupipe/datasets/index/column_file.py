"""A file of named numpy columns that is memory-mapped: the form an index has on disk. No pickle.

    magic, version, length of the header, length of the file, BLAKE2b of the header       64 bytes
    header: JSON with "columns" (name, dtype, shape, offset) and "meta" (whatever the writer needs)
    columns, each aligned to 64 bytes, offsets counted from the first

Nothing in the header is believed before it was checked against the file: a file that was cut short, or made to do
harm, is refused with :class:`ColumnsError`.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ...errors import DatasetError
from .cache import distrust

__all__ = ["Columns", "ColumnsError", "write_columns"]

Array = npt.NDArray[Any]

VERSION = 1
_MAGIC = b"GPUPIDX\n"
_PREFIX = struct.Struct("<8sIIQ16s")
_DIGEST = 16
_START = 64  # the header begins here
_ALIGN = 64
_MAX_HEADER = 256 << 20
_DTYPES = ("|u1", "<i4", "<i8")


class ColumnsError(DatasetError):
    """A column file is damaged, or of another version."""


def _aligned(n: int) -> int:
    return -(-n // _ALIGN) * _ALIGN


def write_columns(file: BinaryIO, columns: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
    """Write everything to an empty file. Columns are u8, i32 or i64 of one or two dimensions."""
    entries, at = [], 0
    ready: list[Array] = []
    for name, column in columns.items():
        column = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
        if column.dtype.str not in _DTYPES or column.ndim not in (1, 2):
            raise TypeError(f"column {name!r} is {column.dtype}[{column.shape}]; u8, i32 and i64 can be stored")
        entries.append({"name": name, "dtype": column.dtype.str, "shape": list(column.shape), "offset": at})
        ready.append(column)
        at = _aligned(at + column.nbytes)
    header = json.dumps({"columns": entries, "meta": meta}, separators=(",", ":")).encode()
    first = _aligned(_START + len(header))
    digest = hashlib.blake2b(header, digest_size=_DIGEST).digest()
    file.write(_PREFIX.pack(_MAGIC, VERSION, len(header), first + at, digest).ljust(_START, b"\0"))
    file.write(header.ljust(first - _START, b"\0"))
    for column in ready:
        if column.nbytes:
            file.write(column.data.cast("B"))
        file.write(bytes(_aligned(column.nbytes) - column.nbytes))
    file.flush()


class Columns:
    """An open column file. Arrays are read-only views of the mapped file; all processes share its memory.

    ``path`` is ``None`` for a file that has no name any more. Pickling sends the path, or the whole content of a file
    without one.
    """

    def __init__(self, fd: int, path: str | None):
        """Map the file behind ``fd``, which the caller closes. Raises :class:`ColumnsError`."""
        self.path = path
        self._name = path or "an unnamed index file"
        length = os.fstat(fd).st_size
        if length < _START:
            raise self._damaged(f"it has {length} bytes")
        self.map = mmap.mmap(fd, length, access=mmap.ACCESS_READ)
        magic, version, header_length, total, digest = _PREFIX.unpack(self.map[: _PREFIX.size])
        if magic != _MAGIC:
            raise self._damaged(f"it starts with {magic!r}")
        if version != VERSION:
            raise self._damaged(f"it has version {version}, and this is version {VERSION}")
        if total != length:
            raise self._damaged(f"it has {length} bytes, but was written with {total}")
        if header_length > min(_MAX_HEADER, length - _START):
            raise self._damaged(f"its header of {header_length} bytes does not fit")
        header = self.map[_START : _START + header_length]
        self.digest: bytes = digest
        if hashlib.blake2b(header, digest_size=_DIGEST).digest() != self.digest:
            raise self._damaged("its header was changed")
        try:
            parsed = json.loads(header)
        except (ValueError, RecursionError) as e:
            raise self._damaged(f"its header is not JSON: {e}") from None
        if not (isinstance(parsed, dict) and isinstance(parsed.get("meta"), dict)):
            raise self._damaged("its header has no meta")
        self.meta: dict[str, Any] = parsed["meta"]
        self.arrays: dict[str, Array] = {}
        self.offsets: dict[str, int] = {}
        entries = parsed.get("columns")
        for entry in entries if isinstance(entries, list) else [None]:
            self._view(entry, _aligned(_START + header_length), length)

    def _view(self, entry: Any, first: int, length: int) -> None:
        if not isinstance(entry, dict):
            raise self._damaged("its header has no list of columns")
        name, dtype, shape, offset = (entry.get(k) for k in ("name", "dtype", "shape", "offset"))
        if not isinstance(name, str) or name in self.arrays or dtype not in _DTYPES:
            raise self._damaged(f"column {name!r} of dtype {dtype!r}")
        # type() and not isinstance(): True is an int, and JSON can spell it.
        if type(offset) is not int or offset < 0 or offset % _ALIGN:
            raise self._damaged(f"column {name!r} starts at {offset!r}")
        if not isinstance(shape, list) or len(shape) not in (1, 2) or any(type(n) is not int or n < 0 for n in shape):
            raise self._damaged(f"column {name!r} has shape {shape!r}")
        count = 1
        for n in shape:
            count *= n  # Python integers do not wrap
        if first + offset + count * np.dtype(dtype).itemsize > length or max(shape) > length:
            raise self._damaged(f"column {name!r} of shape {shape!r} ends behind the file")
        array = np.frombuffer(self.map, dtype, count, first + offset) if count else np.frombuffer(b"", dtype)
        self.arrays[name] = array.reshape(shape)
        self.offsets[name] = first + offset

    def column(self, name: str, dtype: str, *shape: int) -> Array:
        """A column that must be there; -1 in ``shape`` is any length. Raises :class:`ColumnsError`."""
        array = self.arrays.get(name)
        if array is None or array.dtype != np.dtype(dtype) or array.ndim != len(shape):
            raise self._damaged(f"column {name!r} is missing or not {dtype} of {len(shape)} dimensions")
        if any(want not in (-1, have) for want, have in zip(shape, array.shape, strict=True)):
            raise self._damaged(f"column {name!r} has shape {array.shape}, not {shape}")
        return array

    def release(self) -> None:
        """Let go of the pages this process has touched. They stay in the page cache, and come back when used."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED)

    def _damaged(self, what: str) -> ColumnsError:
        return ColumnsError(f"{self._name} is not a usable index: {what}. Delete it; it is made again from the files")

    @classmethod
    def open(cls, path: str) -> Columns:
        """Raises :class:`ColumnsError`, or :class:`OSError` where the file cannot be read."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would wait for ever
        try:
            reason = distrust(os.fstat(fd))
            if reason is not None:
                raise ColumnsError(f"{path} is not trusted: {reason}. Set GPUPIPE_CACHE to a folder of your own")
            return cls(fd, path)
        finally:
            os.close(fd)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _reopen, (self.path, self.digest, None if self.path else bytes(self.map))


def _reopen(path: str | None, digest: bytes, content: bytes | None) -> Columns:
    if path is None:
        import tempfile

        with tempfile.TemporaryFile() as file:
            file.write(content or b"")
            file.flush()
            return Columns(file.fileno(), None)
    try:
        columns = Columns.open(path)
    except OSError as e:
        raise DatasetError(f"the index {path} cannot be opened in this process ({e}); make the dataset again") from None
    if columns.digest != digest:
        raise DatasetError(f"the index {path} was rebuilt while this process started; make the dataset again")
    return columns
