"""What training loops of several ranks do with a loader: accumulate gradients, stop early, evaluate exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from interpreter import Interpreter
from launch import launch
from support import N

from gpupipe.planning.order import Shuffle

SCRIPT = Path(__file__).with_name("loops.py")

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")

Runs = dict[int, dict[str, list[Any]]]


@pytest.fixture(scope="module")
def runs(warm: Interpreter, numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Per number of ranks and task: what every rank returned."""
    plan: dict[int, dict[str, list[Any]]] = {
        1: {"evaluate": [], "as two": ["accumulate", 8, 1], "as three": ["accumulate", 12, 1]},
        2: {"evaluate": [], "accumulate": ["accumulate", 2, 2], "early": []},
        3: {"evaluate": [], "accumulate": ["accumulate", 2, 2], "early": []},
    }
    found: Runs = {}
    for world, named in plan.items():
        tasks = [task or [name] for name, task in named.items()]
        ranks = launch(warm, SCRIPT, world, tmp_path_factory.mktemp("loops"), numbered, tasks)
        found[world] = {name: [rank[i] for rank in ranks] for i, name in enumerate(named)}
    return found


@pytest.mark.parametrize(("world", "alone"), [(2, "as two"), (3, "as three")])
def test_accumulated_gradients_are_those_of_one_large_batch(runs: Runs, world: int, alone: str) -> None:
    ranks = runs[world]["accumulate"]
    assert {r["steps"] for r in ranks} == {N // (2 * world)}  # of the last, odd one nothing is exchanged
    assert all(r["weights"] == ranks[0]["weights"] for r in ranks)
    assert ranks[0]["weights"] == pytest.approx(runs[1][alone][0]["weights"], rel=1e-9)


@pytest.mark.parametrize("world", [2, 3])
def test_a_rank_that_stops_early_holds_up_nobody(runs: Runs, world: int) -> None:
    ranks = runs[world]["early"]
    whole = -(-N // (2 * world))
    assert [r["batches"] for r in ranks] == [1] + [whole] * (world - 1)
    assert {r["len"] for r in ranks} == {whole}
    # The rank that stopped stands in its epoch, the others have ended it; all begin the next one together.
    assert (ranks[0]["state"]["epoch"], ranks[0]["state"]["delivered"]) == (0, 2 * world)
    assert {(r["state"]["epoch"], r["state"]["delivered"]) for r in ranks[1:]} == {(1, 0)}
    order = Shuffle(N, ranks[0]["state"]["seed"], 1).at(np.arange(N))[0].tolist()
    assert sorted(i for r in ranks for i in r["second"]) == sorted(order)


@pytest.mark.parametrize("world", [2, 3])
def test_evaluation_over_ranks_equals_that_of_one_process(runs: Runs, world: int) -> None:
    (alone,) = runs[1]["evaluate"]
    assert alone[2:] == [sum(range(N)), N]
    for sums in runs[world]["evaluate"]:
        assert sums[2:] == alone[2:]
        assert sums == pytest.approx(alone, rel=1e-12)
