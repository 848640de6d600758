"""The examples for segmentation and detection learn, and a run that was stopped ends where an undisturbed one ends."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import Interpreter

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FIXED = ("--device", "cpu", "--epochs", 2, "--engine", "torch", "--workers", 0, "--warmup", 0.2, "--save-every", 4)


def run(warm: Interpreter, script: str, out: Path, *arguments: object) -> list[dict[str, str]]:
    """Metrics of each epoch that do not depend on the clock."""
    done = warm.run(EXAMPLES / script, "--out", out, *FIXED, *arguments, cwd=out.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    if not (out / "metrics.csv").exists():
        return []
    with (out / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in ("images_per_second", "waited_for_data")} for row in rows]


@pytest.mark.parametrize(
    ("script", "arguments", "metric", "enough"),
    [
        ("train_segmentation.py", ("--size", 48), "mean_iou", 0.6),
        ("train_detection.py", ("--images", 40, "--batch-size", 4), "loss", -11.0),
    ],
)
def test_it_learns_and_resumes_exactly(
    script: str, arguments: tuple[object, ...], metric: str, enough: float, warm: Interpreter, tmp_path: Path
) -> None:
    whole = run(warm, script, tmp_path / "whole", *arguments)
    last = float(whole[-1][metric]) * (-1 if metric == "loss" else 1)
    assert len(whole) == 2 and last > enough
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "shapes").symlink_to(tmp_path / "whole" / "shapes")
    assert run(warm, script, tmp_path / "parts", *arguments, "--max-steps", 7) == []

    def saved(name: str) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(tmp_path / name / "last.pt", weights_only=True)
        return found

    assert saved("parts")["step"] == 4
    assert run(warm, script, tmp_path / "parts", *arguments, "--resume") == whole
    one, other = saved("whole"), saved("parts")
    assert all(torch.equal(other["model"][name], value) for name, value in one["model"].items())
    assert one["loader"] == other["loader"]
