"""Shortcuts in decoding clips: none changes a pixel, and each spares what it is for."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")

from support import in_threads
from videos import OPEN, U8, X265, decoded, make_video

from gpupipe.codecs.files import Undecodable
from gpupipe.codecs.video import bitstream, container as container_module, decode as decode_module, passes, pixels
from gpupipe.codecs.video.decode import decode_clip
from gpupipe.codecs.video.types import VideoEntry
from gpupipe.datasets import VideoList


def entry_of(videos: dict[str, Path], name: str) -> VideoEntry:
    return VideoList([videos[name]]).entry(0)


def unmarked(path: Path) -> dict[int | None, U8]:
    """By time: the frames of a loop over a damaged file, which goes on after errors, that are not marked as damaged."""
    import av

    found = {}
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            try:
                found |= {f.pts: f.to_ndarray(format="rgb24") for f in packet.decode() if not f.is_corrupt}
            except av.error.InvalidDataError:
                continue
    return found


class Counts:
    """What decoding did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.fed = self.opened = 0
        self.known: list[str] = []
        fed, real = passes.Pass._fed, container_module.opened

        def counted(way: Any, *args: Any) -> Any:
            for packet in fed(way, *args):
                self.fed += 1
                yield packet

        def opened(*args: Any, known: str = "", **kwargs: Any) -> Any:
            self.opened += 1
            self.known.append(known)
            return real(*args, known=known, **kwargs)

        monkeypatch.setattr(passes.Pass, "_fed", counted)
        monkeypatch.setattr(decode_module, "opened", opened)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    return Counts(monkeypatch)


