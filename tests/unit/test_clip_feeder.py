"""The memory that clips are decoded into: lent, written, given back, and not written by two at once."""

from __future__ import annotations

import gc
import itertools
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
from gpupipe.codecs.files import Undecodable
from gpupipe.codecs.video.decode import decode_clip, decode_into
from gpupipe.datasets import VideoList
from gpupipe.errors import PipelineError
from gpupipe.reading import clips as module
from gpupipe.reading.buffers import BufferPool
from gpupipe.reading.clips import ClipReader
from gpupipe.reading.setup import Setup
from gpupipe.types import Plan

pytest.importorskip("av")

WHOLE = T.Compose([T.CenterCrop(24), T.PILToTensor()])


@pytest.fixture
def dataset(videos: dict[str, Path], tmp_path: Path) -> Any:
    paths = [tmp_path / f"{i}.mp4" for i in range(12)]
    for path in paths:
        path.symlink_to(videos[NAMES[0]])
    return clips(paths, WHOLE)


@pytest.fixture
def feeder(dataset: Any) -> Iterator[ClipReader]:
    it = ClipReader(Setup(dataset, WHOLE, "cpu", BATCH, num_workers=2))
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


def broken_at_its_end(video: Path, path: Path) -> VideoList:
    """Four clips of ten frames of a copy whose last group of pictures broke after it was indexed."""
    content = bytearray(video.read_bytes())
    path.write_bytes(content)
    dataset = VideoList([path], 10, clips=4, sampling="uniform", transform=WHOLE)
    at = int(dataset.entry(0).keys[-1, 2])
    content[at + 100 : at + 400] = np.random.default_rng(0).bytes(300)
    path.write_bytes(content)
    return dataset


def test_a_damaged_video_leaves_no_reference_cycle(videos: dict[str, Path], tmp_path: Path) -> None:
    """Its buffers come back at once, and not when the collector runs."""
    entry = broken_at_its_end(videos["bframes.mkv"], tmp_path / "v.mkv").entry(0)
    put = _Weak()
    there = weakref.ref(put)
    gc.disable()
    try:
        with pytest.raises(Undecodable):
            decode_into(entry, np.arange(30, 40), put)
        del put
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

    def slowly(entry: Any, frames: Any, put: Any) -> None:
        call = len(calls)
        calls.append(call)
        if BATCH <= call < BATCH + 2:  # two clips of the second plan: one lets its thread go on before the other
            time.sleep(0.2 if call == BATCH else 1.0)
            for t in range(len(frames)):
                put(t, np.full((entry.height, entry.width, 3), 255, np.uint8))
        else:
            decode_into(entry, frames, put)

    monkeypatch.setattr(module, "decode_into", slowly)
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
