"""Ray Train: checkpoints that fit any number of workers, notices, and machines that come and go."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from records import make, record
from torch import nn

from gpupipe.errors import ConfigError, StateError
from gpupipe.integrations import ray as ours


class Checkpoint:
    def __init__(self, files: dict[str, bytes], folder: Path):
        self._files, self._folder = files, folder

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        for name, data in self._files.items():
            (self._folder / name).write_bytes(data)
        yield str(self._folder)

    def __repr__(self) -> str:
        return "Checkpoint()"


class RayTrain(ModuleType):
    """``ray.train`` of one worker."""

    def __init__(self, folder: Path, rank: int = 0):
        super().__init__("ray.train")
        self._folder, self._rank = folder, rank
        self.reported: list[tuple[dict[str, Any], bool]] = []
        self.latest: Checkpoint | None = None
        self.info: Any = None
        self.Checkpoint = SimpleNamespace(from_directory=self._from_directory)

    def _from_directory(self, folder: str) -> Checkpoint:
        return Checkpoint({file.name: file.read_bytes() for file in Path(folder).iterdir()}, self._folder)

    def get_context(self) -> Any:
        return SimpleNamespace(get_world_rank=lambda: self._rank)

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        self.reported.append((metrics, checkpoint is not None))
        self.latest = checkpoint or self.latest

    def get_checkpoint(self) -> Checkpoint | None:
        return self.latest

    def get_preemption_info(self) -> Any:
        return self.info


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RayTrain:
    package, made = ModuleType("ray"), RayTrain(tmp_path)
    package.train = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", package)
    monkeypatch.setitem(sys.modules, "ray.train", made)
    monkeypatch.setattr(ours, "_noticed", set())
    return made


def test_a_checkpoint_restores_the_position_and_everything_else(train: RayTrain) -> None:
    before, model = make(), nn.Linear(3, 2)
    assert not ours.restore(loader=before, model=model)
    batches = iter(before)
    next(batches), next(batches)
    ours.report({"loss": 1.0}, loader=before, model=model)
    after, other = make(seed=99), nn.Linear(3, 2)
    assert ours.restore(loader=after, model=other)
    assert torch.equal(other.weight, model.weight)
    assert [record(batch) for batch in after] == [record(batch) for batch in batches]
    assert train.reported == [({"loss": 1.0}, True)]


def test_only_worker_0_writes(train: RayTrain) -> None:
    train._rank = 1
    ours.report({"loss": 1.0}, loader=make())
    assert train.reported == [({"loss": 1.0}, False)]


def test_a_wrapped_model_fits_a_single_worker(train: RayTrain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's ``prepare_model`` wraps a model only if there are several workers."""
    wrapper = type("Wrapper", (nn.Module,), {})
    monkeypatch.setattr(ours, "DistributedDataParallel", wrapper)
    wrapped = wrapper()
    wrapped.module = nn.Linear(3, 2)
    ours.report({}, model=wrapped)
    alone = nn.Linear(3, 2)
    ours.restore(model=alone)
    assert torch.equal(alone.weight, wrapped.module.weight)


def test_other_parts_and_other_checkpoints_are_refused(train: RayTrain, tmp_path: Path) -> None:
    ours.report({}, loader=make())
    with pytest.raises(StateError, match=r"Checkpoint\(\) holds loader, and restore\(\) got loader, model"):
        ours.restore(loader=make(), model=nn.Linear(1, 1))
    (tmp_path / "gpupipe.pt").unlink(missing_ok=True)
    train.latest = Checkpoint({"model.pt": b""}, tmp_path)
    with pytest.raises(StateError, match=r"no gpupipe.pt; save it with gpupipe.integrations.ray.report"):
        ours.restore(loader=make())
    with pytest.raises(ConfigError, match=r"step is a int, which has no state_dict\(\)"):
        ours.report({}, step=3)


def test_each_machine_is_announced_once(train: RayTrain) -> None:
    assert ours.preemption_notice() is None
    train.info = SimpleNamespace(preempted_node_ids=["a"])
    assert ours.preemption_notice() is train.info
    assert ours.preemption_notice() is None
    train.info = SimpleNamespace(preempted_node_ids=["a", "b"])
    assert ours.preemption_notice() is train.info
