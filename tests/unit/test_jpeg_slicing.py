"""Sliceable JPEGs: nothing is lost when they are made, and a cut has the pixels of the whole file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from jpegs import FLAT_AC, KINDS, Kind, code, jpeg, pillow_jpeg
from nvidia.dali import Pipeline, fn
from odd_files import exif
from PIL import Image

from gpupipe.codecs.jpeg import blocks as jpeg_blocks
from gpupipe.codecs.jpeg.blocks import Interval, block_starts
from gpupipe.codecs.jpeg.coefficients import coefficients
from gpupipe.codecs.jpeg.huffman import code_of, codewords, extended, lookup
from gpupipe.codecs.jpeg.markers import HuffmanCode, Unsliceable, parse
from gpupipe.codecs.jpeg.rewrite import rewrite
from gpupipe.codecs.jpeg.tiles import Cut, Tiles, cut as cut_out, read_tiles, segment, tile_of
from gpupipe.testing.photos import photograph

U8 = npt.NDArray[np.uint8]

SIZES = ((53, 70), (64, 32), (161, 17), (1, 1))
"""(height, width): beside whole MCUs and at them, of more than eight rows, and the smallest."""


def _own() -> Iterator[tuple[str, bytes]]:
    for seed, (name, kind) in enumerate(KINDS.items()):
        for height, width in SIZES:
            pixels = photograph(height, width, seed)
            yield f"{name} {height}x{width}", jpeg(pixels[:, :, 1] if len(kind.sampling) == 1 else pixels, kind)


def _pillow() -> Iterator[tuple[str, bytes]]:
    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        for quality in (30, 75, 97, 100) if subsampling != "4:2:2" else (90,):
            yield f"{subsampling} {quality}", pillow_jpeg(200, 130, quality, subsampling=subsampling, quality=quality)
        yield f"{subsampling} optimized", pillow_jpeg(97, 130, 1, subsampling=subsampling, optimize=True)
        yield f"{subsampling} progressive", pillow_jpeg(97, 130, 2, subsampling=subsampling, progressive=True)
        yield f"{subsampling} restarts", pillow_jpeg(130, 97, 3, subsampling=subsampling, restart_marker_blocks=5)
        yield f"{subsampling} rows", pillow_jpeg(130, 97, 4, subsampling=subsampling, restart_marker_rows=1)
    yield "4:2:0 large", pillow_jpeg(200, 384, 11, subsampling="4:2:0")
    yield "4:4:4 large, progressive", pillow_jpeg(90, 480, 12, subsampling="4:4:4", progressive=True)
    yield "4:1:1 large", jpeg(photograph(60, 384, 13), KINDS["4:1:1"])
    yield "gray large", pillow_jpeg(50, 400, 14, "L")
    yield "gray", pillow_jpeg(120, 75, 5, "L")
    yield "gray progressive", pillow_jpeg(120, 75, 6, "L", progressive=True, quality=95)
    yield "progressive, restarts", pillow_jpeg(120, 75, 7, progressive=True, restart_marker_rows=1)
    yield "EXIF", pillow_jpeg(120, 75, 8, exif=exif(6))
    yield (
        "long EXIF, profile, comment",
        pillow_jpeg(120, 75, 9, exif=b"Exif\0\0" + bytes(60000), icc_profile=bytes(9000), comment=b"x" * 500),
    )
    yield "RGB", pillow_jpeg(90, 75, 10, keep_rgb=True)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return dict([*_own(), *_pillow()])


@pytest.fixture(scope="module")
def made(files: dict[str, bytes]) -> dict[str, bytes]:
    found = dict(zip(files, rewrite(list(files.values())), strict=True))
    assert {name: data for name, data in found.items() if isinstance(data, Unsliceable)} == {}
    return {name: data for name, data in found.items() if isinstance(data, bytes)}


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
    return cut_out(lambda n, at: data[at : at + n], size or len(data), box)  # type: ignore[arg-type]


def tiles_of(data: bytes) -> Tiles | None:
    return read_tiles(lambda n, at: data[at : at + n], len(data))


def test_no_coefficient_changes(files: dict[str, bytes], made: dict[str, bytes]) -> None:
    for name, data in files.items():
        before, after = parse(data), parse(made[name])
        old, new = coefficients(before, data), coefficients(after, made[name])
        for a, b, c in zip(old, new, before.frame.components, strict=True):
            rows, columns = before.frame.blocks(c)  # what lies behind has no pixels, and some scans do not have it
            assert (a[:rows, :columns] == b[:rows, :columns]).all(), name
        assert before.quantization == after.quantization, name
        (rows, columns), tile = after.frame.mcus, tile_of(after.frame)
        assert after.scans[0].restart == tile and columns % tile == 0, name
        assert len(after.scans) == 1 and len(after.scans[0].restarts) == rows * columns // tile - 1, name


def test_what_describes_an_image_stays(files: dict[str, bytes], made: dict[str, bytes]) -> None:
    for name in ("EXIF", "long EXIF, profile, comment", "RGB", "4:4:4 75"):
        before, after = (Image.open(io.BytesIO(data)) for data in (files[name], made[name]))
        assert before.info == after.info
        before_list, after_list = (image.applist for image in (before, after))  # type: ignore[attr-defined]
        assert [a for a in after_list if a[0] != "APP9"] == before_list
    bare = files["long EXIF, profile, comment"]
    bare = bare[:2] + bare[20:]  # without JFIF, as cameras write it
    (camera,) = rewrite([bare])
    assert isinstance(camera, bytes) and camera[2:4] == b"\xff\xe1" and camera[: 2 + 60010] == bare[: 2 + 60010]
    assert cut(camera, 0, 0, 20, 20) is not None
    (kept,) = rewrite([files["EXIF"] + b"behind the end"])
    assert isinstance(kept, bytes) and kept == made["EXIF"] + b"behind the end"


def _spans(size: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """60 stretches of pixels; many touch an edge of an MCU."""
    edges = sorted({min(max(edge + d, 0), size) for edge in range(0, size + 8, 8) for d in (-2, -1, 0, 1, 2)})
    some = rng.choice(edges, (30, 2)).tolist() + rng.integers(0, size + 1, (30, 2)).tolist()
    return [(min(a, b), max(a, b)) if a != b else (0, size) for a, b in some]


def _windows(height: int, width: int, rng: np.random.Generator) -> list[tuple[int, int, int, int]]:
    """(top, left, bottom, right)"""
    pairs = zip(_spans(height, rng), rng.permutation(_spans(width, rng)).tolist(), strict=True)
    return sorted({(top, left, bottom, right) for (top, bottom), (left, right) in pairs} | {(0, 0, height, width)})


def test_cuts_have_the_pixels_of_the_whole_file(files: dict[str, bytes], made: dict[str, bytes]) -> None:
    rng = np.random.default_rng(0)
    cuts, wholes, places = [], [], []
    for data, original in zip(made.values(), files.values(), strict=True):
        whole = pixels(original)
        assert (pixels(data) == whole).all()
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
    # Chroma is smoothed with its neighbours: what begins at a tile's edge needs the one before.
    wider = cut(data, 96, 96, 112, 144)
    assert wider is not None and (wider.top, wider.left, wider.height, wider.width) == (80, 48, 48, 144)
    assert Image.open(io.BytesIO(wider.data)).size == (144, 48)
    of_them = [tiles.starts[row * 8 + 4] - tiles.starts[row * 8 + 1] for row in (5, 6, 7)]
    assert len(wider.data) == len(tiles.head) + sum(of_them)
    gray = cut(made["gray"], 16, 0, 24, 5)
    assert gray is not None and (gray.top, gray.height, gray.width) == (16, 8, 80 if gray.width > 75 else gray.width)


def test_a_file_that_was_changed_is_not_cut(files: dict[str, bytes], made: dict[str, bytes]) -> None:
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
    assert tiles_of(files["4:4:4 75"]) is None


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


def test_tiles_are_parts_of_rows_that_are_worth_it() -> None:
    """Of 4:2:0, whose MCUs are 16 pixels wide; in MCUs."""
    found = {}
    for width in (1, 47, 48, 96, 200, 500, 768, 1920, 4000, 16 * 211):
        frame = parse(jpeg(photograph(1, 16, 0), KINDS["4:2:0"])).frame
        found[width] = tile_of(replace(frame, width=width))
    assert found == {1: 1, 47: 3, 48: 3, 96: 3, 200: 13, 500: 4, 768: 3, 1920: 8, 4000: 25, 16 * 211: 211}


def test_so_many_tiles_that_their_lengths_do_not_fit(made: dict[str, bytes]) -> None:
    frame = parse(made["4:4:4 75"]).frame
    with pytest.raises(Unsliceable, match="32768 tiles"):
        segment(frame, list(range(0, 4 * 32769, 4)), 2)
    wide = segment(frame, [0, 70_000, 140_000], 2)
    assert len(wide) == len(segment(frame, [0, 4, 8], 2)) + 4


def test_rewriting_twice_changes_nothing(made: dict[str, bytes]) -> None:
    assert rewrite(list(made.values())) == list(made.values())


# ---------------------------------------------------------------------- what stays as it is


def _patched(data: bytes, marker: int) -> bytes:
    at = parse(data).frame.height_at - 4
    return data[:at] + bytes([marker]) + data[at + 1 :]


def test_what_is_not_rewritten_is_named(files: dict[str, bytes]) -> None:
    cmyk = io.BytesIO()
    Image.fromarray(photograph(20, 30, 1)).convert("CMYK").save(cmyk, "JPEG")
    mpo = io.BytesIO()
    image = Image.fromarray(photograph(20, 30, 1))
    image.save(mpo, "MPO", save_all=True, append_images=[image])
    plain = files["4:2:0 75"]
    frame = parse(plain).frame
    deep = plain[: frame.height_at - 1] + b"\x0c" + plain[frame.height_at :]
    flat = plain[: frame.height_at] + b"\0\0" + plain[frame.height_at + 2 :]
    cases = {
        "CMYK": cmyk.getvalue(),
        "MPO": mpo.getvalue(),
        "arithmetic": _patched(plain, 0xC9),
        "lossless": _patched(plain, 0xC3),
        "hierarchical": _patched(plain, 0xC5),
        "12 bit": deep,
        "unusual": flat,
        "large": plain[: frame.height_at] + b"\xff\xff\xff\xff" + plain[frame.height_at + 4 :],
    }
    found = rewrite(list(cases.values()))
    assert [one.kind for one in found if isinstance(one, Unsliceable)] == list(cases)


def test_damaged_files_are_named(files: dict[str, bytes]) -> None:
    """Whatever is wrong: a reason, or what decodes to the same pixels; never another error."""
    rng = np.random.default_rng(3)
    named = 0
    for name in ("4:2:0 75", "4:4:4 97", "4:2:2 progressive", "one scan each, restarts 53x70", "4:4:4 restarts"):
        good = files[name]
        cases = [good[: len(good) * i // 40] for i in range(40)]
        for _ in range(60):
            spoiled = bytearray(good)
            for at in rng.integers(2, len(good), 3):
                spoiled[at] = rng.integers(256)
            cases.append(bytes(spoiled))
        found = rewrite(cases)
        assert len(found) == len(cases)
        for data in found[:40]:
            assert isinstance(data, Unsliceable) and data.kind == "broken" and data.reason
        named += sum(isinstance(data, Unsliceable) for data in found[40:])
    assert 60 < named < 300  # among such bits many are code words
    assert [str(one) for one in rewrite([b"", b"\xff\xd8", b"GIF89a", b"\xff\xd8\xff\xd9"])] == [
        "broken: no JPEG: it does not begin with the marker SOI",
        "broken: it ends before the marker EOI",
        "broken: no JPEG: it does not begin with the marker SOI",
        "broken: it has no image",
    ]


# ---------------------------------------------------------------------- its parts


@pytest.mark.parametrize("name", ["4:2:0 97", "4:4:4 100", "gray 161x17", "4:4:4 161x17", "fine 53x70"])
def test_many_lanes_find_what_one_finds(name: str, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    data = files[name]
    frame, scan = parse(data).frame, parse(data).scans[0]
    turns = [(scan.dc[i], scan.ac[i]) for i, c in enumerate(frame.components)
             for _ in range(c.h * c.v if len(frame.components) > 1 else 1)]  # fmt: skip
    rows, columns = frame.mcus
    (part,) = scan.intervals(data)
    interval = Interval(part, rows * columns * len(turns), tuple(turns))  # type: ignore[arg-type]
    monkeypatch.setattr(jpeg_blocks, "_SHORTEST", 1 << 30)
    (one,) = block_starts([interval])
    assert one is not None and 8 * len(part) - one[-1] < 8 and (np.diff(one) > 0).all()
    for length in (500, 3000, 20000):
        monkeypatch.setattr(jpeg_blocks, "_LANES", 1 << 30)
        monkeypatch.setattr(jpeg_blocks, "_SHORTEST", length)
        for found in block_starts([interval] * 3):
            assert found is not None and (found == one).all()
    more = Interval(part, interval.blocks + 1, interval.phases)
    short, enough = block_starts([more, interval])
    assert short is None and enough is not None


def test_a_table_without_the_code_that_a_restart_needs_gets_one() -> None:
    """An even image in which only the first block has a DC difference; every row after it needs one."""
    few = code({0: 1, 7: 2, **dict.fromkeys(range(1, 5), 5)})
    even = np.full((40, 24, 3), 255, np.uint8)
    even[24:, :8] = 190
    kind = Kind(((1, 1), (1, 1), (1, 1)), dc=(few,), ac=(FLAT_AC,), step=8)
    data = jpeg(even, kind)
    (made,) = rewrite([data])
    assert isinstance(made, bytes)
    old, new = parse(data).scans[0].dc[0], parse(made).scans[0].dc[0]
    assert old is not None and new is not None and set(new.symbols) > set(old.symbols)
    for symbol in old.symbols:
        assert [x[symbol] for x in codewords(old)] == [x[symbol] for x in codewords(new)]
    assert (pixels(made) == pixels(data)).all()


def test_a_full_table_gets_no_code() -> None:
    full = HuffmanCode((2, *[0] * 15), bytes([0, 1]))
    assert extended(full, {0, 1}) is full
    with pytest.raises(Unsliceable, match="no room"):
        extended(full, {0, 5})


def test_a_code_is_a_shortest_one_and_never_all_ones() -> None:
    rng = np.random.default_rng(1)
    for count in (1, 2, 3, 17, 162, 256):
        for skew in (0, 3, 12):
            frequencies = np.zeros(256, np.int64)
            used = rng.choice(256, count, replace=False)
            frequencies[used] = np.maximum(rng.random(count) ** (2 * skew) * 10**6, 1)
            made = code_of(frequencies)
            words, bits = codewords(made)
            assert set(made.symbols) == set(used.tolist()) and bits.max() <= 16
            assert sum(1 / (1 << int(n)) for n in bits[used]) < 1
            assert not any(int(words[s]) == (1 << int(bits[s])) - 1 for s in used)
            share = frequencies / frequencies.sum()
            entropy = -sum(x * np.log2(x) for x in share[used])
            assert entropy <= (share * bits).sum() <= entropy + 1.1
            symbols, lengths = lookup(made)
            for s in used:
                at = int(words[s]) << (16 - int(bits[s]))
                assert symbols[at] == s and lengths[at] == bits[s]
