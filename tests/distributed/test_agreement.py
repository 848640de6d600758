"""Ranks whose loaders are not alike: an error on every one of them, with both sides, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from interpreter import Interpreter
from launch import launch
from support import N, write_photos

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import Arrays
from gpupipe.loader import agreement

SCRIPT = Path(__file__).with_name("agree.py")
WORLD = 3

DIFFER = {
    "seed": ["seed: rank 0 has 70; rank 1 has 71; rank 2 has 72. Next: give every rank the same seed="],
    "batch_size": ["batch_size: ranks 0, 1 have 4; rank 2 has 5. Next:"],
    "order": ["order: ranks 0, 2 have shuffled; rank 1 has sequential. Next: use the same shuffle"],
    "drop_last": ["drop_last: ranks 0, 2 have 0; rank 1 has 1. Next:"],
    "dataset": ["dataset: ranks 0, 2 have ImageFolder(", f"{N} samples", "; rank 1 has ImageFolder(", "9 samples"],
    "pipeline": ["pipeline: ranks 0, 2 have Compose(", "rank 1 has Compose(", "RandomResizedCrop"],
    "scaled": ["scaled: ranks 0, 2 have False; rank 1 has True. Next:"],
    "cache": ["cache: ranks 0, 2 have None; rank 1 has 'ram'. Next:"],
    "on_error": ["on_error: rank 0 has 'skip'; ranks 1, 2 have 'raise'. Next:"],
    "part": ["part: ranks 0, 1, 2 have Shard(rank=0, world_size=3). Next: give every rank its own"],
    "delivered": ["delivered: ranks 0, 1 have 8; rank 2 has 4. Next: load the same state on every rank"],
    "torch's own": ["batch_size: ranks 0, 1 have 2; rank 2 has 3. Next:"],
}
"""What is said on every rank."""
ALIKE = ("same", "sampler", "groups", "alone")

Said = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def said(warm: Interpreter, numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Per task: what every rank has seen."""
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("needs gloo")
    out = tmp_path_factory.mktemp("agree")
    other = write_photos(tmp_path_factory.mktemp("other"), 9)
    names = [*DIFFER, *ALIKE, "absent"]
    ranks = launch(warm, SCRIPT, WORLD, out, numbered, other, names)
    return {name: [rank[i] for rank in ranks] for i, name in enumerate(names)}


@pytest.mark.parametrize("name", DIFFER)
def test_a_difference_is_an_error_on_every_rank(said: Said, name: str) -> None:
    errors = {rank["error"] for rank in said[name]}
    assert len(errors) == 1, errors
    (error,) = errors
    for part in DIFFER[name]:
        assert part in error
    assert len(error.splitlines()) == 3, "one line for each difference"
    assert all(rank["again"] for rank in said[name]), "a second epoch was not refused"


@pytest.mark.parametrize("name", ALIKE)
def test_loaders_that_are_alike_or_differ_on_purpose_are_not_held_up(said: Said, name: str) -> None:
    ranks = said[name]
    assert [rank["error"] for rank in ranks] == [""] * WORLD
    if name == "sampler":  # each rank has what torch gives it, cut as it likes
        assert [rank["seen"] for rank in ranks] == [[*range(r, N, WORLD), *range(-N % WORLD)][:8] for r in range(WORLD)]
    if name == "alone":
        assert all(sorted(rank["seen"]) == list(range(N)) for rank in ranks)


def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(said: Said) -> None:
    first, second, late = said["absent"]
    assert (first["error"], second["error"]) == ("", "")
    assert any("rank 2 has not started this loader" in text for text in first["said"])
    assert "seed: rank 0 has 5; rank 2 has 6." in late["error"]  # it compares itself when it comes


def test_a_single_rank_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> None:
        raise AssertionError

    monkeypatch.setattr(agreement, "_store", asked)
    photos = Arrays(np.zeros((5, 8, 8, 3), np.uint8), np.arange(5), transform=T.Compose([T.ToTensor()]))
    with DataLoader(photos, batch_size=2, shuffle=True, engine="torch", device="cpu") as loader:
        assert len(list(loader)) == 3
