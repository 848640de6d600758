"""Pages of Parquet whose headers lie, or that are damaged."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from support import little_memory

from gpupipe.sources import parquet_pages
from gpupipe.sources.parquet_pages import ColumnChunk, places
from gpupipe.sources.thrift import ThriftReader


def page_v2(size: int, count: int, levels: int, encoding: int = 0) -> bytes:
    """The header of a page, of plain values by default."""
    whole = fields((1, 3), (2, size), (3, size)) + b"\x5c"  # field 8, a struct
    whole += fields((1, count), (2, 0), (3, count), (4, encoding), (5, levels), (6, 0)) + b"\0\0"
    assert ThriftReader(whole).struct()[8][1] == count
    return whole


def fields(*numbers: tuple[int, int]) -> bytes:
    """Numbers of 32 bits in Thrift's compact protocol, whose field numbers follow one another."""
    return b"".join(b"\x15" + varint(2 * value if value >= 0 else -2 * value - 1) for _, value in numbers)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += struct.pack("B", value & 127 | 128)
        value >>= 7
    return out + struct.pack("B", value)


def test_a_truth_value_is_no_number() -> None:
    page = parquet_pages._Page(io.BytesIO(), 0, {5: {1: True}}, 7, 0)
    with pytest.raises(ValueError, match="the page at byte 7 is damaged"):
        page.number(5, 1)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("count", (1 << 31) - 1, r"claims 2147483647 values in 27 bytes"),
        ("levels", (1 << 31) - 1, r"truncated or damaged"),
        ("levels", -5, r"damaged"),
    ],
)
def test_headers_that_lie_take_no_memory(field: str, value: int, says: str, tmp_path: Path) -> None:
    numbers = {"count": 10, "levels": 0, field: value}
    path = tmp_path / "a"
    path.write_bytes(page_v2(27, numbers["count"], numbers["levels"]) + bytes(27))
    with little_memory(32 << 20), path.open("rb") as file, pytest.raises(ValueError, match=says):
        list(places(file, ColumnChunk(0, 1 << 40, 1 << 40, 1)))


def test_pages_with_more_values_than_their_column(tmp_path: Path) -> None:
    body = bytes(3 * 4)  # three empty values, each after its length
    page = page_v2(len(body), 3, 0) + body
    (tmp_path / "a").write_bytes(2 * page)
    with (tmp_path / "a").open("rb") as file:
        assert len(list(places(file, ColumnChunk(0, 2 * len(page), 6, 0)))) == 6
        with pytest.raises(ValueError, match=f"the page at byte {2 * len(page) - len(body)} has more values"):
            list(places(file, ColumnChunk(0, 2 * len(page), 5, 0)))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (page_v2(99, 3, 0), "no page at byte 0"),  # it would end behind the file
        (page_v2(-1, 3, 0), "no page at byte 0"),
        (fields((1, 3), (2, 12), (3, 12)) + b"\0", "no page at byte 0"),  # without its own header
        (fields((1, 1), (2, 12), (3, 12)) + b"\0", "lacks 3 values"),  # an index
    ],
)
def test_pages_that_cannot_be(header: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(header + bytes(12))
    with (tmp_path / "a").open("rb") as file, pytest.raises(ValueError, match=says):
        list(places(file, ColumnChunk(0, 1 << 20, 3, 0)))


@pytest.mark.parametrize(
    ("encoding", "body", "says"),
    [
        (0, b"\1\0", "truncated or damaged"),  # half of a length
        (8, b"\x21\3\0\0\0\0\0", "more than 32 bits"),
        (8, b"\x08\0\0", "an empty run"),
        (8, b"\x08\2", "ends too early"),
        (8, b"\x08" + 6 * b"\xff", "does not end"),
    ],
)
def test_values_that_cannot_be(encoding: int, body: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(page_v2(len(body), 1, 0, encoding) + body + bytes(64))
    with (tmp_path / "a").open("rb") as file, pytest.raises(ValueError, match=says):
        list(places(file, ColumnChunk(0, 1 << 20, 1, 0)))


def test_levels_that_are_longer_than_their_page(tmp_path: Path) -> None:
    header = fields((1, 0), (2, 8), (3, 8)) + b"\x2c" + fields((1, 3), (2, 0)) + b"\0\0"  # version 1: field 5
    (tmp_path / "a").write_bytes(header + struct.pack("<I", 100) + bytes(200))
    with (tmp_path / "a").open("rb") as file, pytest.raises(ValueError, match="truncated or damaged"):
        list(places(file, ColumnChunk(0, 1 << 20, 3, 1)))


def test_a_value_that_the_dictionary_lacks(tmp_path: Path) -> None:
    body = bytes([8]) + varint(1 << 1) + bytes([0])  # indices of eight bits: one run of a single 0
    (tmp_path / "a").write_bytes(page_v2(len(body), 1, 0, encoding=8) + body)
    with (tmp_path / "a").open("rb") as file, pytest.raises(ValueError, match="its dictionary does not have"):
        list(places(file, ColumnChunk(0, 1 << 20, 1, 0)))
