"""The index of videos against loops over all frames: as many as come, at the times that they have."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_files import arrays_of
from odd_files import encode
from PIL import Image

pytest.importorskip("av")

from videos import COPIES, KINDS, OPEN, VFR, copied, decoded, make_video

from gpupipe.codecs.files import Undecodable
from gpupipe.codecs.video import bitstream, probe as probe_module
from gpupipe.codecs.video.container import cut_short
from gpupipe.codecs.video.decode import decode_clip
from gpupipe.codecs.video.probe import CUT, EXACT, VARIABLE, probe
from gpupipe.datasets import VideoFolder, VideoList
from gpupipe.datasets.index import video as index_module
from gpupipe.datasets.index.column_file import Columns, ColumnsError, write_columns
from gpupipe.datasets.index.video import VideoIndex
from gpupipe.errors import ConfigError, DatasetError, MissingDependency

NO_TIMES = {"h264.avi", "mpeg4.avi", "negative.mkv"}
"""Frames of these are counted, because their own times are not known."""


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The files that probing decoded from end to end."""
    seen: list[bytes] = []
    real = probe_module._decode

    def spy(path: bytes, *rest: Any) -> Any:
        seen.append(path)
        return real(path, *rest)

    monkeypatch.setattr(probe_module, "_decode", spy)
    return seen


def old(path: Path) -> Path:
    """Not racy."""
    os.utime(path, ns=(1_500_000_000_000_000_000,) * 2)
    return path


class TestFrames:
    @pytest.mark.part(of=4)
    @pytest.mark.parametrize("name", [*KINDS, *COPIES])
    def test_frames_are_those_of_a_loop(self, videos: dict[str, Path], name: str) -> None:
        path = videos[name]
        times, pixels, error = decoded(path)
        found = probe(os.fsencode(path))
        assert error is None and found.status == 0 and len(found.pts) == len(times) > 0
        assert (found.height, found.width) == pixels[0].shape[:2]
        assert bool(found.flags & EXACT) == (name not in NO_TIMES) and not found.flags & CUT
        if name in NO_TIMES:
            assert (np.diff(found.pts) >= 0).all() and list(found.keys)[::3] == [0]
            known = [(a, b) for a, b in zip(found.pts, times, strict=True) if b is not None]
            assert known[0][0] == known[0][1]
        else:
            assert list(found.pts) == times

    @pytest.mark.parametrize(
        "name",
        ["cfr.mp4", "bframes.mkv", "open.mp4", "vfr.mkv", "edited.mp4", "hevc.mkv", "vp8.webm", "vp9.webm", "av1.mkv"],
    )
    def test_nothing_is_decoded_from_end_to_end_where_packets_say_it_all(
        self, videos: dict[str, Path], loops: list[bytes], name: str
    ) -> None:
        probe(os.fsencode(videos[name]))
        assert loops == []

    @pytest.mark.parametrize("name", ["middle.mkv", "leading.mkv", "open-edited.mp4", "mpeg4.avi", "interlaced.mp4"])
    def test_what_packets_do_not_say_is_decoded(self, videos: dict[str, Path], loops: list[bytes], name: str) -> None:
        probe(os.fsencode(videos[name]))
        assert len(loops) == 1

    def test_key_frames_rates_and_durations(self, videos: dict[str, Path]) -> None:
        found = probe(os.fsencode(videos["bframes.mp4"]))
        assert list(found.keys)[::3] == [0, 12, 24, 36] and list(found.keys)[1::3] == [
            found.pts[k] for k in (0, 12, 24, 36)
        ]
        content = videos["bframes.mp4"].read_bytes()
        for position in list(found.keys)[2::3]:
            assert content[position + 4] & 31 in (5, 6, 7)  # a NAL unit of a key frame, behind its length
        assert found.rate == (25, 1) and found.duration == 40 * found.pts[1] and not found.flags & VARIABLE
        assert str(found.coding) == "h264/yuv420p/mov,mp4,m4a,3gp,3g2,mj2"
        ntsc = probe(os.fsencode(videos["ntsc.mp4"]))
        assert ntsc.rate == (30000, 1001) and not ntsc.flags & VARIABLE
        varied = probe(os.fsencode(videos["vfr.mkv"]))
        assert varied.flags & VARIABLE and list(varied.pts) == VFR and varied.time_base == (1, 1000)
        seconds = 40 / 25 * 90_000
        assert probe(os.fsencode(videos["h264.ts"])).duration == seconds

    def test_what_is_variable(self) -> None:
        steady = [33, 67, 100, 133, 167, 200]  # thirds of tenths of a second, rounded
        assert not probe_module._is_variable(steady) and not probe_module._is_variable([7])
        assert probe_module._is_variable([*steady[:4], 169, 200]) and probe_module._is_variable([0, 1, 2, 3, 9])

    def test_rates_that_containers_only_claim(self) -> None:
        times, base = [0, 10, 20, 30], Fraction(1, 1000)
        assert probe_module._rate(times, base, Fraction(25)) == 100
        assert probe_module._rate(times, base, Fraction(100_001, 1000)) == Fraction(100_001, 1000)
        assert probe_module._rate([5], base, Fraction(25)) == 25


