"""The frames of a clip are those of a loop over the whole video, whatever the file is and wherever it is entered."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av")

from videos import COPIES, KINDS, U8, decoded, make_video

from gpupipe.codecs.files import Undecodable
from gpupipe.codecs.video import decode as decode_module
from gpupipe.codecs.video.container import opened
from gpupipe.codecs.video.decode import VideoEntry, decode_clip
from gpupipe.codecs.video.passes import Pass
from gpupipe.datasets import VideoList
from gpupipe.rng import uniforms

SEEKABLE = [
    *("cfr.mp4", "bframes.mp4", "bframes.mkv", "open.mp4", "open.mkv", "vfr.mkv", "hevc.mkv", "vp9.webm"),
    *("vp8.webm", "av1.mkv", "mpeg4.mp4", "mjpeg.avi", "fragmented.mp4", "edited.mp4", "late.mp4"),
]

_truths: dict[str, U8] = {}


def truth(path: Path) -> U8:
    """u8[F, H, W, 3]: all frames, in a loop."""
    if str(path) not in _truths:
        _truths[str(path)] = np.stack(decoded(path)[1])
    return _truths[str(path)]


def entry_of(videos: dict[str, Path], name: str) -> tuple[VideoEntry, U8]:
    return VideoList([videos[name]]).entry(0), truth(videos[name])


@pytest.fixture
def packets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frames came out of the decoder in each run through a file."""
    counts: list[int] = []
    real = Pass._frames

    def spy(self: Any, *args: Any) -> Any:
        counts.append(0)
        for pair in real(self, *args):
            counts[-1] += 1
            yield pair

    monkeypatch.setattr(Pass, "_frames", spy)
    return counts


@pytest.mark.part("name", of=4)
@pytest.mark.parametrize("name", [*KINDS, *COPIES])
def test_every_frame_alone_and_any_together(videos: dict[str, Path], name: str) -> None:
    entry, want = entry_of(videos, name)
    n = len(want)
    for k in range(n):
        assert (decode_clip(entry, [k])[0] == want[k]).all(), k
    rng = np.random.default_rng(0)
    for size in (2, 5, 16):
        frames = rng.integers(0, n, size)  # unsorted, repeated
        assert (decode_clip(entry, frames) == want[frames]).all(), frames
    assert (decode_clip(entry, np.arange(n)[::-1]) == want[::-1]).all()


