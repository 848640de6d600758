"""Positions of the values of a binary column in a Parquet file.

A column of a row group is a sequence of pages: an optional dictionary, then pages of values or of indices into the
dictionary. In uncompressed pages a value is a range of bytes of the file. (https://parquet.apache.org/docs/file-format)
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import numpy as np

from .thrift import ThriftReader

WRITE_AGAIN = "write it again: pyarrow.parquet.write_table(pyarrow.parquet.read_table(OLD), NEW, compression='none')"
"""Advice on a file whose values cannot be read one by one."""
_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_HEADER = 1 << 16
_VALUES, _VALUES_PER_BYTE = 1 << 20, 8
"""A page may claim ``_VALUES`` values, plus ``_VALUES_PER_BYTE`` for each of its bytes."""
_PIECE = 1 << 16
"""Packed numbers that are unpacked at a time."""


class Where(NamedTuple):
    """Position of one value."""

    offset: int
    length: int


@dataclass(frozen=True)
class ColumnChunk:
    """A column of one row group."""

    start: int
    """Start of its first page."""
    size: int
    """Bytes of all its pages."""
    count: int
    """Number of values, including missing ones."""
    levels: int
    """Depth at which a value may be missing: 0 never, 1 the value, 2 the struct that contains it, ..."""


@dataclass(frozen=True)
class _Page:
    file: IO[bytes]
    kind: int
    header: dict[int, Any]
    start: int
    """Start of the page's body in the file."""
    size: int

    def number(self, header: int, field: int) -> int:
        """Return a number of the header; 0 if it is not there."""
        value = self.header[header].get(field, 0)
        if type(value) is not int or value < 0:
            raise ValueError(f"the page at byte {self.start} is damaged")
        return value

    def read(self, at: int, length: int) -> bytes:
        """Read bytes of the page. Raises :class:`ValueError` if it ends before."""
        self._check(at + length)
        self.file.seek(self.start + at)
        return self.file.read(length)

    def values(self, count: int, at: int) -> Iterator[Where]:
        """Yield the positions of plain values from ``at`` on. Each is preceded by its length."""
        for _ in range(count):
            length = int.from_bytes(self.read(at, 4), "little")
            at += 4
            self._check(at + length)
            yield Where(self.start + at, length)
            at += length

    def _check(self, end: int) -> None:
        if end > self.size:
            raise ValueError(f"the page at byte {self.start} is truncated or damaged")


def places(file: IO[bytes], column: ColumnChunk) -> Iterator[Where | None]:
    """Yield the position of every value of a column; ``None`` for a missing one. Raises :class:`ValueError`."""
    # Whatever a column claims, its pages end with the file.
    at, end, left = column.start, min(column.start + column.size, file.seek(0, io.SEEK_END)), column.count
    dictionary: list[Where] = []
    while left > 0:
        if at >= end:
            raise ValueError(f"a column that begins at byte {column.start} lacks {left} values")
        page = _page(file, at, end)
        at = page.start + page.size
        if page.kind == _DICTIONARY:
            dictionary = list(page.values(page.number(7, 1), 0))
            continue
        if page.kind not in (_DATA, _DATA_V2):
            continue
        found = _of_data_page(page, column, dictionary)
        if len(found) > left:
            raise ValueError(f"the page at byte {page.start} has more values than its column")
        left -= len(found)
        yield from found


def _page(file: IO[bytes], at: int, end: int) -> _Page:
    for room in (_HEADER, 64 * _HEADER):  # headers may contain the minimum and maximum value
        file.seek(at)
        reader = ThriftReader(file.read(min(room, end - at)))
        try:
            header = reader.struct()
        except EOFError:
            continue
        kind, size = header.get(1), header.get(3)  # 2 is the size without compression
        start = at + reader.at
        whole = type(kind) is int and type(size) is int  # and not a truth value
        if not whole or size < 0 or start + size > end:  # type: ignore[operator]
            break
        expected = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind)  # type: ignore[arg-type]
        if expected is not None and not isinstance(header.get(expected), dict):
            break
        return _Page(file, kind, header, start, size)  # type: ignore[arg-type]
    raise ValueError(f"there is no page at byte {at}: it is truncated or damaged")


def _of_data_page(page: _Page, column: ColumnChunk, dictionary: list[Where]) -> list[Where | None]:
    if page.kind == _DATA_V2:
        count, encoding = page.number(8, 1), page.number(8, 4)
        definition, repetition = page.number(8, 5), page.number(8, 6)
        # In version 2, the lengths of the levels are in the header.
        levels, begin = page.read(repetition, definition), repetition + definition
    else:
        count, encoding = page.number(5, 1), page.number(5, 2)
        levels, begin = b"", 0
        if column.levels:
            # In version 1, the levels come first in the body, after their length.
            length = int.from_bytes(page.read(0, 4), "little")
            levels, begin = page.read(4, length), 4 + length
    if count > min(column.count, _VALUES + _VALUES_PER_BYTE * page.size):
        raise ValueError(f"the page at byte {page.start} claims {count} values in {page.size} bytes")
    # A value is there if nothing on the way to it is missing: its level is the highest one.
    there = _hybrid(levels, column.levels.bit_length(), count) == column.levels if column.levels else None
    present = count if there is None else int(there.sum())
    if encoding == _PLAIN:
        values = list(page.values(present, begin))
    elif encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
        indices = page.read(begin, page.size - begin)
        # The first byte is the width of the indices in bits.
        chosen = _hybrid(indices[1:], indices[0] if indices else 0, present)
        if len(chosen) and chosen.max() >= len(dictionary):
            raise ValueError(f"the page at byte {page.start} refers to a value that its dictionary does not have")
        values = [dictionary[i] for i in chosen.tolist()]
    else:
        raise ValueError(f"its values have the encoding {encoding}, in which none can be read alone; {WRITE_AGAIN}")
    if there is None:
        return list(values)
    following = iter(values)
    return [next(following) if is_there else None for is_there in there.tolist()]


def _hybrid(data: bytes, width: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Decode i64[count] from runs and bit-packed groups. Raises :class:`ValueError`."""
    if width > 32:
        raise ValueError("a page has numbers of more than 32 bits")
    out = np.zeros(count, np.int64)
    try:
        _fill(out, ThriftReader(data), width)
    except EOFError:
        raise ValueError("a page ends too early") from None
    return out


def _fill(out: np.ndarray[Any, np.dtype[np.int64]], reader: ThriftReader, width: int) -> None:
    done, count, each = 0, len(out), (width + 7) // 8
    while width and done < count:
        head = reader.varint(35)
        if head & 1:
            left = head >> 1  # groups of eight numbers
            while left and done < count:
                some = min(left, _PIECE // 8)
                bits = np.unpackbits(np.frombuffer(reader.take(some * width), np.uint8), bitorder="little")
                # The bits of each number, the lowest first, times powers of two.
                numbers = bits.reshape(-1, width).astype(np.int64) @ (1 << np.arange(width, dtype=np.int64))
                n = min(len(numbers), count - done)
                out[done : done + n] = numbers[:n]
                left, done = left - some, done + n
        else:
            n = min(head >> 1, count - done)
            out[done : done + n] = int.from_bytes(reader.take(each), "little")
            done += n
        # It would make no progress, and the loop would not end.
        if not head >> 1:
            raise ValueError("a page has an empty run")
