"""The one contract, for every engine, device and kind of dataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clips
import pytest
from store import Store, store
from support import ENGINES, KINDS, Case

from gpupipe import DataLoader
from gpupipe.datasets import Remote
from gpupipe.sources.remote import clients, files


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def case(engine: str, kind: str, device: str, numbered: Path) -> Iterator[Case]:
    """Every engine with every kind of dataset on every device."""
    it = Case(engine, kind, device, numbered)
    yield it
    it.close()


@pytest.fixture(params=["torch", "dali"])
def decoding(request: pytest.FixtureRequest, kind: str, device: str, numbered: Path) -> Iterator[Case]:
    """Likewise, of the engines that decode."""
    it = Case(request.param, kind, device, numbered)
    yield it
    it.close()


@pytest.fixture(scope="session")
def clip_files(videos: dict[str, Path]) -> list[Path]:
    """The videos ``clips.NAMES``. Read only."""
    return [videos[name] for name in clips.NAMES]


@pytest.fixture
def clip_loaders() -> Iterator[Any]:
    """``(dataset, engine, **arguments)`` to a loader of shuffled batches, which the test need not close."""
    made: list[DataLoader] = []

    def make(dataset: Any, engine: Any, **arguments: Any) -> DataLoader:
        given = {"batch_size": clips.BATCH, "shuffle": True, "seed": clips.SEED, "device": "cpu", **arguments}
        made.append(DataLoader(dataset, engine=engine, **given))
        return made[-1]

    yield make
    while made:
        made.pop().close()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with store() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(files, "_shared", {})  # no connections of a test before
        monkeypatch.setattr(clients, "REMOTE_WAITS", (0.01, 0.02, 0.05, 0.1, 0.2))
        yield found


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    """Options of this test alone: its connections and its blocks are no other one's."""
    return Remote(cache_folder=tmp_path / "blocks", block_bytes=4096, timeout=5.0)
