"""What tests of recipes compare: the run folders of ``examples/run.py``."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch

__all__ = ["checkpoint", "metrics", "same"]


def checkpoint(out: Path, name: str = "last.pt") -> dict[str, Any]:
    """Return what a run saved, without its arguments."""
    loaded: dict[str, Any] = torch.load(out / name, weights_only=True)
    assert loaded.pop("arguments")["out"]
    return loaded


def metrics(out: Path) -> list[dict[str, str]]:
    """Return what does not depend on the clock, by epoch."""
    with (out / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in ("images_per_second", "waited_for_data")} for row in rows]


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
