"""The memory that clips are decoded into: lent, written, given back, and not written by two at once."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import BATCH, NAMES, clips
from support import plans_of, settled

from gpupipe import transforms as T
from gpupipe.codecs.video.decode import ClipRequest, Shortcuts, decode_clip, decode_clips
from gpupipe.datasets import VideoList
from gpupipe.errors import PipelineError
from gpupipe.reading import clips as module
from gpupipe.reading.buffers import BufferPool
from gpupipe.reading.clips import ClipReader
from gpupipe.reading.setup import Setup
from gpupipe.types import Plan

pytest.importorskip("av")

WHOLE = T.Compose([T.CenterCrop(24), T.PILToTensor()])


def existing(videos: dict[str, Path], name: str) -> Path:
    if name not in videos:
        pytest.skip(f"this PyAV cannot make {name}")
    return videos[name]


@pytest.fixture
def dataset(videos: dict[str, Path]) -> Any:
    if NAMES[0] not in videos:
        pytest.skip("this PyAV has no libx264")
    return clips([videos[NAMES[0]]] * 12, WHOLE)


@pytest.fixture
def feeder(dataset: Any) -> Iterator[ClipReader]:
    it = ClipReader(Setup(dataset, WHOLE, "cpu", BATCH, num_workers=2), shortcuts=Shortcuts(together=False))
    yield it
    it.close()


def pixels(ready: Any) -> Any:
    return np.stack(ready.media)


def test_buffers_come_back_and_grow() -> None:
    staging = BufferPool(pinned=False)
    first, second = staging.take(100), staging.take(50)
    assert staging.nbytes == 150
    place = first.buffer.data_ptr()
    assert first.holds(first.buffer[99:]) and not first.holds(second.buffer)
    del first
    again = staging.take(80)
    assert again.buffer.data_ptr() == place and staging.nbytes == 150
    del second
    assert staging.take(70).buffer.numel() == 70 and staging.nbytes == 170  # the one of 50 was too small
    staging.close()
    assert staging.nbytes == 0
    del again  # comes back to nobody
    assert staging.take(10).buffer.numel() == 10


def test_a_buffer_comes_back_out_of_a_reference_cycle() -> None:
    """Python forgets the callback of a weak reference that dies together with what it refers to."""
    staging = BufferPool(pinned=False)
    lent = staging.take(100)
    place = lent.buffer.data_ptr()
    cycle: list[Any] = [lent]
    cycle.append(cycle)
    del lent, cycle
    gc.collect()
    assert staging.take(100).buffer.data_ptr() == place and staging.nbytes == 100


def test_a_damaged_video_leaves_no_reference_cycle(videos: dict[str, Path], tmp_path: Path) -> None:
    """Its buffers come back at once, and not when the collector runs."""
    content = bytearray(existing(videos, "ffv1.mkv").read_bytes())
    path = tmp_path / "v.mkv"
    path.write_bytes(content)
    dataset = VideoList([path], 10, clips=4, sampling="uniform", transform=WHOLE)
    entry = dataset.entry(0)
    at = int(entry.keys[-1, 2])
    content[at + 100 : at + 400] = bytes(300)
    path.write_bytes(content)
    put = _Weak()
    request = ClipRequest(np.arange(30, 40), put)
    there = weakref.ref(put)
    gc.disable()
    try:
        assert decode_clips(entry, [request]) != [None]
        del put, request
        assert there() is None
    finally:
        gc.enable()


class _Weak:
    def __call__(self, number: int, frame: Any) -> None:
        """What takes a frame."""


@pytest.mark.slow
def test_what_a_run_left_behind_does_not_write_into_the_next_one(
    dataset: Any, feeder: ClipReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = plans_of(dataset, shuffle=False, batch_size=BATCH)
    calls = list[int]()

    def slowly(entry: Any, requests: Any, **arguments: Any) -> Any:
        call = len(calls)
        calls.append(call)
        if BATCH <= call < BATCH + 2:  # two clips of the second plan: one lets its thread go on before the other
            time.sleep(0.2 if call == BATCH else 1.0)
            for request in requests:
                for t in range(len(request.frames)):
                    request.put(t, np.full((entry.height, entry.width, 3), 255, np.uint8))
            return [None] * len(requests)
        return decode_clips(entry, requests, **arguments)

    monkeypatch.setattr(module, "decode_clips", slowly)
    first = feeder.run(iter(plans))
    next(first)
    assert settled(lambda: len(calls) >= BATCH + 2, True)
    del first
    ready = list(itertools.islice(feeder.run(iter(plans)), 2))[1]
    time.sleep(1.1)
    assert plans[1].frames is not None
    want = [decode_clip(dataset.entry(int(i)), f) for i, f in zip(plans[1].indices, plans[1].frames, strict=True)]
    assert np.array_equal(pixels(ready), np.concatenate(want))


def test_plans_before_one_that_cannot_be_made_are_good(dataset: Any, feeder: ClipReader) -> None:
    made = plans_of(dataset, shuffle=False, batch_size=BATCH)

    def plans() -> Iterator[Plan]:
        yield from made[:2]
        raise PipelineError("no further")

    run = feeder.run(plans())
    assert [next(run).plan.step for _ in range(2)] == [0, 1]
    with pytest.raises(PipelineError, match="no further"):
        next(run)


def test_no_more_buffers_than_are_in_use(dataset: Any, feeder: ClipReader) -> None:
    one = 0
    for ready in feeder.run(iter(plans_of(dataset, batch_size=BATCH))):
        one = one or sum(frame.nbytes for frame in ready.media)
        del ready
    assert feeder.buffers.nbytes <= 4 * one


class TestTogether:
    """Clips of one video that wait at the same time."""

    @staticmethod
    def read(
        dataset: Any, batch: int, monkeypatch: pytest.MonkeyPatch, shortcuts: Shortcuts, threads: int = 2
    ) -> tuple[list[Any], Any]:
        """(the clips of each pass over a file, every plan with what was loaded). Nothing is decoded before all wait."""
        plans = plans_of(dataset, shuffle=False, batch_size=batch)
        passes: list[list[list[int]]] = []
        true, submitted, count = decode_clips, threading.Event(), len(plans)
        begin, taken, begun = ClipReader._begin, ClipReader._taken, list[int]()

        def counted(self: Any, *args: Any) -> Any:
            pending = begin(self, *args)
            begun.append(1)
            if len(begun) == count:
                submitted.set()
            return pending

        def held(self: Any, clip: Any) -> Any:
            assert submitted.wait(20)
            return taken(self, clip)

        def spy(entry: Any, requests: Any, **arguments: Any) -> Any:
            passes.append([request.frames.tolist() for request in requests])
            return true(entry, requests, **arguments)

        monkeypatch.setattr(ClipReader, "_begin", counted)
        monkeypatch.setattr(ClipReader, "_taken", held)
        monkeypatch.setattr(module, "decode_clips", spy)
        setup = Setup(dataset, WHOLE, "cpu", batch, num_workers=threads, prefetch_factor=count)
        reader = ClipReader(setup, shortcuts=shortcuts)
        loaded = []
        for ready in reader.run(iter(plans)):
            loaded.append(ready.bad or [frame.copy() for frame in ready.media])
        assert not reader._waiting
        reader.close()
        return passes, list(zip(plans, loaded, strict=True))

    @pytest.mark.parametrize("on", [True, False])
    def test_of_several_plans_in_one_pass(
        self, videos: dict[str, Path], monkeypatch: pytest.MonkeyPatch, on: bool
    ) -> None:
        files = [existing(videos, "cfr.mp4"), existing(videos, "bframes.mkv")]
        # From frame 0, 10, 20 and 30 on, in groups of 12 pictures: each clip shares one with the next.
        dataset = VideoList(files, 10, clips=4, sampling="uniform", transform=WHOLE)
        passes, loaded = self.read(dataset, 2, monkeypatch, Shortcuts(together=on))
        assert sorted(map(len, passes)) == ([4, 4] if on else [1] * 8)
        for plan, media in loaded:
            want = [decode_clip(dataset.entry(int(i)), f) for i, f in zip(plan.indices, plan.frames, strict=True)]
            assert np.array_equal(np.stack(media), np.concatenate(want))

    def test_what_shares_no_pictures_is_left_to_other_threads(
        self, videos: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset = VideoList([existing(videos, "cfr.mp4")], 2, clips=3, sampling="uniform", transform=WHOLE)
        passes, _ = self.read(dataset, 3, monkeypatch, Shortcuts())
        assert sorted(passes) == [[[0, 1]], [[19, 20]], [[38, 39]]]

    @pytest.mark.parametrize(("threads", "passes"), [(1, [4]), (3, [4]), (4, [1, 1, 1, 1]), (8, [1, 1, 1, 1])])
    def test_only_if_more_wait_than_there_are_threads(
        self, videos: dict[str, Path], monkeypatch: pytest.MonkeyPatch, threads: int, passes: list[int]
    ) -> None:
        """Otherwise threads would have nothing to do while one decodes for all."""
        dataset = VideoList([existing(videos, "cfr.mp4")], 10, clips=4, sampling="uniform", transform=WHOLE)
        made, loaded = self.read(dataset, 2, monkeypatch, Shortcuts(), threads)
        assert [len(clips) for clips in made] == passes
        for plan, media in loaded:
            want = [decode_clip(dataset.entry(int(i)), f) for i, f in zip(plan.indices, plan.frames, strict=True)]
            assert np.array_equal(np.stack(media), np.concatenate(want))

    def test_one_that_fails_leaves_the_others_alone(
        self, videos: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Four clips in one pass, of which the last group of pictures is damaged."""
        path = tmp_path / "v.mkv"
        content = bytearray(existing(videos, "ffv1.mkv").read_bytes())
        path.write_bytes(content)
        dataset = VideoList([path], 10, clips=4, sampling="uniform", transform=WHOLE)
        good = [decode_clip(dataset.entry(i), range(10 * i, 10 * i + 10)) for i in range(3)]
        at = int(dataset.entry(0).keys[-1, 2])
        content[at + 100 : at + 400] = bytes(300)
        path.write_bytes(content)
        passes, loaded = self.read(dataset, 1, monkeypatch, Shortcuts())
        assert [len(clips) for clips in passes] == [4]
        assert all(np.array_equal(np.stack(media), want) for (_, media), want in zip(loaded[:3], good, strict=True))
        (bad,) = loaded[3][1]
        assert bad.index == 3 and bad.kind == "undecodable" and "clip 4 of 4" in bad.path

    def test_a_run_that_is_given_up_leaves_nothing_waiting(self, dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        plans = plans_of(dataset, shuffle=False, batch_size=BATCH)
        go, calls = threading.Event(), list[int]()

        def held(entry: Any, requests: Any, **arguments: Any) -> Any:
            calls.append(len(requests))
            assert go.wait(20)
            return decode_clips(entry, requests, **arguments)

        monkeypatch.setattr(module, "decode_clips", held)
        reader = ClipReader(Setup(dataset, WHOLE, "cpu", BATCH, num_workers=1), shortcuts=Shortcuts(together=False))
        run = reader.run(iter(plans))
        consumer = threading.Thread(target=lambda: list(run), daemon=True)
        consumer.start()
        assert settled(lambda: len(calls), 1)
        reader.stop()
        go.set()
        ready = list(reader.run(iter(plans)))
        assert len(ready) == len(plans) and not any(one.bad for one in ready) and not reader._waiting
        reader.close()
