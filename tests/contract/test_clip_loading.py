"""Clips through the loader: everything that a loader promises of images, it promises of clips."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import BATCH, ENGINES, FRAMES, GRAY, RAW, TRAIN, clips
from support import identical, native_session, outcomes, python_threads, settled

from gpupipe import DataLoader, engines
from gpupipe.datasets import Subset
from gpupipe.errors import ConfigError, SampleError
from gpupipe.pipelines import kinetics

av = pytest.importorskip("av")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("engine", ["null", *ENGINES])
def test_resume_at_every_step(engine: str, clip_files: list[Path], clip_loaders: Any) -> None:
    dataset = clips(clip_files)
    loader = clip_loaders(dataset, engine)
    iterator = iter(loader)
    states, batches = [loader.state_dict()], []
    for batch in iterator:
        batches.append(batch)
        states.append(loader.state_dict())
    other = clip_loaders(dataset, engine, seed=99)
    for step, state in enumerate(states[:-1]):
        other.load_state_dict(state)
        rest = list(other)
        assert len(rest) == len(batches) - step
        assert all(identical(a, b) for a, b in zip(rest, batches[step:], strict=True))
    assert len(batches) == 3


def test_frames_do_not_depend_on_the_batch(clip_files: list[Path], clip_loaders: Any, engine: str) -> None:
    dataset = clips(clip_files, RAW)
    small = {int(y): x for xs, ys in clip_loaders(dataset, engine, batch_size=1) for x, y in zip(xs, ys, strict=True)}
    large = {int(y): x for xs, ys in clip_loaders(dataset, engine, batch_size=8) for x, y in zip(xs, ys, strict=True)}
    assert small.keys() == large.keys() and all(torch.equal(small[i], large[i]) for i in small)
    other = clip_loaders(dataset, engine, batch_size=8)
    other.set_epoch(1)
    (xs, ys), *_ = other
    assert any(not torch.equal(small[int(y)], x) for x, y in zip(xs, ys, strict=True))


@pytest.fixture
def broken(clip_files: list[Path], tmp_path: Path) -> tuple[list[Path], Path]:
    """(good videos around two that are bad from the beginning, one that breaks after it was indexed)"""
    junk, empty, later = tmp_path / "junk.mp4", tmp_path / "empty.mp4", tmp_path / "later.mp4"
    junk.write_bytes(b"no video at all" * 100)
    empty.write_bytes(b"")
    later.write_bytes(clip_files[0].read_bytes())
    return [clip_files[0], junk, clip_files[1], later, clip_files[2], empty, clip_files[3], clip_files[4]], later


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_videos_are_skipped_or_replaced_or_raised(
    engine: str, workers: int, broken: tuple[list[Path], Path], clip_loaders: Any
) -> None:
    paths, later = broken
    dataset = clips(paths, RAW)
    later.write_bytes(later.read_bytes()[:900])
    bad = {1, 3, 5}

    skipping = clip_loaders(dataset, engine, num_workers=workers, on_error="skip")
    assert sorted(int(y) for _, ys in skipping for y in ys) == sorted(set(range(8)) - bad)
    assert {s.index for s in skipping.report().samples} == bad
    assert all(Path(s.path).name in ("junk.mp4", "empty.mp4", "later.mp4") for s in skipping.report().samples)

    replacing = clip_loaders(dataset, engine, num_workers=workers, on_error="replace")
    seen = [int(y) for _, ys in replacing for y in ys]
    assert len(seen) == 8 and not set(seen) & bad
    assert seen == [int(y) for _, ys in clip_loaders(dataset, engine, on_error="replace") for y in ys]

    raising = clip_loaders(dataset, engine, num_workers=workers, batch_size=2, shuffle=False)
    found = list(outcomes(raising))
    assert [s.index for one in found if isinstance(one, SampleError) for s in one.samples] == [1, 3, 5]
    assert [int(y) for one in found if not isinstance(one, SampleError) for y in one[1]] == [6, 7]


def test_an_epoch_that_is_left_and_begun_again(engine: str, clip_files: list[Path], clip_loaders: Any) -> None:
    dataset = clips(clip_files, RAW)
    whole_epoch = list(clip_loaders(dataset, engine))
    loader = clip_loaders(dataset, engine, num_workers=2)
    for _ in range(4):
        loader.set_epoch(0)
        for k, batch in enumerate(loader):
            assert identical(batch, whole_epoch[k])
            if k:
                break
    loader.set_epoch(0)
    kept = list(loader)  # batches stay what they are, whatever is decoded after them
    assert all(identical(a, b) for a, b in zip(kept, whole_epoch, strict=True))


@pytest.mark.parametrize("graph", [False, True])
def test_threads_and_memory_end_with_the_loader(clip_files: list[Path], clip_loaders: Any, graph: bool) -> None:
    before = python_threads()
    loader = clip_loaders(clips(clip_files, GRAY if graph else TRAIN), "dali", num_workers=2)
    for _ in range(3):
        list(loader)
        held = native_session(loader).running.engine.reader.buffers.nbytes
    names = python_threads() - before
    assert names and all(name.startswith(("gpupipe-clips", "gpupipe-images")) for name in names)
    most = BATCH * FRAMES * 64 * 96 * 3
    # 2 × prefetch_factor + 3 buffers, as in the middle of a long epoch: prefetch_factor + 1 that are read, as many that
    # DALI has or waits for, one that is made. None if batches are made where frames are decoded.
    assert (0 < held <= 7 * most) if graph else not held
    loader.close()
    gc.collect()
    assert settled(lambda: python_threads() - before, set())


def test_what_it_says_of_itself(engine: str, clip_files: list[Path], clip_loaders: Any) -> None:
    loader = clip_loaders(clips(clip_files), engine, num_workers=2)
    iter(loader)
    assert f"PyAV {av.__version__}" in repr(loader)
    assert ("2 threads" in repr(loader)) == (engine == "dali")


def test_subsets_and_several_clips_of_a_video(engine: str, clip_files: list[Path], clip_loaders: Any) -> None:
    dataset = clips(clip_files, kinetics.val(24, 32, dtype="uint8"), clips=3, sampling="uniform")
    part = Subset(dataset, np.arange(6, 15))
    assert part.clip_ids.tolist() == [[v, k] for v in (2, 3, 4) for k in range(3)]
    loader = clip_loaders(part, engine, batch_size=4, shuffle=False)
    got = torch.cat([x for x, _ in loader])
    everything = torch.cat([x for x, _ in clip_loaders(dataset, engine, batch_size=5, shuffle=False)])
    assert torch.equal(got, everything[6:15])
    assert not torch.equal(got[0], got[1])  # other frames of the same video


def test_arguments_that_are_refused(clip_files: list[Path]) -> None:
    with pytest.raises(ConfigError, match='layout must be "CTHW"'):
        clips(clip_files, layout="THWC")
    with pytest.raises(ConfigError, match="video must be one of auto, pyav, nvdec"):
        engines.Dali(video="gpu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a GPU"):
        DataLoader(clips(clip_files), engine=engines.Dali(video="nvdec"), device="cpu")
