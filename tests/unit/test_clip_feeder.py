"""The memory that clips are decoded into: lent, written, given back, and not written by two at once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import BATCH, NAMES, clips
from support import plans_of, settled

from gpupipe import transforms as T
from gpupipe.codecs.video.decode import decode_clip
from gpupipe.errors import PipelineError
from gpupipe.reading import clips as module
from gpupipe.reading.buffers import BufferPool
from gpupipe.reading.clips import ClipReader
from gpupipe.reading.setup import Setup
from gpupipe.types import Plan

pytest.importorskip("av")

WHOLE = T.Compose([T.CenterCrop(24), T.PILToTensor()])


@pytest.fixture
def dataset(videos: dict[str, Path]) -> Any:
    if NAMES[0] not in videos:
        pytest.skip("this PyAV has no libx264")
    return clips([videos[NAMES[0]]] * 12, WHOLE)


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


@pytest.mark.slow
def test_what_a_run_left_behind_does_not_write_into_the_next_one(
    dataset: Any, feeder: ClipReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = plans_of(dataset, shuffle=False, batch_size=BATCH)
    true, calls = decode_clip, list[int]()

    def slowly(entry: Any, frames: Any, *, out: Any) -> Any:
        call = len(calls)
        calls.append(call)
        if BATCH <= call < BATCH + 2:  # two clips of the second plan: one lets its thread go on before the other
            time.sleep(0.2 if call == BATCH else 1.0)
            out[...] = 255
            return out
        return true(entry, frames, out=out)

    monkeypatch.setattr(module, "decode_clip", slowly)
    first = feeder.run(iter(plans))
    next(first)
    assert settled(lambda: len(calls) >= BATCH + 2, True)
    del first
    ready = list(itertools.islice(feeder.run(iter(plans)), 2))[1]
    time.sleep(1.1)
    assert plans[1].frames is not None
    want = [true(dataset.entry(int(i)), f) for i, f in zip(plans[1].indices, plans[1].frames, strict=True)]
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
