"""Subset of protobuf's wire format that finds bytes and numbers in a message, without a schema and without a copy.

https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """One field of a message."""

    number: int
    wire: int
    """0 for a varint, 1 for eight bytes, 2 for bytes of any length, 5 for four bytes."""
    value: int
    """Value of a varint."""
    start: int
    end: int
    """End of its content in the data."""


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return (value, its end)."""
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise ValueError("a number does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7


def fields(data: bytes, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """Yield the fields of the message in ``data[start:end]``, in order.

    >>> [field[:3] for field in fields(bytes([0x08, 0x96, 0x01]))]
    [(1, 0, 150)]

    Raises :class:`ValueError` if it is not a message.
    """
    at, end = start, len(data) if end is None else end
    while at < end:
        key, at = _varint(data, at, end)
        number, wire, value, begin = key >> 3, key & 7, 0, at
        if not number:
            raise ValueError("there is no field 0")
        if wire == VARINT:
            value, at = _varint(data, at, end)
        elif wire == BYTES:
            length, begin = _varint(data, at, end)
            at = begin + length
        elif wire in (FIXED64, FIXED32):
            at += 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"there is no wire type {wire}")
        if at > end:
            raise ValueError("a field is longer than its message")
        yield Field(number, wire, value, begin, at)


def varints(data: bytes, start: int, end: int) -> Iterator[int]:
    """Yield packed numbers."""
    while start < end:
        value, start = _varint(data, start, end)
        yield value


def signed(value: int) -> int:
    """Convert a varint of type int64, which protobuf stores in two's complement.

    >>> signed((1 << 64) - 1)
    -1
    """
    return value - (1 << 64) if value >> 63 else value