class TestTruncated:
    @pytest.mark.part(of=3)
    @pytest.mark.parametrize(
        "name", ["bframes.mkv", "faststart.mp4", "fragmented.mp4", "mjpeg.avi", "vp9.webm", "h264.ts"]
    )
    @pytest.mark.parametrize("part", [0.02, 0.3, 0.5, 0.75, 0.97])
    def test_no_frame_is_promised_that_does_not_come(
        self, videos: dict[str, Path], tmp_path: Path, name: str, part: float
    ) -> None:
        content = videos[name].read_bytes()
        path = tmp_path / name
        path.write_bytes(content[: int(part * len(content))])
        times, pixels, _ = decoded(path)
        found = probe(os.fsencode(path))
        if not times:
            assert found.status and found.reason and not found.pts
            return
        assert found.status == 0 and list(found.pts) == times[: len(found.pts)]
        assert len(times) - len(found.pts) <= 1  # a last picture of which a part is missing is no frame
        assert found.flags & CUT or name == "h264.ts"  # a transport stream has no end that it could lack
        entry, refused = VideoList([path]).entry(0), []
        for k in range(len(found.pts)):
            try:
                assert (decode_clip(entry, [k])[0] == pixels[k]).all()
            except Undecodable:
                refused.append(k)
        assert not refused or (name == "h264.ts" and refused[0] >= len(times) - 3)

    def test_an_mp4_without_its_directory(self, videos: dict[str, Path], tmp_path: Path) -> None:
        path = tmp_path / "v.mp4"
        path.write_bytes(videos["bframes.mp4"].read_bytes()[:5000])
        (bad,) = VideoList([path]).bad(np.array([0]))
        assert bad.kind == "truncated" and "needs" in bad.reason

    def test_lengths_that_files_name(self, videos: dict[str, Path]) -> None:
        for name, path in videos.items():
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                assert cut_short(file.fileno(), size) is None
                if path.suffix in (".mp4", ".mkv", ".webm", ".avi"):
                    assert "needs" in (cut_short(file.fileno(), size - 1) or ""), name


