"""Parquet as pyarrow and pandas write it by default: pages of many images, compressed as a whole."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_cases import table
from PIL import Image
from support import EVAL, all_seen, cpu_loader, in_a_child, in_threads, little_memory, same

from gpupipe import BlockShuffle, Shard
from gpupipe.codecs.files import Undecodable, read_at
from gpupipe.codecs.page_cache import PAGES, PageCache
from gpupipe.codecs.unpack import Packed, unpack_whole
from gpupipe.datasets import ImageFolder, Parquet
from gpupipe.datasets.index.probe_pool import PictureProber
from gpupipe.errors import DatasetError
from gpupipe.sources import parquet_pages
from gpupipe.sources.parquet_pages import ColumnChunk, places
from gpupipe.sources.thrift import ThriftReader

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")

COUNT = 1100
"""More than pyarrow writes at a time by default: 1024."""
LARGE = 4 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each photograph."""
    root = tmp_path_factory.mktemp("photos")
    noise = np.random.default_rng(0).integers(0, 256, (8, 64, 64, 3), np.uint8)
    for i in range(COUNT):
        picture = noise[i % 8].copy()
        picture[:8, :8] = i % 256, i // 256, 0
        (root / f"{i:04d}").mkdir()
        Image.fromarray(picture).save(root / f"{i:04d}" / "a.jpg", quality=98)
    return root


@pytest.fixture(scope="module")
def images(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]


def by_pyarrow(images: list[bytes], path: Path) -> None:
    pq.write_table(table(images), path)


def by_pandas(images: list[bytes], path: Path) -> None:
    pd.DataFrame({"image": images, "label": range(len(images))}).to_parquet(path)


def by_pandas_as_the_hub(images: list[bytes], path: Path) -> None:
    rows = [{"bytes": image, "path": f"{i}.jpg"} for i, image in enumerate(images)]
    pd.DataFrame({"image": rows, "label": range(len(images))}).to_parquet(path)


WRITERS = (by_pyarrow, by_pandas, by_pandas_as_the_hub)


