"""Where a process is among those that train together."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gpupipe import Shard, World
from gpupipe.errors import ConfigError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0"}


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*TORCHRUN, *SLURM, "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "ray.train", raising=False)
    return monkeypatch


def put(env: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        env.setenv(name, value)


def initialize(env: pytest.MonkeyPatch) -> None:
    for name, value in (("is_available", True), ("is_initialized", True), ("get_rank", 1), ("get_world_size", 2)):
        env.setattr(dist, name, lambda value=value: value)


class RayTrain:
    """``ray.train``, as a worker or a driver sees it."""

    def __init__(self, works: bool):
        self._works = works

    def get_context(self) -> Any:
        if not self._works:
            raise RuntimeError("get_context() cannot be used outside of a training function")
        return SimpleNamespace(get_world_rank=lambda: 3, get_world_size=lambda: 6, get_local_rank=lambda: 1)


def test_alone(env: pytest.MonkeyPatch) -> None:
    assert World.here() == World(0, 1, 0, "one process")
    assert Shard.from_env() == Shard(0, 1)


def test_each_launcher_is_found_and_the_nearest_is_believed(env: pytest.MonkeyPatch) -> None:
    put(env, **SLURM)
    assert World.here() == World(2, 4, 0, "SLURM")
    put(env, **TORCHRUN)  # started by a task of SLURM
    assert World.here() == World(5, 8, 1, "torchrun")
    env.setitem(sys.modules, "ray.train", RayTrain(works=False))
    assert World.here().source == "torchrun"
    env.setitem(sys.modules, "ray.train", RayTrain(works=True))
    assert World.here() == World(3, 6, 1, "Ray Train")
    initialize(env)
    assert World.here() == World(1, 2, 1, "torch.distributed")
    assert Shard.from_env() == Shard(1, 2)


def test_a_batch_script_of_slurm_is_one_process(env: pytest.MonkeyPatch) -> None:
    """It knows of the job's tasks, but ``srun`` did not start it as one of them."""
    put(env, SLURM_PROCID="0", SLURM_NTASKS="4", SLURM_LOCALID="0")
    assert World.here().world_size == 1


@pytest.mark.parametrize(
    ("rank", "world"),
    [(None, "8"), ("three", "8"), ("1.0", "2"), ("", ""), ("8", "8"), ("-1", "8"), ("0", "0")],
)
@pytest.mark.parametrize("names", [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")])
def test_half_a_setting_is_an_error_and_not_one_rank(
    env: pytest.MonkeyPatch, names: tuple[str, str], rank: str | None, world: str | None
) -> None:
    for name, value in zip(names, (rank, world), strict=True):
        if value is not None:
            env.setenv(name, value)
    with pytest.raises(ConfigError, match=r"RANK|SLURM_PROCID|world_size"):
        Shard.from_env()


def test_a_rank_without_a_number_of_ranks_is_an_error(env: pytest.MonkeyPatch) -> None:
    put(env, RANK="3")
    with pytest.raises(ConfigError, match="RANK='3' and WORLD_SIZE=None must both be set"):
        World.here()


@pytest.mark.parametrize(("gpus", "local", "expected"), [(8, 3, "cuda:3"), (1, 3, "cuda:0"), (0, 3, "cpu")])
def test_the_device_is_the_gpu_of_this_process(env: pytest.MonkeyPatch, gpus: int, local: int, expected: str) -> None:
    env.delitem(sys.modules, "accelerate.state", raising=False)
    env.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    env.setattr(torch.cuda, "device_count", lambda: gpus)
    assert str(World(3, 8, local).device) == expected


def test_more_processes_than_gpus_are_refused(env: pytest.MonkeyPatch) -> None:
    env.delitem(sys.modules, "accelerate.state", raising=False)
    env.setattr(torch.cuda, "is_available", lambda: True)
    env.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="process 2 of this machine has no GPU of its own: it sees 2"):
        World(2, 4, 2).device  # noqa: B018


@pytest.mark.parametrize("framework", ["ray", "accelerate"])
def test_the_device_is_the_one_that_a_framework_chose(env: pytest.MonkeyPatch, framework: str) -> None:
    env.setattr(torch.cuda, "is_available", lambda: True)
    chosen = torch.device("cuda", 5)
    state = SimpleNamespace(PartialState=type("PartialState", (), {"_shared_state": {"on": 1}, "device": chosen}))
    env.setitem(sys.modules, "accelerate.state", state)
    if framework == "ray":
        state.PartialState._shared_state = {}
        env.setitem(sys.modules, "ray.train", RayTrain(works=True))
        env.setitem(sys.modules, "ray.train.torch", SimpleNamespace(get_device=lambda: chosen))
    assert World(1, 8, 1).device == chosen