class TestBad:
    def test_kinds(self, tmp_path: Path, videos: dict[str, Path]) -> None:
        import av

        (tmp_path / "empty.mp4").write_bytes(b"")
        (tmp_path / "text.mp4").write_bytes(b"hello " * 1000)
        with av.open(str(tmp_path / "sound.mp4"), "w") as out:
            stream = out.add_stream("aac", rate=16000, layout="mono")
            noise = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            noise.sample_rate = 16000
            out.mux(stream.encode(noise))
            out.mux(stream.encode(None))
        with av.open(str(tmp_path / "none.avi"), "w") as out:
            stream = out.add_stream("libx264", rate=25)
            stream.height = stream.width = 64
            out.start_encoding()
        shutil.copy(videos["cfr.mp4"], tmp_path / "good.mp4")
        (tmp_path / "folder.mp4").mkdir()
        names = ["empty.mp4", "text.mp4", "sound.mp4", "none.avi", "good.mp4", "missing.mp4", "folder.mp4"]
        dataset = VideoList([tmp_path / n for n in names], clips=2)
        bad = {b.index: b for b in dataset.bad(np.arange(14))}
        kinds = [bad[2 * i].kind if 2 * i in bad else "ok" for i in range(7)]
        assert kinds == ["empty", "undecodable", "no-video", "no-frames", "ok", "missing", "unreadable"]
        assert bad[5].path == f"{tmp_path / 'sound.mp4'} (clip 2 of 2)" and "audio" in bad[5].reason
        assert dataset.sizes.tolist() == [[0, 0]] * 8 + [[64, 96]] * 2 + [[0, 0]] * 4
        frames = dataset.choose(0, 0, np.arange(14, dtype=np.uint64), np.arange(14))
        assert not frames[:8].any() and frames[8:10].any()
        assert len(dataset.index_summary().bad) == 6

    def test_playlists_are_not_followed(self, tmp_path: Path, videos: dict[str, Path]) -> None:
        shutil.copy(videos["h264.ts"], tmp_path / "part.ts")
        lines = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\npart.ts\n#EXT-X-ENDLIST\n"
        (tmp_path / "list.mp4").write_text(lines)
        (tmp_path / "concat.mp4").write_text("ffconcat version 1.0\nfile part.ts\n")
        dataset = VideoList([tmp_path / "list.mp4", tmp_path / "concat.mp4"])
        bad = dataset.bad(np.arange(2))
        assert [b.kind for b in bad] == ["undecodable"] * 2 and "playlists" in bad[1].reason

    def test_a_sound_file_with_a_cover_picture_is_named(self, tmp_path: Path) -> None:
        """FFmpeg would call the picture a video."""
        import av

        picture = b"\0image/jpeg\0\3\0" + encode(Image.new("RGB", (32, 32)))
        tag = b"APIC" + struct.pack(">IH", len(picture), 0) + picture
        head = b"ID3\3\0\0" + bytes(len(tag) >> 7 * i & 127 for i in (3, 2, 1, 0))
        frames = (b"\xff\xfb\x90\xc4" + bytes(413)) * 20  # MPEG-1, layer 3, silence
        (tmp_path / "song.mp4").write_bytes(head + tag + frames)
        with av.open(str(tmp_path / "song.mp4")) as container:
            assert [s.type for s in container.streams] == ["audio", "video"]
        (bad,) = VideoList([tmp_path / "song.mp4"]).bad(np.arange(1))
        assert bad.kind == "undecodable" and "cover picture" in bad.reason and "ArgumentError" not in bad.reason

    def test_names_that_are_not_text(self, tmp_path: Path, videos: dict[str, Path]) -> None:
        path = os.fsencode(tmp_path) + b"/\xff\xfe caf\xe9, 100%d.mp4"
        shutil.copy(videos["cfr.mp4"], path)
        dataset = VideoList([os.fsdecode(path)], frames=4)
        assert not dataset.bad(np.array([0])) and dataset[0][0].shape == (4, 64, 96, 3)


