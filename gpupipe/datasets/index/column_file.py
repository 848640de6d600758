"""File of named numpy columns, in which every byte is checked before use: the format of an index. No pickle.

    magic, version, length of the header, number of blocks, BLAKE2b of head and sums    64 bytes
    header: JSON with "columns" (name, dtype, shape, offset) and "meta" (whatever the writer needs)
    columns, each aligned to a block, with offsets from the first
    sums: XXH3 of every block, u64

The head, which is everything before the columns, ends at a block too. Opening a file reads and checks it from end to
end: a truncated, damaged or malicious one raises :class:`ColumnsError`. Later damage raises :class:`ColumnsError` too,
and never gives wrong values or a crash; see :mod:`.blocks`. A file that is replaced under its name stays readable by
those who have it open.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ...cache_folder import distrust
from ...codecs.files import pread
from ...errors import DatasetError
from .blocks import BLOCK, Blocks, ColumnsError, aligned, sums_of

__all__ = ["Arrays", "Column", "Columns", "ColumnsError", "write_columns"]

Array = npt.NDArray[Any]
I64 = npt.NDArray[np.int64]

VERSION = 2
_MAGIC = b"GPUPIDX\n"
_PREFIX = struct.Struct("<8sIIQ16s")
_DIGEST = 16
_START = 64  # the header begins here
_MAX_HEADER = 256 << 20
_DTYPES = ("|u1", "<i4", "<i8", "<f8")


def _head(header: bytes, blocks: int, digest: bytes) -> bytes:
    prefix = _PREFIX.pack(_MAGIC, VERSION, len(header), blocks, digest)
    head = prefix.ljust(_START, b"\0") + header
    return head.ljust(aligned(len(head)), b"\0")


def _digest(header: bytes, sums: npt.NDArray[np.uint64]) -> bytes:
    """Return the identity of a file: a hash of its head, with a zero digest, and of the checksums of everything
    else."""
    head = _head(header, len(sums), bytes(_DIGEST))
    return hashlib.blake2b(head + sums.astype("<u8").tobytes(), digest_size=_DIGEST).digest()


def write_columns(file: BinaryIO, columns: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
    """Write all columns to an empty file. They are u8, i32, i64 or f64 with one or two dimensions."""
    entries, at = [], 0
    ready: list[Array] = []
    for name, column in columns.items():
        column = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
        if column.dtype.str not in _DTYPES or column.ndim not in (1, 2):
            raise TypeError(f"column {name!r} is {column.dtype}[{column.shape}]; u8, i32, i64 and f64 can be stored")
        entries.append({"name": name, "dtype": column.dtype.str, "shape": list(column.shape), "offset": at})
        ready.append(column)
        at += aligned(column.nbytes)
    header = json.dumps({"columns": entries, "meta": meta}, separators=(",", ":")).encode()
    # A head of the final size and without a digest: until all is written, the file is not valid.
    file.write(_head(header, 0, bytes(_DIGEST)))
    known = [np.empty(0, np.uint64)]
    for column in ready:
        content = column.reshape(-1).view(np.uint8).data
        whole = len(content) // BLOCK * BLOCK
        rest = bytes(content[whole:])
        # The last block is padded, so that each column begins at a block.
        for part in (content[:whole], memoryview(rest.ljust(aligned(len(rest)), b"\0"))):
            known.append(sums_of(part))
            file.write(part)
    sums = np.concatenate(known)
    file.write(sums.astype("<u8").tobytes())
    file.seek(0)
    file.write(_head(header, len(sums), _digest(header, sums)))
    file.flush()


class Column:
    """A column of an open file, not read yet."""

    def __init__(self, blocks: Blocks, dtype: str, shape: tuple[int, ...], start: int):
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self._blocks = blocks
        self._start = start
        self._row = self.dtype.itemsize * prod(shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    @cached_property
    def all(self) -> Array:
        """All rows, read once and kept; read-only."""
        return self.read()

    @cached_property
    def numbers(self) -> memoryview:
        """All rows, read once and kept. Single numbers are found in a third of numpy's time."""
        return self.all.data

    def read(self) -> Array:
        """Return all rows for a single use, kept only if the whole file is; read-only."""
        return self._array(self._blocks.read(self._start, self._start + len(self) * self._row))

    def part(self, start: int, stop: int) -> Array:
        """Return the rows from ``start`` to ``stop``; read-only."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"rows {start} to {stop} of {len(self)}")
        if self.is_here:
            return self.all[start:stop]
        return self._array(self._blocks.read(self._start + start * self._row, self._start + stop * self._row))

    def rows(self, indices: I64) -> Array:
        """Return the rows at ``indices``, none of them negative."""
        if self.is_here:
            return self.all[indices]
        starts = np.asarray(indices, np.int64)
        return self._array(b"".join(self.pieces(starts, starts + 1)))

    def pieces(self, starts: I64, stops: I64) -> list[bytes]:
        """Return the bytes of the rows from each of ``starts`` to each of ``stops``. Raises :class:`IndexError`."""
        if len(starts) and not (starts.min() >= 0 and (starts <= stops).all() and stops.max() <= len(self)):
            raise IndexError(f"rows {starts} to {stops} of {len(self)}")
        low, high = (self._start + rows * self._row for rows in (starts, stops))
        return self._blocks.pieces(low.tolist(), high.tolist())

    @property
    def is_here(self) -> bool:
        """Whether all rows are in memory."""
        return self._blocks.in_memory or "all" in self.__dict__

    def _array(self, content: bytes | memoryview) -> Array:
        return np.frombuffer(content, self.dtype).reshape(-1, *self.shape[1:])


class Arrays:
    """A column u8[N, L] whose rows are arrays."""

    def __init__(self, column: Column, dtype: np.dtype[Any], shape: tuple[int, ...]):
        self.dtype = dtype
        self._column, self._shape = column, shape

    def rows(self, indices: I64) -> Array:
        """Return the arrays at ``indices``: [n, *shape]."""
        return self._column.rows(indices).view(self.dtype).reshape(len(indices), *self._shape)


class Columns:
    """An open column file.

    ``path`` is ``None`` for a file that no longer has a name. Pickling sends the path, or the whole content of a file
    without one.
    """

    def __init__(self, fd: int, path: str | None):
        """Read and check the file behind ``fd``, which the caller closes. Raises :class:`ColumnsError`."""
        self.path = path
        self._name = path or "an unnamed index file"
        length = os.fstat(fd).st_size
        prefix = pread(fd, _START, 0)
        if len(prefix) < _START:
            raise self._damaged(f"it has {len(prefix)} bytes")
        magic, version, header_length, count, self.digest = _PREFIX.unpack(prefix[: _PREFIX.size])
        if magic != _MAGIC:
            raise self._damaged(f"it starts with {magic!r}")
        if version != VERSION:
            raise self._damaged(f"it has version {version}, and this is version {VERSION}")
        if header_length > min(_MAX_HEADER, length - _START):
            raise self._damaged(f"its header of {header_length} bytes does not fit")
        first = aligned(_START + header_length)
        total = first + count * (BLOCK + 8)
        if total != length:
            raise self._damaged(f"it has {length} bytes, but was written with {total}")
        head = pread(fd, first, 0)
        header = head[_START : _START + header_length]
        sums = np.frombuffer(pread(fd, count * 8, length - count * 8), "<u8").astype(np.uint64)
        if len(sums) != count or head != _head(header, count, _digest(header, sums)):
            raise self._damaged("its head was changed")
        try:
            parsed = json.loads(header)
        except (ValueError, RecursionError) as e:
            raise self._damaged(f"its header is not JSON: {e}") from None
        if not (isinstance(parsed, dict) and isinstance(parsed.get("meta"), dict)):
            raise self._damaged("its header has no meta")
        self.meta: dict[str, Any] = parsed["meta"]
        self._blocks = Blocks(fd, self._name, first, sums)
        self._ends = head, sums.astype("<u8").tobytes()
        self.columns: dict[str, Column] = {}
        entries = parsed.get("columns")
        for entry in entries if isinstance(entries, list) else [None]:
            self._add(entry)

    def _add(self, entry: Any) -> None:
        if not isinstance(entry, dict):
            raise self._damaged("its header has no list of columns")
        name, dtype, shape, offset = (entry.get(k) for k in ("name", "dtype", "shape", "offset"))
        if not isinstance(name, str) or name in self.columns or dtype not in _DTYPES:
            raise self._damaged(f"column {name!r} of dtype {dtype!r}")
        # type() and not isinstance(): True is an int, and JSON can spell it.
        if type(offset) is not int or offset < 0 or offset % BLOCK:
            raise self._damaged(f"column {name!r} starts at {offset!r}")
        if not isinstance(shape, list) or len(shape) not in (1, 2) or any(type(n) is not int or n < 0 for n in shape):
            raise self._damaged(f"column {name!r} has shape {shape!r}")
        # Python integers do not wrap.
        # With a zero in the shape, the product does not bound the other number.
        if offset + prod(shape) * np.dtype(dtype).itemsize > self._blocks.size or max(shape) > self._blocks.size:
            raise self._damaged(f"column {name!r} of shape {shape!r} ends behind the file")
        self.columns[name] = Column(self._blocks, dtype, tuple(shape), offset)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def column(self, name: str, dtype: str, *shape: int) -> Column:
        """Return a required column; -1 in ``shape`` means any length. Raises :class:`ColumnsError`."""
        column = self.columns.get(name)
        if column is None or column.dtype != np.dtype(dtype) or len(column.shape) != len(shape):
            raise self._damaged(f"column {name!r} is missing or not {dtype} of {len(shape)} dimensions")
        if any(want not in (-1, have) for want, have in zip(shape, column.shape, strict=True)):
            raise self._damaged(f"column {name!r} has shape {column.shape}, not {shape}")
        return column

    def _damaged(self, what: str) -> ColumnsError:
        return ColumnsError(f"{self._name} is not a usable index: {what}. Delete it; it is made again from the files")

    @classmethod
    def open(cls, path: str) -> Columns:
        """Open a file. Raises :class:`ColumnsError`, or :class:`OSError` if it cannot be read."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would block forever
        try:
            reason = distrust(os.fstat(fd))
            if reason is not None:
                raise ColumnsError(f"{path} is not trusted: {reason}. Set GPUPIPE_CACHE to a folder of your own")
            return cls(fd, path)
        finally:
            os.close(fd)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if self.path is not None:
            return _reopen, (self.path, self.digest, self.meta.get("fingerprint"))
        head, sums = self._ends
        return _unnamed, (head + self._blocks.read(0, self._blocks.size) + sums,)


def _unnamed(content: bytes) -> Columns:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return Columns(file.fileno(), None)


def _reopen(path: str, digest: bytes, fingerprint: str | None) -> Columns:
    try:
        columns = Columns.open(path)
    except OSError as e:
        raise DatasetError(f"the index {path} cannot be opened in this process ({e}); make the dataset again") from None
    # An index that was made again is as good if its samples are the same.
    same_samples = fingerprint is not None and columns.meta.get("fingerprint") == fingerprint
    if columns.digest != digest and not same_samples:
        raise DatasetError(
            f"the files of the index {path} changed, and it was rebuilt, while this process started; make the dataset "
            "again"
        )
    return columns
