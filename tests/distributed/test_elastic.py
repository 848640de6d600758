"""4, then 2, then 3 ranks, of which one dies each time: every sample of an epoch is trained on once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch.distributed as dist
from interpreter import Interpreter
from launch import run_ranks
from support import N

SCRIPT = Path(__file__).with_name("elastic.py")
EPOCHS = 2
LEGS: list[tuple[int, list[int] | None]] = [(4, [1, 1]), (2, [0, 2]), (3, [2, 1]), (3, None)]
"""(ranks, who dies in which step)."""

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


@pytest.mark.part(of=2)
@pytest.mark.parametrize(
    ("engine", "sampler", "batches"),
    [
        ("torch", False, (2, 4, 3)),  # as close to one global batch as the ranks allow
        ("dali", True, (2, 2, 2)),  # the same on each rank
    ],
)
def test_every_sample_of_an_epoch_arrives_once(
    engine: str, sampler: bool, batches: tuple[int, ...], warm: Interpreter, numbered: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint.json"
    taken = 0
    for leg, (world, dies) in enumerate(LEGS):
        settings = {"engine": engine, "sampler": sampler, "batch_size": (*batches, batches[-1])[leg]}
        arguments = json.dumps([numbered, checkpoint, settings, EPOCHS, dies], default=str)
        run_ranks(warm, world, SCRIPT, arguments, dies=dies and dies[0])
        kept = json.loads(checkpoint.read_text())
        assert dies is None or kept["step"] == dies[1]
        now = sum(map(len, kept["done"]))
        assert now > taken
        taken = now
    assert [sorted(epoch) for epoch in kept["done"]] == [list(range(N))] * EPOCHS