class TestUnreferenced:
    """Pictures that no other refers to."""

    @pytest.mark.parametrize("name", ["bframes.mp4", "bframes.mkv", "edited.mp4", "late.mp4", "hevc.mp4", "hevc.mkv"])
    def test_they_are_not_decoded_unless_they_are_asked_for(
        self, videos: dict[str, Path], counts: Counts, name: str
    ) -> None:
        entry = entry_of(videos, name)
        last = [len(entry.pts) - 1]
        decode_clip(replace(entry, skips=False), last)
        every, counts.fed = counts.fed, 0
        decode_clip(entry, last)
        assert counts.opened == 2  # none was decoded again
        assert (counts.fed < every) == entry.skips == (name != "late.mp4")  # whose frame rate varies
        counts.fed = 0
        decode_clip(entry, range(len(entry.pts)))
        assert counts.fed >= len(entry.pts)  # an edit list may hide some

    def test_h264_with_open_groups_keeps_them(self, videos: dict[str, Path], counts: Counts) -> None:
        """The strict decoder would refuse the first ones of a group, which refer to what is not there."""
        for name, skips in (("open.mp4", False), ("open.mkv", False), ("bframes.mp4", True), ("hevc.mp4", True)):
            entry = entry_of(videos, name)
            assert entry.skips is skips, name
            counts.opened = 0
            decode_clip(entry, [len(entry.pts) - 1])
            assert counts.opened == 1, name

    @pytest.mark.parametrize(
        "options", [OPEN, {"x264-params": "bframes=5:b-pyramid=strict:ref=4:keyint=30:b-adapt=0:scenecut=0"}]
    )
    def test_what_is_left_out_can_be_missed(self, tmp_path: Path, options: dict[str, str]) -> None:
        """A decoder that is fed nothing else gives the same pixels of the others."""
        self._left_out(make_video(tmp_path / "v.mp4", options=options), "h264")

    def test_and_of_hevc(self, tmp_path: Path) -> None:
        import av

        if "libx265" not in av.codecs_available:
            pytest.skip("this PyAV has no libx265")
        for i, more in enumerate(("", ":temporal-layers=3:bframes=7", ":b-pyramid=0")):
            options = {"x265-params": X265["x265-params"] + more}
            self._left_out(make_video(tmp_path / f"{i}.mp4", "libx265", options=options), "hevc")

    @staticmethod
    def _left_out(path: Path, codec: str) -> None:
        import av

        times, want, _ = decoded(path)
        found: dict[Any, Any] = {}
        gone = 0
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            tell = bitstream.unreferenced(codec, bytes(stream.codec_context.extradata or b""))
            assert tell is not None
            for packet in container.demux(stream):
                if packet.size and tell(bytes(packet)):
                    gone += 1
                    continue
                found |= {f.pts: f.to_ndarray(format="rgb24") for f in packet.decode()}
        assert gone > len(times) // 5 and len(found) == len(times) - gone
        assert all((pixels == want[times.index(time)]).all() for time, pixels in found.items())

    def test_what_a_packet_must_be(self) -> None:
        tell = bitstream.unreferenced("h264", b"")
        assert tell is not None and bitstream.unreferenced("vp9", b"") is None

        def annex_b(*units: bytes) -> bytes:
            return b"".join(b"\0\0\0\1" + u for u in units)

        unused, used, delimiter = bytes([0x01, 0x9A, 1]), bytes([0x41, 0x9A, 1]), bytes([9, 0xF0])
        harmless, recovery = bytes([6, 5, 1, 7, 0x80]), bytes([6, 6, 1, 0x84, 0x80])
        assert tell(annex_b(unused)) and tell(annex_b(delimiter, harmless, unused, unused))
        parameters, idr, partition = bytes([0x67, 1, 2]), bytes([0x65, 0x88]), bytes([0x02, 1])
        for units in ((used,), (unused, used), (recovery, unused), (parameters, unused), (idr,), (partition,), ()):
            assert not tell(annex_b(*units)), units

    def test_what_a_packet_of_hevc_must_be(self) -> None:
        """Of the highest sub-layer, which the parameter sets tell."""

        def unit(kind: int, temporal: int, *content: int, layer: int = 0) -> bytes:
            return b"\0\0\0\1" + bytes([kind << 1 | layer >> 5, (layer & 31) << 3 | temporal + 1, *content])

        def parameters(layers: int) -> bytes:
            return unit(33, 0, layers - 1 << 1)

        one, three = bitstream.unreferenced("hevc", parameters(1)), bitstream.unreferenced("hevc", parameters(3))
        unknown = bitstream.unreferenced("hevc", b"")
        assert one is not None and three is not None and unknown is not None
        for kind in (0, 2, 4, 6, 8):  # sub-layer non-reference pictures
            assert one(unit(kind, 0, 7)) and three(unit(kind, 2, 7))
            assert not three(unit(kind, 1, 7)) and not unknown(unit(kind, 0, 7))
            assert not one(unit(kind, 0, 7, layer=1))
        for kind in (1, 3, 5, 7, 9, 19, 21):
            assert not one(unit(kind, 0, 7))
        assert one(unit(35, 0, 1) + unit(0, 0, 7)) and not one(unit(34, 0, 1) + unit(0, 0, 7))
        assert not one(unit(33, 0, 4)[:5] + b"\1" + bytes([2 << 1]) + unit(0, 0, 7))  # from here on three
        assert not one(unit(0, 0, 7)) and one(unit(0, 2, 7))


