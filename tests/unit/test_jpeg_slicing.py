"""Sliceable JPEGs: a cut has the pixels of the whole file, and files that were changed are not cut."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from jpegs import KINDS, jpeg, pillow_jpeg, sliceable_jpeg, sliceable_pillow_jpeg
from nvidia.dali import Pipeline, fn
from odd_files import exif
from PIL import Image

from gpupipe.codecs.jpeg.tile_index import Unsliceable, layout_of, tile_width, with_tile_index
from gpupipe.codecs.jpeg.tiles import Cut, Tiles, cut as cut_out, read_tiles
from gpupipe.testing.photos import photograph

U8 = npt.NDArray[np.uint8]

SIZES = ((53, 70), (64, 32), (161, 17), (1, 1))
"""(height, width): beside whole MCUs and at them, of more than eight rows, and the smallest."""
STORED = sorted((Path(__file__).parents[1] / "data" / "sliceable").glob("*.jpg"))
"""Written by earlier versions and by jpegtran of libjpeg-turbo 2.1.5: their format has to stay readable."""


def _own() -> Iterator[tuple[str, bytes]]:
    for seed, (name, kind) in enumerate(KINDS.items()):
        for height, width in SIZES:
            pixels = photograph(height, width, seed)
            yield (
                f"{name} {height}x{width}",
                sliceable_jpeg(pixels[:, :, 1] if len(kind.sampling) == 1 else pixels, kind),
            )


def _pillow() -> Iterator[tuple[str, bytes]]:
    make = sliceable_pillow_jpeg
    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        for quality in (30, 75, 97, 100) if subsampling != "4:2:2" else (90,):
            yield f"{subsampling} {quality}", make(200, 130, quality, subsampling=subsampling, quality=quality)
        yield f"{subsampling} optimized", make(97, 130, 1, subsampling=subsampling, optimize=True)
    yield "4:2:0 large", make(200, 384, 11, subsampling="4:2:0")
    yield "4:4:4 large", make(90, 480, 12, subsampling="4:4:4")
    yield "4:1:1 large", sliceable_jpeg(photograph(60, 384, 13), KINDS["4:1:1"])
    yield "gray large", make(50, 400, 14, "L")
    yield "gray", make(120, 75, 5, "L")
    yield "EXIF", make(120, 75, 8, exif=exif(6))
    yield "long EXIF, profile, comment", make(120, 75, 9, exif=b"Exif\0\0" + bytes(60000), icc_profile=bytes(9000))
    yield "RGB", make(90, 75, 10, keep_rgb=True)


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    return dict([*_own(), *_pillow(), *((path.stem, path.read_bytes()) for path in STORED)])


def pixels(data: bytes) -> U8:
    return np.asarray(Image.open(io.BytesIO(data)))


def decoded_by_dali(files: Sequence[bytes]) -> list[U8]:
    """u8[H, W, 3] of each."""
    pipe = Pipeline(batch_size=64, num_threads=2, device_id=None, prefetch_queue_depth=1)
    with pipe:
        pipe.set_outputs(fn.decoders.image(fn.external_source(name="data"), adjust_orientation=False))
    pipe.build()
    out: list[U8] = []
    for at in range(0, len(files), 64):
        (images,) = pipe.run(data=[np.frombuffer(f, np.uint8) for f in files[at : at + 64]])
        out += [np.asarray(images.at(i)) for i in range(len(images))]
    return out


def cut(data: bytes, *box: int, size: int | None = None) -> Cut | None:
    return cut_out(lambda n, at: data[at : at + n], size or len(data), box)


def tiles_of(data: bytes) -> Tiles | None:
    return read_tiles(lambda n, at: data[at : at + n], len(data))


def _spans(size: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """60 stretches of pixels; many touch an edge of an MCU."""
    edges = sorted({min(max(edge + d, 0), size) for edge in range(0, size + 8, 8) for d in (-2, -1, 0, 1, 2)})
    some = rng.choice(edges, (30, 2)).tolist() + rng.integers(0, size + 1, (30, 2)).tolist()
    return [(min(a, b), max(a, b)) if a != b else (0, size) for a, b in some]


def _windows(height: int, width: int, rng: np.random.Generator) -> list[tuple[int, int, int, int]]:
    """(top, left, bottom, right)"""
    pairs = zip(_spans(height, rng), rng.permutation(_spans(width, rng)).tolist(), strict=True)
    return sorted({(top, left, bottom, right) for (top, bottom), (left, right) in pairs} | {(0, 0, height, width)})


def test_cuts_have_the_pixels_of_the_whole_file(made: dict[str, bytes]) -> None:
    assert len(STORED) == 5
    rng = np.random.default_rng(0)
    cuts, wholes, places = [], [], []
    for data in made.values():
        whole = pixels(data)
        rgb = np.asarray(Image.fromarray(whole).convert("RGB"))
        for top, left, bottom, right in _windows(*whole.shape[:2], rng):
            found = cut(data, top, left, bottom, right)
            assert found is not None and found.size == whole.shape[:2] and found.data.endswith(b"\xff\xd9")
            place = slice(top - found.top, bottom - found.top), slice(left - found.left, right - found.left)
            part = pixels(found.data)
            assert part.shape[:2] == (found.height, found.width)
            assert (part[place] == whole[top:bottom, left:right]).all()
            cuts.append(found.data)
            places.append(place)
            wholes.append(rgb[top:bottom, left:right])
    assert len(cuts) > 3000
    for part, window, place in zip(decoded_by_dali(cuts), wholes, places, strict=True):
        assert (part[place] == window).all()


def test_a_cut_reads_and_holds_only_the_tiles_that_it_needs(made: dict[str, bytes]) -> None:
    data = made["4:2:0 large"]
    tiles, reads = tiles_of(data), []
    assert tiles is not None and tiles.size == (200, 384)
    assert (tiles.tile, tiles.coarse, tiles.across, len(tiles.starts)) == ((16, 48), (2, 2), 8, 13 * 8 + 1)

    def read(n: int, at: int) -> bytes:
        reads.append((at, n))
        return data[at : at + n]

    found = cut_out(read, len(data), (98, 99, 110, 139))
    assert found is not None and (found.top, found.left, found.height, found.width) == (96, 96, 16, 48)
    first = 6 * 8 + 2
    assert reads[1:] == [(tiles.starts[first], tiles.starts[first + 1] - tiles.starts[first])]
    assert len(found.data) == len(tiles.head) + reads[1][1]
    # Chroma is smoothed with its neighbors: what begins at a tile's edge needs the one before.
    wider = cut(data, 96, 96, 112, 144)
    assert wider is not None and (wider.top, wider.left, wider.height, wider.width) == (80, 48, 48, 144)
    assert Image.open(io.BytesIO(wider.data)).size == (144, 48)
    of_them = [tiles.starts[row * 8 + 4] - tiles.starts[row * 8 + 1] for row in (5, 6, 7)]
    assert len(wider.data) == len(tiles.head) + sum(of_them)
    gray = cut(made["gray"], 16, 0, 24, 5)
    assert gray is not None and (gray.top, gray.height, gray.width) == (16, 8, 80 if gray.width > 75 else gray.width)


def test_a_file_that_was_changed_is_not_cut(made: dict[str, bytes]) -> None:
    data = made["4:4:4 75"]
    tiles = tiles_of(data)
    assert tiles is not None and cut(data, 0, 0, 200, 130) is not None
    inserted = data[:2] + b"\xff\xe1\0\x08change" + data[2:]
    assert Image.open(io.BytesIO(inserted)).size == (130, 200) and tiles_of(inserted) is None
    start, fourth = int(tiles.starts[0]), int(tiles.starts[3])
    comment = data[: start - 14] + b"\xff\xfe\0\x04no" + data[start - 14 :]
    assert Image.open(io.BytesIO(comment)).size == (130, 200) and tiles_of(comment) is None
    assert tiles.across == 1  # 17 MCUs cannot be divided
    shorter = data[: fourth - 5] + data[fourth - 4 :]
    assert cut(shorter, 0, 0, 16, 130) is None
    size = len(data)  # of the index
    assert cut(shorter, 0, 0, 16, 130, size=size) is not None and cut(shorter, 16, 0, 32, 130, size=size) is None
    for at in (fourth - 1, fourth - 2):  # a marker, but not the one that was there; none
        other = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert cut(other, 0, 0, 16, 130) is not None and cut(other, 16, 0, 32, 130) is None
    lengths = data.index(np.diff(tiles.starts[:6]).astype(">u2").tobytes())
    empty = data[: lengths + 4] + bytes(2) + data[lengths + 6 :]
    assert cut(empty, 0, 0, 16, 130) is not None and cut(empty, 16, 0, 24, 130) is None
    ended = data[:-30]
    assert cut(ended, 0, 0, 16, 130, size=size) is not None and cut(ended, 190, 0, 200, 130, size=size) is None
    for window in (
        (-1, 0, 5, 9),
        (5, 0, 5, 9),
        (7, 0, 3, 9),
        (0, 0, 201, 9),
        (0, -1, 9, 9),
        (0, 9, 9, 9),
        (0, 0, 9, 131),
    ):
        assert cut(data, *window) is None
    for n in range(0, start, 7):
        assert cut(data[:n], 0, 0, 16, 130) is None
    assert tiles_of(pillow_jpeg(200, 130, 75)) is None


@pytest.mark.parametrize("name", ["4:2:0 large", "4:4:4 75", "gray large", "long EXIF, profile, comment"])
def test_no_damage_makes_it_read_behind_the_file_or_fail(name: str, made: dict[str, bytes]) -> None:
    rng, data = np.random.default_rng(4), made[name]
    tiles = tiles_of(data)
    assert tiles is not None
    table = np.arange(20, 20 + len(data) - len(tiles.head))
    spoiled = bytearray(data)

    def read(n: int, at: int) -> bytes:
        assert at >= 0 and 0 <= n <= len(data)
        return bytes(spoiled[at : at + n])

    for _ in range(400):
        spoiled[:] = data
        for at in rng.choice(table[:60], rng.integers(1, 4)):
            spoiled[at] = rng.choice([0, 1, 2, 4, 127, 255, rng.integers(256)])
        cut_out(read, len(data), (20, 0, 40, 60))


# ---------------------------------------------------------------------- writing the index


def test_tiles_are_parts_of_rows_that_are_worth_it() -> None:
    """Of 4:2:0, whose MCUs are 16 pixels wide; in MCUs."""
    layout = layout_of(jpeg(photograph(1, 16, 0), KINDS["4:2:0"]))
    widths = (1, 47, 48, 96, 200, 500, 768, 1920, 4000, 16 * 211)
    found = {width: tile_width(layout._replace(width=width)) for width in widths}
    assert found == {1: 1, 47: 3, 48: 3, 96: 3, 200: 13, 500: 4, 768: 3, 1920: 8, 4000: 25, 16 * 211: 211}


def test_an_index_replaces_an_earlier_one(made: dict[str, bytes]) -> None:
    for data in made.values():
        assert with_tile_index(data) == data
    with_comment = made["EXIF"].replace(b"\xff\xdb", b"\xff\xfe\0\x06more\xff\xdb", 1)
    assert tiles_of(with_comment) is None
    again = with_tile_index(with_comment)
    assert cut(again, 0, 0, 20, 20) is not None and b"more" in again and len(again) == len(with_comment)


def test_the_index_stands_behind_the_segment_that_must_come_first(made: dict[str, bytes]) -> None:
    jfif = pillow_jpeg(120, 75, 8, exif=exif(6), restart_marker_rows=1)
    length = int.from_bytes(jfif[4:6], "big")
    camera = jfif[:2] + jfif[4 + length :]  # without JFIF, as cameras write it
    bare = pillow_jpeg(120, 75, 8, restart_marker_rows=1)
    bare = bare[:2] + bare[4 + int.from_bytes(bare[4:6], "big") :]
    for data, marker in ((jfif, 0xE0), (camera, 0xE1), (bare, 0xE9)):
        indexed = with_tile_index(data)
        assert indexed[3] == marker and cut(indexed, 0, 0, 20, 20) is not None
        assert (pixels(indexed) == pixels(data)).all()


def test_lengths_of_tiles_that_need_four_bytes() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (32, 16 * 211, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "JPEG", quality=100, restart_marker_rows=1)
    data = with_tile_index(out.getvalue())
    tiles, whole = tiles_of(data), pixels(data)
    assert tiles is not None and np.diff(tiles.starts).min() > 0xFFFF
    part = cut(data, 16, 0, 32, 100)
    assert part is not None and (pixels(part.data)[16 - part.top :, :100] == whole[16:, :100]).all()


def test_what_cannot_have_an_index_is_named() -> None:
    plain = pillow_jpeg(97, 130, 1, subsampling="4:4:4")
    many = io.BytesIO()
    Image.new("L", (384, 33_000)).save(many, "JPEG", restart_marker_blocks=6)
    cases = {
        "0 restart markers for 13 tiles": plain,
        "not sequential": pillow_jpeg(97, 130, 1, progressive=True),
        "several scans": jpeg(photograph(53, 70, 1), KINDS["one scan each"]),
        "33000 tiles": many.getvalue(),
        "0 frame headers": b"\xff\xd8\xff\xd9",
        "ends before": plain[:-2],
        "does not begin": b"GIF89a",
        "does not end inside": plain[:50],
        "no marker at byte 2": plain[:2] + b"junk" + plain[2:],
    }
    for says, data in cases.items():
        with pytest.raises(Unsliceable) as caught:
            with_tile_index(data)
        assert says in caught.value.reason
        assert caught.value.kind in ("broken", "unusual", "large")


@pytest.mark.parametrize("name", ["4:2:0 large", "RGB", "gray large"])
def test_damage_is_named_and_raises_nothing_else(name: str, made: dict[str, bytes]) -> None:
    rng, data = np.random.default_rng(3), made[name]
    for end in range(0, len(data), 37):
        with pytest.raises(Unsliceable):
            with_tile_index(data[:end])
    for _ in range(300):
        spoiled = bytearray(data)
        for at in rng.integers(2, 700, 3):
            spoiled[at] = rng.integers(256)
        with contextlib.suppress(Unsliceable):
            assert tile_width(layout_of(bytes(spoiled))) >= 1
            with_tile_index(bytes(spoiled))