@pytest.mark.slow
def test_the_real_ones(shared_data: Path) -> None:
    files = sorted((shared_data / "videos").glob("*/*"))[::7]
    dataset = VideoList(files, frames=8, fps=12.5)
    for i, path in enumerate(files):
        want = truth(path)
        last, keys = len(want) - 1, np.array([i], np.uint64)
        chosen = [dataset.choose(5, epoch, keys, np.array([i]))[0] for epoch in range(3)]
        for frames in (*chosen, [last], [0, last], list(range(0, len(want), 4)), [last // 2] * 2 + [last // 3]):
            assert (decode_clip(dataset.entry(i), frames) == want[frames]).all(), (path, frames)
        _truths.clear()


class TestSeeking:
    @pytest.mark.parametrize("name", SEEKABLE)
    def test_only_what_is_needed_is_decoded(self, videos: dict[str, Path], packets: list[int], name: str) -> None:
        entry, want = entry_of(videos, name)
        last = len(want) - 1
        key = int(entry.keys[entry.keys[:, 0] <= last][-1, 0])
        assert key > 0
        decode_clip(replace(entry, skips=False), [last])
        assert packets == [last - key + 1]

    def test_far_frames_are_reached_by_a_seek_and_near_ones_are_not(
        self, videos: dict[str, Path], packets: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry, want = entry_of(videos, "open.mp4")
        opens = []
        real = opened
        monkeypatch.setattr(decode_module, "opened", lambda *a, **k: opens.append(a) or real(*a, **k))
        assert (decode_clip(entry, [1, 38, 37]) == want[[1, 38, 37]]).all()
        # Frames 0 and 1, and 36 to 38 from the key frame; and what the decoder holds by then.
        assert packets == [4, 4] and len(opens) == 1
        packets.clear()
        assert (decode_clip(entry, [10, 13]) == want[[10, 13]]).all()
        assert packets == [16]  # 0 to 13 and two that the decoder holds

    @pytest.mark.parametrize("name", ["open.mkv", "vfr.mp4", "vp9.webm"])
    @pytest.mark.parametrize("astray", ["later", "start", "error", "any"])
    def test_seeks_that_go_astray(
        self, videos: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str, astray: str
    ) -> None:
        """A container whose seeks lead elsewhere, fail, or lead into the middle of a group of pictures."""
        import contextlib

        entry, want = entry_of(videos, name)
        real = opened

        class Astray:
            def __init__(self, container: Any):
                self._container = container

            def seek(self, time: int, *, stream: Any, backward: bool) -> None:
                if astray == "error":
                    raise OSError("no seeking here")
                to = {"later": int(entry.pts[-1]), "start": int(entry.pts[0]), "any": time + int(entry.pts[5])}[astray]
                self._container.seek(to, stream=stream, backward=backward, any_frame=astray == "any")

            def __getattr__(self, attribute: str) -> Any:
                return getattr(self._container, attribute)

        @contextlib.contextmanager
        def spoiled(*args: Any, **kwargs: Any) -> Any:
            with real(*args, **kwargs) as (container, stream):
                yield Astray(container), stream

        monkeypatch.setattr(decode_module, "opened", spoiled)
        frames = [len(want) - 3, 14, 15, 2]
        assert (decode_clip(entry, frames) == want[frames]).all()

    @pytest.mark.parametrize("name", ["open.mkv", "mpeg4.mp4"])
    @pytest.mark.parametrize("position", [12345, -1])
    def test_an_index_that_calls_entries_what_are_none(self, videos: dict[str, Path], name: str, position: int) -> None:
        entry, want = entry_of(videos, name)
        others = np.setdiff1d(np.arange(40), entry.keys[:, 0])
        keys = np.stack([others, entry.pts[others], np.full(len(others), position)], axis=1)
        lying = VideoEntry(entry.path, 64, 96, entry.pts, keys, entry.time_base, True)
        assert (decode_clip(lying, [9, 38, 20]) == want[[9, 38, 20]]).all()

    def test_another_packet_at_the_time_of_an_entry_is_none(self, videos: dict[str, Path], packets: list[int]) -> None:
        entry, want = entry_of(videos, "open.mkv")
        keys = entry.keys + np.array([0, 0, 1])
        moved = VideoEntry(entry.path, 64, 96, entry.pts, keys, entry.time_base, True)
        assert (decode_clip(moved, [39])[0] == want[39]).all()
        assert packets == [0, 0, 0, 40]  # neither the last entry, twice, nor the one before; from the beginning


class TestBad:
    def test_a_frame_that_does_not_come_is_not_waited_for(self, videos: dict[str, Path], packets: list[int]) -> None:
        entry, _ = entry_of(videos, "cfr.mp4")
        pts = entry.pts.copy()
        pts[5] += 1
        with pytest.raises(Undecodable, match="frames 5 to 5 of 40 do not all come"):
            decode_clip(VideoEntry(entry.path, 64, 96, pts, entry.keys, entry.time_base, True), [5])
        assert packets == [5, 5]  # 0 to 4; the next one has another time

    def test_a_file_that_changed(self, videos: dict[str, Path], tmp_path: Path) -> None:
        path = tmp_path / "v.mp4"
        shutil.copy(videos["bframes.mp4"], path)
        entry = VideoList([path]).entry(0)
        make_video(path, frames=10)
        with pytest.raises(Undecodable, match="do not all come") as caught:
            decode_clip(entry, [30])
        assert caught.value.kind == "undecodable"
        make_video(path, size=(32, 32))
        with pytest.raises(Undecodable, match="32x32 and the first one 64x96"):
            decode_clip(entry, [0])
        path.write_bytes(videos["bframes.mkv"].read_bytes())  # another container, with other times
        with pytest.raises(Undecodable):
            decode_clip(entry, [30])
        path.write_bytes(b"")
        with pytest.raises(Undecodable) as caught:
            decode_clip(entry, [0])
        assert caught.value.kind == "empty"
        path.unlink()
        with pytest.raises(Undecodable) as caught:
            decode_clip(entry, [0])
        assert caught.value.kind == "missing"

    def test_arguments(self, videos: dict[str, Path]) -> None:
        entry, _ = entry_of(videos, "cfr.mp4")
        for wrong in ([40], [-1], [0, 1000]):
            with pytest.raises(IndexError, match="which has 40 frames"):
                decode_clip(entry, wrong)
        assert decode_clip(entry, []).shape == (0, 64, 96, 3)


class TestUpright:
    @pytest.mark.parametrize(("degrees", "flip", "orientation"), [
        (0, False, 1), (0, True, 2), (180, False, 3), (180, True, 4), (90, True, 7), (-90, False, 6), (-90, True, 5),
        (90, False, 8),
    ])  # fmt: skip
    def test_frames_as_a_player_shows_them(self, tmp_path: Path, degrees: int, flip: bool, orientation: int) -> None:
        import av

        if not hasattr(av.video.stream.VideoStream, "set_display_rotation"):
            pytest.skip("this PyAV writes no rotation")
        path = make_video(tmp_path / "v.mp4", frames=3, rotation=(degrees, flip, False))
        stored = truth(path)
        shown = np.rot90(stored, degrees // 90, axes=(1, 2))  # counter-clockwise
        shown = shown[:, :, ::-1] if flip else shown
        dataset = VideoList([path])
        upright = VideoList([path], frames=3, upright=True, sampling="uniform")
        assert dataset.entry(0).orientation == orientation and upright.fingerprint != dataset.fingerprint
        assert (upright.index_summary().oriented == 1) == (orientation > 1)
        assert dataset.sizes.tolist() == [[64, 96]] and upright.sizes.tolist() == [[*shown.shape[1:3]]]
        assert (upright[0][0] == shown).all()
        assert (decode_clip(upright.entry(0), range(3)) == stored).all()  # by default as it is stored


class TestChoosing:
    def test_a_function_of_its_arguments(self, videos: dict[str, Path], rng_untouched: None) -> None:
        dataset = VideoList([videos["cfr.mp4"], videos["vfr.mkv"], videos["open.mp4"]], frames=4, stride=2, clips=3)
        indices = np.array([8, 0, 3, 3])
        keys = np.array([8, 0, 3, 1 << 40 | 3], np.uint64)  # a sampler repeats sample 3
        found = dataset.choose(1, 2, keys, indices)
        assert found.shape == (4, 4) and found.dtype == np.int64
        u = uniforms(1, 2, "clip", keys, 1)[:, 0]
        assert found[:, 0].tolist() == [int(x * (n - 6)) for x, n in zip(u, (40, 40, 22, 22), strict=True)]
        assert (dataset.choose(1, 2, keys[:1], indices[:1]) == found[:1]).all()
        assert (dataset.choose(1, 3, keys, indices) != found).any() and (found[2] != found[3]).any()

    def test_clips_of_an_evaluation_cover_the_video(self, videos: dict[str, Path]) -> None:
        dataset = VideoList([videos["cfr.mp4"]] * 2, frames=4, clips=3, sampling="uniform")
        found = dataset.choose(0, 0, np.arange(6, dtype=np.uint64), np.arange(6))
        assert found[:3, 0].tolist() == found[3:, 0].tolist() == [0, 18, 36]
        scores = np.arange(6.0)
        mean = np.bincount(dataset.clip_ids[:, 0], scores) / np.bincount(dataset.clip_ids[:, 0])
        assert mean.tolist() == [1, 4]
