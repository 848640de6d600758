"""Which frames a clip takes: against loops written out, and by what must hold for all videos."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gpupipe.datasets.video.sampling import Clips, Times, choose, fits, on_screen
from gpupipe.errors import ConfigError


def times_of(*videos: list[int], base: tuple[int, int] = (1, 1000), last: int = 40) -> Times:
    """As the index has them: a first time and a step where steps are equal, otherwise a list."""
    count = np.array([len(v) for v in videos], np.int64)
    first = np.array([v[0] if v else 0 for v in videos], np.int64)
    steps = [set(np.diff(v).tolist()) for v in videos]
    step = np.array(
        [s.pop() if len(s) == 1 else last if len(v) == 1 else 0 for s, v in zip(steps, videos, strict=True)]
    )
    listed = [v if not step[i] else [] for i, v in enumerate(videos)]
    start = np.cumsum([0, *map(len, listed)])[:-1]
    duration = np.array([v[-1] - v[0] + last if v else 0 for v in videos], np.int64)
    ones = np.ones(len(videos), np.int64)
    pts = np.array([t for v in listed for t in v], np.int64)
    return Times(count, first, step, duration, ones * base[0], ones * base[1], start, pts)


def even(*counts: int, step: int = 40) -> Times:
    return times_of(*(list(range(0, n * step, step)) for n in counts), last=step)


def one(count: int, u: float = 0.0, clip: int = 0, times: Times | None = None, **how: Any) -> list[int]:
    found = choose(np.array([u]), np.array([clip]), times or even(count), Clips(**how))
    assert found.dtype == np.int64
    return found[0].tolist()  # type: ignore[no-any-return]


class TestStride:
    def test_random_starts_reach_every_place_equally(self) -> None:
        u = (np.arange(10_000) + 0.5) / 10_000
        found = choose(u, np.zeros(10_000, np.int64), even(*[20] * 10_000), Clips(4, stride=3))
        assert (np.diff(found, axis=1) == 3).all()
        starts, counts = np.unique(found[:, 0], return_counts=True)
        assert starts.tolist() == list(range(11)) and counts.max() - counts.min() <= 1

    def test_the_ends_of_chance(self) -> None:
        assert one(20, 0.0, frames=4, stride=3) == [0, 3, 6, 9]
        assert one(20, 1 - 2**-53, frames=4, stride=3) == [10, 13, 16, 19]

    def test_uniform_clips(self) -> None:
        assert one(21, frames=4, stride=2, sampling="uniform") == [7, 9, 11, 13]  # 21 - 7 = 14 places left over
        clips = [one(21, clip=j, frames=4, stride=2, sampling="uniform", clips=4)[0] for j in range(4)]
        assert clips == [round(14 * j / 3) for j in range(4)] == [0, 5, 9, 14]
        assert one(21, 0.9, frames=4, sampling="uniform") == one(21, 0.1, frames=4, sampling="uniform")

    @pytest.mark.parametrize(("count", "repeat", "loop"), [
        (5, [0, 2, 4, 4], [0, 2, 4, 1]), (2, [0, 1, 1, 1], [0, 0, 0, 0]), (1, [0] * 4, [0] * 4), (0, [0] * 4, [0] * 4),
    ])  # fmt: skip
    def test_padding(self, count: int, repeat: list[int], loop: list[int]) -> None:
        for sampling in ("random", "uniform"):
            assert one(count, 0.7, frames=4, stride=2, padding="repeat", sampling=sampling) == repeat
            assert one(count, 0.7, frames=4, stride=2, padding="loop", sampling=sampling) == loop

    def test_what_fits(self) -> None:
        assert fits(even(0, 6, 7, 8), Clips(4, stride=2)).tolist() == [False, False, True, True]
        assert fits(even(0, 3, 4), Clips(4, sampling="segments")).tolist() == [False, False, True]
        # 4 frames at 25 per second reach from 0 to 120 ms.
        assert fits(even(0, 3, 4), Clips(4, fps=25)).tolist() == [False, False, True]


class TestFps:
    def test_its_own_rate_gives_every_frame(self) -> None:
        for u in (0.0, 0.3, 0.999):
            found = one(40, u, frames=8, fps=25)
            assert np.diff(found).tolist() == [1] * 7
        assert one(8, 0.999, frames=8, fps=25) == list(range(8))

    def test_ntsc_is_exact(self) -> None:
        times = times_of([1001 * k for k in range(2000)], base=(1, 30000), last=1001)
        for fps in (Fraction(30000, 1001), 30000 / 1001):
            assert one(0, 0.0, times=times, frames=1999, fps=fps) == list(range(1999))

    def test_halves_doubles_and_thirds(self) -> None:
        assert one(40, 0.0, frames=5, fps=12.5) == [0, 2, 4, 6, 8]
        assert one(40, 0.0, frames=6, fps=50) == [0, 0, 1, 1, 2, 2]
        assert one(40, 0.0, frames=4, fps=10) == [0, 2, 5, 7]  # at 0, 100, 200, 300 ms

    def test_variable_rates(self) -> None:
        pts = [5, 45, 50, 300, 301, 900]
        times = times_of(pts)
        wanted = [0, 4, 5, 44, 45, 49, 50, 299, 300, 301, 302, 899, 900, 5000]
        shown = [max([k for k, t in enumerate(pts) if t <= w], default=0) for w in wanted]
        assert on_screen(times, np.array([wanted])).tolist() == [shown]
        assert one(0, 0.0, times=times, frames=5, fps=5) == [0, 2, 4, 4, 4]  # 5, 205, 405, 605, 805 ms

    def test_looping_and_repeating(self) -> None:
        assert one(3, 0.5, frames=6, fps=25, padding="loop") == [0, 1, 2, 0, 1, 2]
        assert one(3, 0.5, frames=6, fps=25, padding="repeat") == [0, 1, 2, 2, 2, 2]
        assert one(0, 0.5, frames=3, fps=25) == [0, 0, 0]

    @pytest.mark.slow
    @settings(max_examples=200, deadline=None)
    @given(st.data())
    def test_against_a_loop(self, data: st.DataObject) -> None:
        steps = st.lists(st.integers(1, 200), min_size=0, max_size=30)
        videos = [np.cumsum([data.draw(st.integers(-99, 99)), *data.draw(steps)]).tolist() for _ in range(3)]
        fps = data.draw(st.fractions(Fraction(1, 2), 100, max_denominator=100))
        frames, u = data.draw(st.integers(1, 12)), data.draw(st.floats(0, 1, exclude_max=True))
        times = times_of(*videos)
        found = choose(np.full(3, u), np.zeros(3, np.int64), times, Clips(frames, fps=fps))
        for row, pts in enumerate(videos):
            offsets = [int(Fraction(k) / fps * 1000) for k in range(frames)]
            duration = pts[-1] - pts[0] + 40
            start = int(u * max(duration - offsets[-1], 1))
            wanted = [pts[0] + min(start + o, duration - 1) for o in offsets]
            assert found[row].tolist() == [max(k for k, t in enumerate(pts) if t <= w) for w in wanted]


class TestSegments:
    def test_one_frame_of_each(self) -> None:
        edges = [0, 3, 6, 10]
        seen: list[set[int]] = [set(), set(), set()]
        for u in np.linspace(0, 1, 200, endpoint=False):
            for k, frame in enumerate(one(10, float(u), frames=3, sampling="segments")):
                assert edges[k] <= frame < edges[k + 1]
                seen[k].add(frame)
        assert [len(s) for s in seen] == [3, 3, 4]

    @pytest.mark.slow
    def test_segments_are_independent(self) -> None:
        u = np.random.default_rng(0).random(20_000)
        found = choose(u, np.zeros(len(u), np.int64), even(*[300] * len(u)), Clips(3, sampling="segments")) % 100
        assert abs(np.corrcoef(found.T) - np.eye(3)).max() < 0.03
        assert abs(found.mean(0) - 49.5).max() < 1

    def test_middles(self) -> None:
        assert one(9, frames=3, sampling="segment_middles") == [1, 4, 7]
        assert [one(12, clip=j, frames=3, clips=2, sampling="segment_middles") for j in (0, 1)] == [
            [1, 5, 9],
            [3, 7, 11],
        ]

    def test_short_videos(self) -> None:
        assert one(2, frames=4, sampling="segments") == [0, 0, 1, 1]
        assert one(2, frames=4, sampling="segment_middles", padding="loop") == [0, 1, 0, 1]
        assert one(0, 0.5, frames=4, sampling="segments") == [0] * 4


class TestAll:
    @pytest.mark.slow
    @settings(max_examples=200, deadline=None)
    @given(st.data())
    def test_frames_exist_and_a_row_depends_on_itself_alone(self, data: st.DataObject) -> None:
        sampling = data.draw(st.sampled_from(["random", "uniform", "segments", "segment_middles"]))
        far: Any = {} if "segment" in sampling else data.draw(st.sampled_from([{}, {"stride": 7}, {"fps": 13.7}]))
        k = data.draw(st.integers(1, 5))
        padding = data.draw(st.sampled_from(["repeat", "loop", "skip"]))
        how = Clips(data.draw(st.integers(1, 40)), clips=k, sampling=sampling, padding=padding, **far)  # type: ignore[arg-type]
        counts = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=6))
        u = np.array([data.draw(st.floats(0, 1, exclude_max=True)) for _ in counts])
        clip = np.array([data.draw(st.integers(0, k - 1)) for _ in counts])
        found = choose(u, clip, even(*counts), how)
        assert found.shape == (len(counts), how.frames)
        assert (found >= 0).all() and (found <= np.maximum(np.array(counts) - 1, 0)[:, None]).all()
        for i, count in enumerate(counts):
            assert (choose(u[i : i + 1], clip[i : i + 1], even(count), how)[0] == found[i]).all()
        if padding != "loop":
            assert (np.diff(found, axis=1) >= 0).all()
        whole = fits(even(*counts), how)
        if "stride" in far or not far:
            assert all(len(set(row)) == how.frames for row in found[whole].tolist())

    @pytest.mark.parametrize(("how", "words"), [
        ({"frames": 0}, "frames must be"), ({"frames": True}, "frames must be"), ({"frames": 2.0}, "frames must be"),
        ({"stride": 0}, "stride must be"), ({"clips": -1}, "clips must be"), ({"fps": 0}, "fps must be"),
        ({"fps": float("nan")}, "fps must be"), ({"fps": "25"}, "fps must be"), ({"fps": True}, "fps must be"),
        ({"fps": 5, "stride": 2}, "give only one"), ({"sampling": "dense"}, "sampling must be one of random"),
        ({"padding": "zeros"}, "padding must be one of repeat"), ({"sampling": "segments", "fps": 5}, "whole video"),
        ({"sampling": "segment_middles", "stride": 2}, "whole video"),
    ])  # fmt: skip
    def test_refused(self, how: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            Clips(**how)

    def test_large_numbers_do_not_wrap(self) -> None:
        day = 86_400 * 90_000
        times = times_of(list(range(0, day, day // 1000)), base=(1, 90_000), last=day // 1000)
        found = one(0, 0.999, times=times, frames=65_536, fps=1000)
        assert min(found) >= 0 and found == sorted(found) and max(found) < 1000
        slow = times_of([0, 1, 2], base=(2**31 - 1, 1), last=1)
        assert one(0, 0.0, times=slow, frames=3, fps=Fraction(1, 1000)) == [0, 0, 0]
        fast = times_of([0, 2**40], base=(1, 2**31 - 1), last=1)
        assert one(0, 0.0, times=fast, frames=3, fps=Fraction(1, 1000)) == [0, 1, 1]
