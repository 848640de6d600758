"""Subset of Thrift's compact protocol that reads the page headers of Parquet.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from typing import Any

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DEEPEST = 16


class ThriftReader:
    """Reads structs from ``data``. Raises :class:`ValueError` for invalid data, :class:`EOFError` if it is cut."""

    def __init__(self, data: bytes):
        self._data = data
        self.at = 0
        """Position of the next read."""

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Read the fields by number: numbers, bytes, and dictionaries for structs. Lists are skipped."""
        found: dict[int, Any] = {}
        number = 0
        # A field begins with a byte: how far its number is from the last one, and its type. Type 0 ends the struct.
        while kind := (head := self._byte()) & 15:
            delta = head >> 4
            # No distance means that it did not fit, and the number follows.
            number = number + delta if delta else self._zigzag()
            found[number] = self._value(kind, depth)
        return found

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise EOFError
        self.at += 1
        return self._data[self.at - 1]

    def varint(self, longest: int = 63) -> int:
        """Read a number of up to ``longest`` bits."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > longest:
                raise ValueError("a number does not end")

    def _zigzag(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("values are nested too deeply")
        # As a field, a truth value is in its type; in a list it takes a byte.
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return self._zigzag()
        if kind == _DOUBLE:
            return self.take(8)
        if kind == _BINARY:
            return self.take(self.varint())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            head = self._byte()
            count, each = head >> 4, head & 15
            # Fifteen means that the count did not fit, and follows.
            if count == 15:
                count = self.varint()
            for _ in range(count):
                if each in (_TRUE, _FALSE):
                    self._byte()
                else:
                    self._value(each, depth + 1)
            return None
        raise ValueError(f"there is no type {kind}")

    def take(self, count: int) -> bytes:
        if self.at + count > len(self._data):
            raise EOFError
        self.at += count
        return self._data[self.at - count : self.at]
