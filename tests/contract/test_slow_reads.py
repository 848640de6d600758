"""A sample that is read slowly delays its own batch, and none before it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clips import FRAMES, GRAY
from support import BATCH, TRAIN, N, all_seen, make_dataset

from gpupipe import DataLoader
from gpupipe.codecs.video.decode import decode_into
from gpupipe.datasets import Arrays, Dataset, VideoList
from gpupipe.engines import Dali
from gpupipe.sources.storage import LOCAL

LATE = 3
"""Batch whose first sample is slow."""
SLOW = LATE * BATCH


class Gate:
    """What the slow sample waits for, in any process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self.opened, self._forced = context.Event(), context.Event()

    def wait(self) -> None:
        if not self.opened.wait(20):
            self._forced.set()

    def open(self) -> None:
        """Fails if a batch had to wait for the slow sample."""
        assert not self._forced.is_set()
        self.opened.set()


def _tar(root: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    dataset, storage = make_dataset("tar", root, TRAIN), type(LOCAL)
    read_into, slow = storage.read_into, dataset.place(SLOW)

    def slowly(self: Any, places: Any, views: Any) -> Any:
        if slow in places:
            gate.wait()
        return read_into(self, places, views)

    monkeypatch.setattr(storage, "read_into", slowly)
    return dataset


def _arrays(root: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    fetch = Arrays.fetch

    def slowly(self: Arrays, index: int) -> Any:
        if index == SLOW:
            gate.wait()
        return fetch(self, index)

    monkeypatch.setattr(Arrays, "fetch", slowly)
    return make_dataset("arrays", root, TRAIN)


KINDS: dict[str, Callable[..., Dataset]] = {"tar": _tar, "arrays": _arrays}


def check(dataset: Dataset, gate: Gate, count: int, batch_size: int) -> None:
    with DataLoader(dataset, batch_size, engine=Dali(graph="whole"), num_workers=2, device="cpu", seed=1) as loader:
        delivered = []
        for number, batch in enumerate(loader):
            delivered.append(batch)
            if number == LATE - 1:
                gate.open()
        assert all_seen(delivered) == list(range(count))


@pytest.mark.parametrize("kind", KINDS)
def test_batches_before_a_slow_sample_do_not_wait_for_it(
    kind: str, numbered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if DALI gets the bytes of later batches before a batch that is done is handed out."""
    gate = Gate()
    check(KINDS[kind](numbered, gate, monkeypatch), gate, N, BATCH)


def test_clips_before_a_slow_one_do_not_wait_for_it(clip_files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    def slowly(entry: Any, frames: Any, put: Any) -> None:
        if entry.path == str(clip_files[LATE]):
            gate.wait()
        decode_into(entry, frames, put)

    monkeypatch.setattr("gpupipe.reading.clips.decode_into", slowly)
    files = clip_files[: LATE + 2]
    dataset = VideoList(files, labels=list(range(len(files))), frames=FRAMES, stride=3, transform=GRAY)
    check(dataset, gate, len(files), 1)
