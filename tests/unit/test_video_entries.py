"""Key frames of which decoding depends on what was before: clips have the frames of a loop over the whole file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")

from odd_videos import HIGH, LOW, Coded, annex_b, coded, joined, two_descriptions, units_of, write
from videos import decoded, make_video

from gpupipe.codecs.video.decode import decode_clip
from gpupipe.codecs.video.nal import exp_golomb, stored_sets
from gpupipe.codecs.video.parameter_sets import ParameterSets
from gpupipe.datasets import VideoList


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("coded")


@pytest.fixture(scope="module")
def low(folder: Path) -> Coded:
    return coded(folder, "low", "libx264", frames=18, options=LOW)


@pytest.fixture(scope="module")
def high(folder: Path) -> Coded:
    return coded(folder, "high", "libx264", frames=18, options=HIGH)


def entries_of(path: Path, count: int) -> list[int]:
    """The frames that the index would begin with, after every frame was compared: alone, and with others in a clip."""
    entry, want = VideoList([path]).entry(0), np.stack(decoded(path)[1])
    assert len(want) == count and entry.exact
    for frames in [[k] for k in range(count)] + [list(pair) for pair in combinations(range(0, count, 4), 2)]:
        assert (decode_clip(entry, frames) == want[frames]).all(), (path.name, frames)
    return [int(k) for k in entry.keys[:, 0]]


# ---------------------------------------------------------------------- parameter sets


def test_the_encoder_writes_what_these_tests_need(low: Coded, high: Coded) -> None:
    sets = [list(stored_sets("h264", video.extradata)) for video in (low, high)]
    assert sets[0][0] == sets[1][0] and sets[0][1] != sets[1][1]
    assert [k for k, key in enumerate(low.keys) if key] == [0, 6, 12]


def test_an_mp4_with_two_sample_descriptions(tmp_path: Path, low: Coded, high: Coded) -> None:
    """Whether the decoder gets the second one depends on which packets are demuxed before."""
    assert entries_of(two_descriptions(tmp_path / "two.mp4", [low, high]), 36) == []
    assert entries_of(two_descriptions(tmp_path / "back.mp4", [low, high, low]), 54) == []


def test_descriptions_that_are_alike_are_no_change(tmp_path: Path, low: Coded) -> None:
    assert entries_of(two_descriptions(tmp_path / "same.mp4", [low, low]), 36) == [0, 6, 12, 18, 24, 30]


def _changed_once(low: Coded, high: Coded, repeats: Callable[[int], bool]) -> Coded:
    """The sets of ``high`` come with its key frames that ``repeats`` tells; the container knows those of ``low``."""
    sets = list(stored_sets("h264", high.extradata))
    packets = [
        joined([*sets, *units_of(packet)]) if key and repeats(k) else packet
        for k, (packet, key) in enumerate(zip(high.packets, high.keys, strict=True))
    ]
    return low + Coded(high.extradata, packets, high.keys, high.entry)


@pytest.mark.part(of=3)
@pytest.mark.parametrize("suffix", ["mkv", "flv", "mp4"])
def test_sets_that_change_once(tmp_path: Path, folder: Path, suffix: str, low: Coded, high: Coded) -> None:
    once = _changed_once(low, high, lambda k: k == 0)
    path = write(tmp_path / f"once.{suffix}", once, "libx264", folder / "low.mp4")
    assert entries_of(path, 36) == [18]
    each = _changed_once(low, high, lambda k: True)
    path = write(tmp_path / f"each.{suffix}", each, "libx264", folder / "low.mp4")
    assert entries_of(path, 36) == [18, 24, 30]


def test_sets_that_change_once_in_a_transport_stream(tmp_path: Path, low: Coded, high: Coded) -> None:
    """Here the container knows no sets, and the first key frames repeat them."""
    first = _changed_once(low, low, lambda k: True).packets[18:]
    second = _changed_once(low, high, lambda k: k == 0).packets[18:]
    video = Coded(b"", [annex_b(p) for p in (*first, *second)], [*low.keys, *high.keys], b"")
    assert entries_of(write(tmp_path / "once.ts", video, "libx264"), 36) == [0, 6, 12, 18]


def test_sets_that_are_repeated_without_a_change(tmp_path: Path, folder: Path, low: Coded) -> None:
    video = _changed_once(low, low, lambda k: k == 0)
    path = write(tmp_path / "repeated.mkv", video, "libx264", folder / "low.mp4")
    assert entries_of(path, 36) == [0, 6, 12, 18, 24, 30]


def test_sets_of_mpeg4(tmp_path: Path, folder: Path) -> None:
    """Another kind of quantization in the second half; its layer is named once."""
    options = {"g": "6", "bf": "0", "sc_threshold": "1000000000", "qmin": "8", "qmax": "8"}
    one = coded(folder, "one", "mpeg4", frames=18, options=options)
    other = coded(folder, "other", "mpeg4", frames=18, options={**options, "mpeg_quant": "1"})
    layer = other.extradata[other.extradata.index(b"\0\0\1\x20") :]
    assert layer not in one.extradata
    packets = [layer + other.packets[0], *other.packets[1:]]
    video = one + Coded(b"", packets, other.keys, b"")
    path = write(tmp_path / "once.mkv", video, "mpeg4", folder / "one.mp4")
    assert entries_of(path, 36) == [18]


class TestParameterSets:
    """Which sets replace which."""

    @staticmethod
    def wrapped(*units: bytes) -> bytes:
        return b"".join(b"\0\0\0\1" + unit for unit in units)

    def followed(self, codec: str, extradata: bytes, *packets: bytes) -> tuple[list[bool], bool]:
        sets = ParameterSets(codec, extradata)
        return [sets.follow(packet) for packet in packets], sets.changed

    def test_of_h264(self) -> None:
        sequence, other = bytes([0x67, 100, 0, 31, 0x88, 1]), bytes([0x67, 100, 0, 31, 0x88, 2])
        second = bytes([0x67, 100, 0, 31, 0b01000000, 1])  # of number 1
        picture, another = bytes([0x68, 0xE0, 1]), bytes([0x68, 0b01010000, 1])
        wrap, coded_ = self.wrapped, b"\x65\x88"
        start = wrap(sequence, picture)
        assert self.followed("h264", start, wrap(coded_), wrap(sequence, picture, coded_)) == ([False, True], False)
        assert self.followed("h264", start, wrap(other, picture), wrap(other), wrap(picture)) == (
            [True, False, False],
            True,
        )
        # A set of another number replaces none, and has to be repeated from there on.
        assert self.followed("h264", start, start, wrap(second, another), start) == ([True, False, False], False)
        assert self.followed("h264", start, wrap(sequence + bytes(3), picture)) == ([True], False)

    def test_of_hevc(self) -> None:
        def unit(kind: int, *content: int, layer: int = 0) -> bytes:
            return bytes([kind << 1 | layer >> 5, (layer & 31) << 3 | 1, *content])

        def sequence(layers: int, number: int, value: int) -> bytes:
            flat = [layers - 1 << 1, *[7] * 12]
            if layers > 1:  # profile and level of the first of the lower ones, and only the level of the second
                flat += [0b11010000, 0, *[9] * 13]
            return unit(33, *flat, 0x80 if not number else 0x40, value)

        for layers in (1, 3):
            sets = [unit(32, 0x0C), sequence(layers, 0, 5), unit(34, 0xC0)]
            start = self.wrapped(*sets)
            for k, change in enumerate([unit(32, 0x0D), sequence(layers, 0, 6), unit(34, 0xC1)]):
                changed = self.wrapped(*sets[:k], change, *sets[k + 1 :])
                assert self.followed("hevc", start, start) == ([True], False)
                assert self.followed("hevc", start, changed, self.wrapped(unit(19, 1))) == ([True, False], True), k
            for new in (sequence(layers, 1, 6), unit(34, 0x40), unit(34, 0xC1, layer=1)):
                assert self.followed("hevc", start, self.wrapped(new)) == ([False], False)

    def test_of_mpeg2(self) -> None:
        head = b"\0\0\1\xb3"
        plain, extended, picture = head + b"abc", b"\0\0\1\xb5\x14x", b"\0\0\1\xb5\x84y\0\0\1\0pic"
        packets = (plain + extended + picture, picture, head + b"abd" + extended + picture)
        assert self.followed("mpeg2video", plain, *packets) == ([True, False, True], True)
        assert self.followed("mpeg2video", plain, *packets[:2]) == ([True, False], False)

    def test_new_extradata_is_a_change(self, low: Coded, high: Coded) -> None:
        sets = ParameterSets("h264", low.extradata)
        assert not sets.follow(low.packets[0])
        sets.begin(low.extradata)
        assert not sets.changed
        sets.begin(high.extradata)
        assert sets.changed and not sets.follow(low.packets[0])

    def test_whatever_is_in_there(self) -> None:
        rng = np.random.default_rng(0)
        for codec in ("h264", "hevc", "mpeg4", "mpeg2video", "vp9"):
            for _ in range(300):
                extradata, packet = (bytes([rng.integers(2)]) + rng.bytes(rng.integers(60)) for _ in range(2))
                ParameterSets(codec, extradata).follow(packet)
                kinds = self.wrapped(*(bytes([k]) + rng.bytes(rng.integers(4)) for k in (7, 8, 64, 66, 68, 0x20, 0xB5)))
                ParameterSets(codec, kinds).follow(kinds)

    def test_numbers(self) -> None:
        bits = "1" + "010" + "011" + "00100" + "000010001" + "0000"
        data = int(bits.ljust(32, "0"), 2).to_bytes(4, "big")
        at, found = 0, []
        for _ in range(6):
            value, at = exp_golomb(data, at)
            found.append(value)
        assert found == [0, 1, 2, 3, 16, -1] and exp_golomb(b"", 0) == (-1, 0)


# ---------------------------------------------------------------------- pictures


def test_a_recovery_point_on_a_picture_that_refers_to_others(tmp_path: Path, folder: Path, low: Coded) -> None:
    packets, keys = list(low.packets), list(low.keys)
    for k in (3, 9, 15):
        packets[k], keys[k] = joined([bytes([6, 6, 1, 0x84, 0x80]), *units_of(packets[k])]), True
    path = write(tmp_path / "recovery.mkv", Coded(low.extradata, packets, keys, b""), "libx264", folder / "low.mp4")
    assert entries_of(path, 18) == [0, 6, 12]


def _still(count: int = 20) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
    """A small square before a background that does not move."""
    for k in range(count):
        picture = np.full((64, 96, 3), 40, np.uint8)
        picture[8:24] = 200
        picture[40:48, 4 * k : 4 * k + 8] = (255, 10 * k, 0)
        yield picture


@pytest.mark.parametrize(("codec", "pixels", "suffix"), [("rpza", "rgb555le", "mov"), ("flashsv", "bgr24", "flv")])
def test_codecs_whose_key_frames_only_the_container_knows(codec: str, pixels: str, suffix: str, tmp_path: Path) -> None:
    import av

    path = make_video(tmp_path / f"v.{suffix}", codec, pixels=pixels, shown=list(_still()))
    with av.open(str(path)) as container:
        assert codec == "flashsv" or all(p.is_keyframe for p in container.demux(video=0) if p.size)
    assert entries_of(path, 20) == []


@pytest.mark.parametrize(("codec", "suffix"), [("smc", "mov"), ("rawvideo", "avi"), ("rawvideo", "mov")])
def test_a_palette_that_comes_once(codec: str, suffix: str, tmp_path: Path) -> None:
    """It comes with the first packet that is read after a file was opened, whatever that is for."""
    import av

    path, colors = tmp_path / f"v.{suffix}", np.random.default_rng(0).integers(0, 256, (256, 4), np.uint8)
    with av.open(str(path), "w") as out:
        stream: Any = out.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "pal8"
        for k, picture in enumerate(_still()):
            frame = av.VideoFrame(96, 64, "pal8")
            frame.planes[0].update(np.ascontiguousarray(picture[:, :, 1]).tobytes())
            frame.planes[1].update(colors.tobytes())
            frame.pts = k
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    assert entries_of(path, 20) == []


@pytest.mark.parametrize(
    ("codec", "pixels", "suffix", "entries"),
    [("h263", "yuv420p", "mov", [0, 5, 10, 15]), ("svq1", "yuv410p", "mov", [0, 5, 10, 15]),
     ("prores", "yuv422p10le", "mov", list(range(20))), ("huffyuv", "yuv422p", "avi", list(range(20)))],
)  # fmt: skip
def test_decoders_that_know_key_frames_are_believed(
    codec: str, pixels: str, suffix: str, entries: list[int], tmp_path: Path
) -> None:
    path = make_video(tmp_path / f"v.{suffix}", codec, pixels=pixels, size=(96, 128), frames=20, options={"g": "5"})
    assert entries_of(path, 20) == entries