class TestUnanalyzed:
    @pytest.mark.parametrize(("name", "known"), [("bframes.mp4", "mov"), ("open.mkv", "matroska"), ("h264.ts", "")])
    def test_containers_that_keep_all_times_are_opened_by_name(
        self, videos: dict[str, Path], counts: Counts, name: str, known: str
    ) -> None:
        entry = entry_of(videos, name)
        decode_clip(entry, [3])
        decode_clip(replace(entry, sure=False), [3])
        assert counts.known == [known, ""]

    def test_no_picture_is_decoded_to_open_a_file(
        self, videos: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FFmpeg would look for what the index knows."""
        import av

        asked: list[Any] = []
        real = av.open
        monkeypatch.setattr(av, "open", lambda *a, **k: asked.append(k) or real(*a, **k))
        decode_clip(entry_of(videos, "bframes.mkv"), [3])
        (how,) = [k for k in asked if "format" in k]
        assert how["options"] == {"skip_frame": "all"} and how["container_options"]["probesize"] == "32"


class TestSeveralGroups:
    @pytest.mark.parametrize("name", ["bframes.mp4", "open.mkv", "hevc.mkv", "vp9.webm", "av1.mkv"])
    def test_one_file_is_gone_through_again_and_again(self, videos: dict[str, Path], counts: Counts, name: str) -> None:
        """Every group of pictures by itself, after the decoder was drained."""
        entry, want = entry_of(videos, name), np.stack(decoded(videos[name])[1])
        frames = [int(k) + 1 for k in entry.keys[:, 0] if k + 1 < len(want)]
        assert (decode_clip(entry, frames) == want[frames]).all() and counts.opened == 1


class TestOneScaler:
    def test_each_thread_has_one(self, videos: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        entry = entry_of(videos, "cfr.mp4")
        used: set[tuple[int, int]] = set()
        real = pixels._scaler

        def scaler() -> Any:
            found = real()
            used.add((threading.get_ident(), id(found)))
            return found

        monkeypatch.setattr(pixels, "_scaler", scaler)
        both = threading.Barrier(2)

        def work() -> None:
            both.wait(20)
            for frames in ([1, 2], [30]):
                decode_clip(entry, frames)
            both.wait(20)

        in_threads(work, work)
        assert len(used) == 2 and len({ident for _, ident in used}) == 2

    def test_sizes_and_formats_may_follow_one_another(self, videos: dict[str, Path]) -> None:
        names = ["cfr.mp4", "odd.mkv", "mjpeg.avi", "cropped.mp4", "gif.gif", "rotated.mp4"]
        for name in names * 2:
            want = decoded(videos[name])[1][2]
            assert (decode_clip(entry_of(videos, name), [2])[0] == want).all(), name

    def test_colors_may_follow_one_another(self, tmp_path: Path) -> None:
        """A scaler that keeps the matrix or the range of the video before would give other colors."""
        matrices, ranges = ("bt709", "smpte170m", "bt2020nc", "undef"), ("tv", "pc")
        found = []
        for tags in [(m, r) for m in matrices for r in ranges]:
            options = {"x264-params": "colormatrix={}:range={}".format(*tags)}
            path = make_video(tmp_path / "{}-{}.mkv".format(*tags), frames=2, options=options)
            found.append((VideoList([path]).entry(0), decoded(path)[1][1]))
        assert len({want.tobytes() for _, want in found}) > 2
        for one, other in permutations(found, 2):
            for entry, want in (one, other):
                assert (decode_clip(entry, [1])[0] == want).all(), (one[0].path, other[0].path)


class TestDamaged:
    """Stretches that are damaged are named and not delivered; the others are as they were."""

    @pytest.mark.part(of=4)
    @pytest.mark.parametrize("name", ["bframes.mp4", "open.mkv", "hevc.mkv", "vp9.webm", "mpeg4.mp4"])
    @pytest.mark.parametrize("skips", [True, False])
    def test_of_a_file_that_broke_after_it_was_indexed(
        self, videos: dict[str, Path], tmp_path: Path, name: str, skips: bool
    ) -> None:
        entry, want = entry_of(videos, name), np.stack(decoded(videos[name])[1])
        content = bytearray(videos[name].read_bytes())
        start, end = int(entry.keys[1, 0]), int(entry.keys[2, 0])
        at, after = (int(n) for n in entry.keys[1:3, 2])
        middle = slice(at + (after - at) // 3, at + (after - at) // 2)
        content[middle] = np.random.default_rng(3).bytes(middle.stop - middle.start)
        path = tmp_path / name
        path.write_bytes(content)
        broken, loop = replace(entry, path=str(path), skips=entry.skips and skips), unmarked(path)
        refused = []
        for k in range(len(want)):
            try:
                (got,) = decode_clip(broken, [k])
            except Undecodable:
                refused.append(k)
            else:  # what no decoder says anything of cannot be known
                assert (got == want[k]).all() or (got == loop[int(entry.pts[k])]).all(), k
        assert refused and min(refused) >= start - 4 and max(refused) < end + 4
        good = [0, len(want) - 1]  # in one pass
        assert (decode_clip(broken, good) == want[good]).all()
        with pytest.raises(Undecodable):
            decode_clip(broken, [*good, refused[0]])

    def test_what_the_decoder_marks_is_named(self, videos: dict[str, Path], tmp_path: Path) -> None:
        """A transport stream has no end that it could lack; its last picture is made up for the missing part."""
        content = videos["h264.ts"].read_bytes()
        path = tmp_path / "v.ts"
        path.write_bytes(content[: len(content) * 3 // 4])
        entry, loop = VideoList([path]).entry(0), unmarked(path)
        (marked,) = [k for k, time in enumerate(entry.pts.tolist()) if time not in loop]
        with pytest.raises(Undecodable, match=f"frame {marked} is damaged, and so are the frames decoded from it"):
            decode_clip(entry, [marked])
        before = int(entry.keys[-2, 0])
        assert (decode_clip(entry, [before])[0] == loop[int(entry.pts[before])]).all()

    def test_decoders_that_mark_nothing_are_told_to_raise(self, videos: dict[str, Path], tmp_path: Path) -> None:
        entry = entry_of(videos, "mjpeg.avi")
        content = bytearray(videos["mjpeg.avi"].read_bytes())
        start, end = int(entry.keys[5, 2]), int(entry.keys[6, 2]) - 16  # before the header of the next
        middle = (start + end) // 2
        content[middle:end] = bytes(end - middle)
        path = tmp_path / "v.avi"
        path.write_bytes(content)
        broken = replace(entry, path=str(path), strict=True)
        assert int(entry.pts[5]) in unmarked(path)
        with pytest.raises(Undecodable):
            decode_clip(broken, [5])
        assert (decode_clip(broken, [4, 6]) == decode_clip(entry, [4, 6])).all()

    @pytest.mark.parametrize(("name", "strict"), [("bframes.mp4", True), ("open.mp4", False), ("vfr.mp4", False)])
    def test_h264_is_refused_at_its_first_error_if_pictures_are_left_out(
        self, videos: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str, strict: bool
    ) -> None:
        """They might have shown it."""
        asked: list[Any] = []
        real = container_module.opened
        monkeypatch.setattr(decode_module, "opened", lambda *a, **k: asked.append(k["strict"]) or real(*a, **k))
        entry = entry_of(videos, name)
        for skips in (entry.skips, False):
            decode_clip(replace(entry, skips=skips), [3])
        assert ["h264" in s for s in asked] == [strict, False]

    @pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
    def test_a_change_of_resolution_is_named(self, tmp_path: Path, codec: str) -> None:
        """Two streams one behind the other, which a transport stream allows."""
        small = make_video(tmp_path / "a.ts", codec, size=(64, 96), frames=20, options={"g": "10", "bf": "0"})
        large = make_video(tmp_path / "b.ts", codec, size=(96, 128), frames=20, options={"g": "10", "bf": "0"})
        path = tmp_path / "both.ts"
        path.write_bytes(small.read_bytes() + large.read_bytes())
        entry = VideoList([path]).entry(0)
        want = decoded(small)[1]
        assert entry.size == (64, 96) and len(entry.pts) > 20
        assert (decode_clip(entry, [0, 7]) == np.stack([want[0], want[7]])).all()
        with pytest.raises(Undecodable, match="is 96x128 and the first one 64x96 pixels"):
            decode_clip(entry, [3, len(entry.pts) - 2])


def test_a_file_cut_while_it_is_used(videos: dict[str, Path], tmp_path: Path) -> None:
    entry, want = entry_of(videos, "bframes.mkv"), np.stack(decoded(videos["bframes.mkv"])[1])
    content = videos["bframes.mkv"].read_bytes()
    path = tmp_path / "v.mkv"
    path.write_bytes(content[: int(entry.keys[2, 2])])
    cut = replace(entry, path=os.fspath(path))
    assert (decode_clip(cut, [0, 11]) == want[[0, 11]]).all()
    with pytest.raises(Undecodable) as caught:
        decode_clip(cut, [30])
    assert caught.value.kind == "truncated"