class TestBitstream:
    def test_recovery_points(self) -> None:
        recovery = bytes([6, 6, 1, 0x84, 0x80])  # SEI, recovery point, 1 byte, recovery_frame_cnt = 0
        later = bytes([6, 6, 1, 0x44, 0x80])
        other = bytes([6, 5, 2, 1, 2, 6, 1, 0xC4, 0x80])
        first, idr = bytes([0x41, 0x88, 0x84]), bytes([0x65, 0x88])  # an I slice: first_mb_in_slice 0, slice_type 7
        more, last = bytes([0x41, 0b01001100, 0x80]), bytes([0x41, 0b01101100, 0x80])  # slice_type 2, macroblocks 1, 2
        predicted, second = bytes([0x41, 0x9A]), bytes([0x41, 0x9A, 1])  # slice_type 5
        mixed = bytes([0x41, 0b01011000])  # macroblock 1, slice_type 0

        def avcc(*units: bytes) -> bytes:
            return b"".join(len(u).to_bytes(4, "big") + u for u in units)

        def annex_b(*units: bytes) -> bytes:
            return b"".join(b"\0\0\0\1" + u for u in units)

        extra = bytes([1, 100, 0, 31, 0xFF])
        for wrap, data in ((avcc, extra), (annex_b, b"")):
            for units in (
                (idr,),
                (other, first),
                *((recovery, first, *rest) for rest in ((), (more, last), (second,))),
            ):
                assert bitstream.is_entry("h264", data, wrap(*units)), units
            for no_entry in ((first,), (later, first), (first, idr), ()):
                assert not bitstream.is_entry("h264", data, wrap(*no_entry)), no_entry
            for rest in ((), (predicted,), (first, mixed), (first[:1],)):
                assert not bitstream.is_entry("h264", data, wrap(recovery, *rest)), rest

    def test_key_frames_that_are_none(self) -> None:
        extra = bytes(21) + b"\x03"
        extra = b"\1" + extra[1:]
        for kind, entry in ((19, True), (21, True), (1, False), (9, False)):
            assert bitstream.is_entry("hevc", extra, b"\0\0\0\2" + bytes([kind << 1, 1])) is entry

    def test_shown_frames(self) -> None:
        assert bitstream.frames_shown("vp8", b"\x10\0\0") == 1 and bitstream.frames_shown("vp8", b"\x01\0\0") == 0
        shown, hidden, existing_ = b"\x86\0", b"\x84\0", b"\x88"
        assert [bitstream.frames_shown("vp9", p) for p in (shown, hidden, existing_, b"")] == [1, 0, 1, 0]
        longer = b"\xb4\0", b"\xb2\0"  # of profile 3, whose header has one more bit: an existing frame, a hidden one
        assert [bitstream.frames_shown("vp9", p) for p in longer] == [1, 0]
        index = bytes([0xC1, 2, 2, 0xC1])
        assert bitstream.frames_shown("vp9", hidden + shown + index) == 1
        assert bitstream.frames_shown("vp9", shown + shown + index) == 2

    def test_intra_refresh_is_no_entry(self, videos: dict[str, Path]) -> None:
        import av

        with av.open(str(videos["refresh.mkv"])) as container:
            called = sum(p.is_keyframe for p in container.demux(video=0))
        assert len(probe(os.fsencode(videos["refresh.mkv"])).keys) // 3 < called


