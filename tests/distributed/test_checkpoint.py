"""The loader in ``torch.distributed.checkpoint``: saved on two ranks, loaded on another number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from interpreter import Interpreter
from launch import launch
from support import N
from torch.distributed.checkpoint.stateful import Stateful

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import Arrays
from gpupipe.planning.order import Shuffle

SCRIPT = Path(__file__).with_name("loops.py")

needs_gloo = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


@pytest.fixture(scope="module")
def saved(warm: Interpreter, numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The folder of the checkpoints that two ranks made, and what each rank says of it."""
    out = tmp_path_factory.mktemp("saved")
    return out, [tasks[0] for tasks in launch(warm, SCRIPT, 2, out, numbered, [["save"]])]


@needs_gloo
@pytest.mark.parametrize("world", [1, 3])
def test_two_ranks_save_and_another_number_of_them_goes_on(
    warm: Interpreter, numbered: Path, saved: tuple[Path, list[Any]], world: int, tmp_path: Path
) -> None:
    folder, before = saved
    assert before[0]["state"] == before[1]["state"]
    assert (before[0]["state"]["world_size"], before[0]["state"]["delivered"]) == (2, 16)
    ranks = [tasks[0] for tasks in launch(warm, SCRIPT, world, tmp_path, numbered, [["load", folder]])]
    order = Shuffle(N, 5, 0).at(np.arange(N))[0].tolist()
    assert sorted(before[0]["done"] + before[1]["done"]) == sorted(order[:16])
    for form in (0, 1):
        steps = zip(*(rank[form] for rank in ranks), strict=True)
        assert [i for parts in steps for part in parts for i in part] == order[16:]


@pytest.mark.filterwarnings(r"ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning")
def test_one_process_needs_no_process_group(tmp_path: Path) -> None:
    def loader() -> DataLoader:
        dataset = Arrays(np.zeros((9, 8, 8, 3), np.uint8), np.arange(9), transform=T.Compose([T.ToTensor()]))
        return DataLoader(dataset, batch_size=2, shuffle=True, seed=1, engine="torch", device="cpu")

    one, two = loader(), loader()
    assert isinstance(one, Stateful)
    iterator = iter(one)
    next(iterator), next(iterator)
    dcp.save({"loader": one}, checkpoint_id=tmp_path, no_dist=True)
    dcp.load({"loader": two}, checkpoint_id=tmp_path, no_dist=True)
    assert two.state_dict() == one.state_dict()
    assert [b[1].tolist() for b in two] == [b[1].tolist() for b in iterator]