@pytest.fixture(scope="module")
def written(images: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    by_pyarrow(images, path)
    os.utime(path, (1_500_000_000, 1_500_000_000))
    return path


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    PAGES.clear()
    yield
    PAGES.clear()


def pages_of(dataset: Any) -> set[tuple[int, int]]:
    """(offset, size) of every page."""
    found = {(place.offset, place.packed.size) for place in map(dataset.place, range(len(dataset)))}
    assert max(size for _, size in found) > LARGE
    return found


loader = partial(cpu_loader, batch_size=50)


@pytest.mark.slow
class TestDefaults:
    @pytest.mark.parametrize("write", WRITERS)
    def test_every_image_and_label(self, write: Callable[..., None], images: list[bytes], tmp_path: Path) -> None:
        write(images, tmp_path / "a.parquet")
        found = Parquet(tmp_path)
        assert len(pages_of(found)) >= 2
        assert [found.fetch(i) for i in range(COUNT)] == [(image, i) for i, image in enumerate(images)]

    def test_index_unpacks_each_page_once(
        self, images: list[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Once for the places of its values, and once for the headers of its images."""
        places_unpacked = []
        real = unpack_whole
        monkeypatch.setattr(
            parquet_pages, "unpack_whole", lambda *given: places_unpacked.append(given[1].size) or real(*given)
        )
        monkeypatch.setattr(PictureProber, "pool_from", COUNT + 1)  # in this process
        monkeypatch.setattr(PAGES, "limit", 0)
        by_pyarrow(images, tmp_path / "a.parquet")
        pages = pages_of(Parquet(tmp_path))
        assert sum(size > 1 << 20 for size in places_unpacked) == len(pages)
        assert PAGES.unpacked == len(pages)


@pytest.mark.slow
class TestOrders:
    @pytest.mark.part(of=2)
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_batches_are_those_of_the_folder(self, shuffle: Any, written: Path, folder: Path) -> None:
        with loader(ImageFolder(folder, EVAL), shuffle=shuffle) as it:
            wanted = [batch for _ in range(2) for batch in it]
        PAGES.clear()
        with loader(Parquet(written, EVAL), shuffle=shuffle) as it:
            assert same([batch for _ in range(2) for batch in it], wanted)
        assert 0 < PAGES.most_bytes <= PAGES.limit

    def test_blocks_unpack_each_page_once(self, images: list[bytes], tmp_path: Path) -> None:
        for k in range(3):
            by_pyarrow(images, tmp_path / f"{k}.parquet")
        dataset = Parquet(tmp_path, EVAL)
        pages = pages_of(dataset)
        blocks = Parquet(tmp_path, EVAL).pages
        assert blocks is not None
        assert len(pages) * 3 == blocks[-1] + 1
        PAGES.clear()
        with loader(dataset, shuffle=BlockShuffle(1 << 20, 1)) as it:
            seen = all_seen(it)
        assert PAGES.unpacked == 3 * len(pages)
        assert seen != sorted(seen)
        assert sorted(seen) == sorted([*range(COUNT)] * 3)

    @pytest.mark.part(of=2)
    @pytest.mark.parametrize("shuffle", [True, BlockShuffle(1 << 20, 2)])
    def test_ranks_share_nothing_and_a_run_goes_on(self, shuffle: Any, written: Path) -> None:
        dataset = Parquet(written, EVAL)
        got = []
        for rank in range(2):
            with loader(dataset, shuffle=shuffle, shard=Shard(rank, 2)) as first:
                batches = iter(first)
                got += all_seen([next(batches), next(batches)])
                state = first.state_dict()
            with loader(dataset, shuffle=shuffle, shard=Shard(rank, 2)) as second:
                second.load_state_dict(state)
                got += all_seen(second)
        assert sorted(got) == list(range(COUNT))


class TestDamage:
    def test_samples_of_a_damaged_page_are_bad_and_others_are_not(self, images: list[bytes], tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        by_pyarrow(images, path)
        found = Parquet(path, EVAL)
        rows = [found.place(i).offset for i in range(COUNT)]
        first = rows[0]
        content = bytearray(path.read_bytes())
        content[first : first + 4] = b"\xff\xff\xff\xff"  # snappy's own length
        path.write_bytes(content)
        damaged = [i for i, at in enumerate(rows) if at == first]
        assert 0 < len(damaged) < COUNT
        read = found.source.read([found.place(i) for i in (damaged[0], COUNT - 1)])
        assert isinstance(read[0], Undecodable)
        assert "snappy data are damaged" in read[0].reason
        assert read[1] == images[-1]
        with pytest.raises(DatasetError, match=rf"a\.parquet cannot be used: the page at byte {first} is damaged"):
            Parquet(path)

    def test_a_file_that_was_replaced_is_read_anew(self, images: list[bytes], tmp_path: Path) -> None:
        path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
        by_pyarrow(images, path)
        found: Any = Parquet(path)
        place = found.place(0)
        with path.open("rb") as file:
            assert read_at(file.fileno(), place) == images[0]
        by_pyarrow([images[0][:-9] + b"different", *images[1:]], other)
        os.replace(other, path)
        with path.open("rb") as file:
            assert read_at(file.fileno(), place) == images[0][:-9] + b"different"


def page_v2(size: int, stored: int, count: int, levels: int, encoding: int = 0) -> bytes:
    """The header of a page, of plain values by default."""
    whole = fields((1, 3), (2, size), (3, stored)) + b"\x5c"  # field 8, a struct
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


class TestLimits:
    def test_larger_pages_are_refused_with_what_to_do(
        self, written: Path, images: list[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(parquet_pages, "_LARGEST", LARGE)
        by_pyarrow(images, tmp_path / "old.parquet")
        says = r"compressed with snappy in pages of \d+ MB, and at most 4 MB are .*; write it again: pyarrow"
        with pytest.raises(DatasetError, match=says):
            Parquet(tmp_path / "old.parquet")

    def test_a_truth_value_is_no_number(self) -> None:
        page = parquet_pages._Page(0, {5: {1: True}}, 7, 0, 0)
        with pytest.raises(ValueError, match="the page at byte 7 is damaged"):
            parquet_pages._number(page, 5, 1)

    @pytest.mark.parametrize(
        ("field", "value", "says"),
        [
            ("size", (1 << 31) - 1, r"claims 2147483647 bytes in 27 compressed"),
            ("size", 1 << 29, r"claims 536870912 bytes in 27 compressed"),
            ("count", (1 << 31) - 1, r"claims 2147483647 values in 27 bytes"),
            ("levels", (1 << 31) - 1, r"truncated or damaged"),
            ("levels", -5, r"damaged"),
        ],
    )
    def test_headers_that_lie_take_no_memory(self, field: str, value: int, says: str, tmp_path: Path) -> None:
        numbers = {"size": 100, "count": 10, "levels": 0, field: value}
        body = bytes(27)
        path = tmp_path / "a"
        path.write_bytes(page_v2(numbers["size"], len(body), numbers["count"], numbers["levels"]) + body)
        codec = "snappy" if field == "size" else ""
        with little_memory(32 << 20), path.open("rb") as file, pytest.raises(ValueError, match=says):
            list(places(file, ColumnChunk(0, 1 << 40, 1 << 40, codec, 1)))

    def test_pages_with_more_values_than_their_column(self, tmp_path: Path) -> None:
        body = bytes(3 * 4)  # three empty values, each after its length
        page = page_v2(len(body), len(body), 3, 0) + body
        (tmp_path / "a").write_bytes(2 * page)
        with (tmp_path / "a").open("rb") as file:
            assert len(list(places(file, ColumnChunk(0, 2 * len(page), 6, "", 0)))) == 6
            with pytest.raises(ValueError, match=f"the page at byte {2 * len(page) - len(body)} has more values"):
                list(places(file, ColumnChunk(0, 2 * len(page), 5, "", 0)))

    @pytest.mark.parametrize(
        ("header", "says"),
        [
            (page_v2(12, 99, 3, 0), "no page at byte 0"),  # it would end behind the file
            (page_v2(12, -1, 3, 0), "no page at byte 0"),
            (fields((1, 1), (2, -1), (3, 12)) + b"\0", "no page at byte 0"),
            (fields((1, 3), (2, 12), (3, 12)) + b"\0", "no page at byte 0"),  # without its own header
            (fields((1, 1), (2, 12), (3, 12)) + b"\0", "lacks 3 values"),  # an index
        ],
    )
    def test_pages_that_cannot_be(self, header: bytes, says: str, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(header + bytes(12))
        with (tmp_path / "a").open("rb") as file, pytest.raises(ValueError, match=says):
            list(places(file, ColumnChunk(0, 1 << 20, 3, "", 0)))

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
    def test_values_that_cannot_be(self, encoding: int, body: bytes, says: str, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(page_v2(len(body), len(body), 1, 0, encoding) + body + bytes(64))
        with (tmp_path / "a").open("rb") as file, pytest.raises(ValueError, match=says):
            list(places(file, ColumnChunk(0, 1 << 20, 1, "", 0)))

    def test_levels_that_are_longer_than_their_page(self, tmp_path: Path) -> None:
        header = fields((1, 0), (2, 8), (3, 8)) + b"\x2c" + fields((1, 3), (2, 0)) + b"\0\0"  # version 1: field 5
        (tmp_path / "a").write_bytes(header + struct.pack("<I", 100) + bytes(200))
        with (tmp_path / "a").open("rb") as file, pytest.raises(ValueError, match="truncated or damaged"):
            list(places(file, ColumnChunk(0, 1 << 20, 3, "", 1)))

    def test_a_value_that_the_dictionary_lacks(self, tmp_path: Path) -> None:
        body = bytes([8]) + varint(1 << 1) + bytes([0])  # indices of eight bits: one run of a single 0
        (tmp_path / "a").write_bytes(page_v2(len(body), len(body), 1, 0, encoding=8) + body)
        with (tmp_path / "a").open("rb") as file, pytest.raises(ValueError, match="its dictionary does not have"):
            list(places(file, ColumnChunk(0, 1 << 20, 1, "", 0)))


class TestPageCache:
    @staticmethod
    def page(k: int, size: int = 1000) -> tuple[int, Packed, int, Callable[[], bytes]]:
        stored = pa.Codec("snappy").compress(bytes([k]) * size, asbytes=True)
        return k, Packed("snappy", size, 0, 1), 0, lambda: stored

    def test_the_least_recently_used_makes_room(self) -> None:
        cache = PageCache(3000)
        for k in (0, 1, 2, 0, 3, 0, 1):  # 3 takes the place of 1, and 1 that of 2
            assert cache.part(*self.page(k)) == bytes([k])
        assert (cache.unpacked, cache.nbytes, cache.most_bytes) == (5, 3000, 3000)

    def test_one_page_may_be_larger_than_the_limit(self) -> None:
        cache = PageCache(500)
        for k in (0, 0, 1, 1):
            cache.part(*self.page(k))
        assert (cache.unpacked, cache.nbytes, cache.most_bytes) == (2, 1000, 1000)

    def test_threads_share_one_unpacking_and_the_limit(self) -> None:
        cache = PageCache(2500)
        got: list[bytes] = []

        def ask(k: int) -> None:
            key, packed, stored, read = self.page(k)

            def slowly() -> bytes:
                time.sleep(0.02)
                return read()

            got.append(cache.part(key, packed, stored, slowly))

        in_threads(*(partial(ask, k) for k in (0, 1, 2, 3) * 4))
        assert sorted(got) == sorted(bytes([k]) for k in (0, 1, 2, 3) * 4)
        assert cache.most_bytes <= 2500
        shared = PageCache()
        in_threads(*[lambda: shared.part(*self.page(7))] * 8)
        assert shared.unpacked == 1

    def test_a_failure_is_not_kept(self) -> None:
        cache = PageCache()
        key, packed, stored, read = self.page(0)
        with pytest.raises(ValueError, match="damaged"):
            cache.part(key, packed, stored, lambda: b"\xff")
        assert cache.nbytes == 0
        assert cache.part(key, packed, stored, read) == b"\0"
        assert cache.forget(key, packed)
        assert not cache.forget(key, packed)
        assert cache.nbytes == 0

    def test_a_forked_child_begins_without_pages(self) -> None:
        PAGES.part(*self.page(0))
        with PAGES._changed:  # as another thread may hold it
            assert in_a_child(lambda: PAGES.nbytes or PAGES.part(*self.page(1)) != b"\1") == 0
        assert PAGES.nbytes == 1000