class TestFile:
    def test_kept_and_built_once(
        self, videos: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = ("cfr.mp4", "vfr.mkv", "open.mkv")
        paths = [old(Path(shutil.copy(videos[n], tmp_path / n))) for n in names]
        first = VideoList(paths)
        assert first.index_summary().built and first.index_summary().formats == {"h264": 3}
        reads: list[bytes] = []
        real = probe
        monkeypatch.setattr(index_module, "probe", lambda path: reads.append(path) or real(path))
        again = VideoList(paths)
        assert not again.index_summary().built and not reads
        assert again.fingerprint == first.fingerprint and (again.frame_counts == [40, 22, 40]).all()
        assert not again._index.pts.all.flags.writeable
        old(make_video(paths[0], frames=30))
        os.utime(paths[0], ns=(1_400_000_000_000_000_000,) * 2)
        changed = VideoList(paths)
        assert reads == [os.fsencode(paths[0])] and changed.index_summary().reused == 2
        assert changed.frame_counts.tolist() == [30, 22, 40] and changed.fingerprint != first.fingerprint
        for i in (1, 2):  # rows that were kept
            assert (changed.entry(i).pts == first.entry(i).pts).all() and (
                changed.entry(i).keys == first.entry(i).keys
            ).all()

    def test_even_steps_take_no_room(self, videos: dict[str, Path]) -> None:
        dataset = VideoList([videos["cfr.mp4"], videos["vfr.mp4"], videos["single.mp4"]])
        assert len(dataset._index.pts) == 22 and dataset._index.step.all.tolist() == [512, 0, 512]
        assert dataset.variable.tolist() == [False, True, False] and dataset.frame_rates[0] == 25

    def test_a_pickled_dataset_is_the_path_of_its_index(self, videos: dict[str, Path]) -> None:
        dataset = VideoList([videos["vfr.mkv"]] * 3, labels=["b", "a", "b"], clips=2)
        _ = dataset.sizes, dataset.labels, dataset.clip_ids
        sent = pickle.dumps(dataset)
        assert len(sent) < 3000
        back = pickle.loads(sent)
        assert back.labels.tolist() == [1, 1, 0, 0, 1, 1] and (back.entry(0).pts == VFR).all()
        assert isinstance(back._index, VideoIndex) and repr(back) == repr(dataset)

    def test_worker_processes(self, videos: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        paths = [videos[n] for n in ("cfr.mp4", "vfr.mkv", "open.mp4")] * 30
        with monkeypatch.context() as patch:
            patch.setattr(index_module, "probe", None)  # not here
            there = VideoList(paths)
        monkeypatch.setattr(index_module._VideoProber, "pool_from", 1000)
        here = VideoList([*paths, videos["cfr.mp4"]])
        assert len(there) == 90 and there.frame_counts.tolist() == here.frame_counts.tolist()[:90]
        assert all((there.entry(i).keys == here.entry(i).keys).all() for i in range(90))

    @pytest.mark.parametrize(("column", "value", "opens"), [
        ("frames", [10**9], True), ("frames", [-1], True), ("frames", [1, 2], False), ("pts_offsets", [0, 21], False),
        ("pts_offsets", [1, 22], False), ("step", [-1], True), ("step", [40], True), ("time_base", [[1, 0]], True),
        ("duration", [-5], True), ("keys", [[3, 0, 0], [1, 0, 0]], True), ("keys", [[-3, 0, 0]], True),
        ("keys_offsets", [0, 7], True), ("keys_offsets", [0, 1], False), ("keys_offsets", None, False),
        ("flags", None, False),
    ])  # fmt: skip
    def test_a_file_that_was_made_to_do_harm(
        self, videos: dict[str, Path], tmp_path: Path, column: str, value: Any, opens: bool
    ) -> None:
        """``opens``: what is wrong may be noticed when it is used. Lengths are checked when it is opened."""
        have = VideoList([videos["vfr.mkv"]])._index.columns
        arrays = arrays_of(have)
        if value is None:
            arrays.pop(column)
        else:
            arrays[column] = np.array(value, arrays[column].dtype)
            if column == "keys":
                arrays["keys_offsets"] = np.array([0, len(value)], np.int64)
        path = tmp_path / "index"
        with open(path, "wb") as file:
            write_columns(file, arrays, have.meta)
        path.chmod(0o600)

        def use() -> None:
            index = VideoIndex(Columns.open(str(path)))
            if opens:
                index.entry(0, "x")
                index.times(np.array([0]))

        with pytest.raises(ColumnsError):
            use()


class TestDatasets:
    @pytest.fixture
    def root(self, tmp_path: Path, videos: dict[str, Path]) -> Path:
        for name, to in (("cfr.mp4", "run/1.mp4"), ("vfr.mkv", "run/deep/2.MKV"), ("open.mp4", "jump/1.mp4")):
            (tmp_path / to).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(videos[name], tmp_path / to)
        (tmp_path / "run/notes.txt").write_text("no video")
        return tmp_path

    def test_folders_are_classes(self, root: Path) -> None:
        dataset = VideoFolder(root, 4, clips=3)
        assert dataset.classes == ["jump", "run"] and dataset.class_to_idx == {"jump": 0, "run": 1}
        assert len(dataset) == 9 and dataset.labels is not None and dataset.labels.tolist() == [0] * 3 + [1] * 6
        assert dataset.kind == "clips" and dataset.fetch(8) == (str(root / "run/deep/2.MKV"), 1)
        assert dataset.clip_ids.tolist() == [[v, c] for v in range(3) for c in range(3)]
        assert dataset.clip_ids.dtype == np.int32 and dataset.sizes.shape == (9, 2)
        assert dataset.file_sizes[0] == (root / "jump/1.mp4").stat().st_size
        assert bytes(dataset.encoded_paths(np.array([4]))[0]) == os.fsencode(root / "run/1.mp4")
        assert "9 clips of 3 videos" in repr(dataset) and dataset[-1][0].shape == (4, 64, 96, 3)
        with pytest.raises(IndexError):
            dataset.fetch(9)

    def test_lists(self, root: Path) -> None:
        dataset = VideoList([root / "run/1.mp4", "jump/1.mp4"], labels=["b", "a"], root=root)
        assert dataset.labels is not None and dataset.labels.tolist() == [1, 0] and dataset.classes == ["a", "b"]
        (root / "list.csv").write_text("video,label\nrun/1.mp4,5\njump/1.mp4,7\n")
        assert VideoList(root / "list.csv").labels.tolist() == [5, 7]  # type: ignore[union-attr]
        assert VideoList([root / "run/1.mp4"]).labels is None and VideoList([root / "run/1.mp4"]).fetch(0)[1] is None
        with pytest.raises(DatasetError, match=r"VideoList: path 0 .* leads out of root"):
            VideoList(["../x.mp4"], root=root)

    def test_skip_leaves_out_what_is_too_short_and_keeps_what_is_bad(self, root: Path, videos: dict[str, Path]) -> None:
        (root / "jump/0.mp4").write_bytes(b"")
        shutil.copy(videos["vfr.mkv"], root / "jump/0.mkv")
        everything = VideoFolder(root, 30)
        dataset = VideoFolder(root, 30, padding="skip", clips=2)
        assert everything.frame_counts.tolist() == [22, 0, 40, 40, 22]
        assert dataset.frame_counts.tolist() == [0, 40, 40] and dataset.frame_rates.tolist() == [0, 25, 25]
        assert [Path(dataset.fetch(i)[0]).name for i in (0, 2, 5)] == ["0.mp4", "1.mp4", "1.mp4"]
        assert dataset.variable.tolist() == [False] * 3 and dataset.entry(5).pts[1] == 512
        assert len(dataset) == 6 and dataset.sizes.shape == (6, 2) and dataset.labels.tolist() == [0, 0, 0, 0, 1, 1]  # type: ignore[union-attr]
        assert [b.index for b in dataset.bad(np.arange(6))] == [0, 1]
        assert dataset.choose(0, 0, np.arange(6, dtype=np.uint64), np.arange(6)).max() < 40

    def test_errors_name_the_dataset(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=r"VideoFolder: .*clip\.mp4.*VideoList"):
            VideoFolder(tmp_path)
        (tmp_path / "a").mkdir()
        with pytest.raises(DatasetError, match="VideoFolder: found no valid file"):
            VideoFolder(tmp_path)
        assert len(VideoFolder(tmp_path, allow_empty=True)) == 0
        with pytest.raises(ConfigError, match="VideoFolder: extensions"):
            VideoFolder(tmp_path, extensions="MP4")

    def test_the_fingerprint_is_of_content_and_choice(
        self, root: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        copy = tmp_path_factory.mktemp("copy") / "data"
        shutil.copytree(root, copy)
        prints = [VideoFolder(root, f, **a).fingerprint for f, a in (  # type: ignore[arg-type]
            (8, {}), (9, {}), (8, {"stride": 2}), (8, {"fps": 25}), (8, {"clips": 2}), (8, {"padding": "loop"}),
            (8, {"sampling": "uniform"}))]  # fmt: skip
        assert len(set(prints)) == 7 and VideoFolder(copy, 8).fingerprint == prints[0]

    @pytest.mark.slow
    def test_without_pyav(self, root: Path) -> None:
        code = (
            "import importlib.util as u, sys; real = u.find_spec\n"
            "u.find_spec = lambda n, *a: None if n == 'av' else real(n, *a)\n"
            "from gpupipe.datasets import VideoFolder\n"
            "from gpupipe.errors import MissingDependency\n"
            "try: VideoFolder(sys.argv[1])\n"
            "except MissingDependency as e: print(e)\n"
        )
        done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=True)
        assert "pip install 'gpupipe-loader[video]'" in done.stdout and issubclass(MissingDependency, ImportError)


def test_indexes_of_pictures_and_videos_do_not_meet(tmp_path: Path, videos: dict[str, Path]) -> None:
    from gpupipe.datasets import ImageList

    assert ImageList([videos["cfr.mp4"]]).bad(np.array([0]))[0].kind == "undecodable"
    dataset = VideoList([videos["cfr.mp4"]])
    assert not dataset.bad(np.array([0])) and json.loads(json.dumps(dataset._index.columns.meta))["pyav"]
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(ColumnsError):
        VideoIndex(ImageList([tmp_path / "a.png"])._index.columns)


def test_an_open_group_that_begins_a_file(tmp_path: Path) -> None:
    """Its leading frames refer to what is not there, and do not come."""
    source = make_video(tmp_path / "open.mp4", options=OPEN)
    for drop in range(1, 20):
        path = copied(source, tmp_path / f"{drop}.mkv", drop=drop)
        assert list(probe(os.fsencode(path)).pts) == decoded(path)[0]
