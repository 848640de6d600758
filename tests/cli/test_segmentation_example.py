"""The example for segmentation learns, and resumes where it stopped."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from interpreter import Interpreter

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_segmentation.py"


def run(warm: Interpreter, checkpoint: Path, *arguments: object) -> list[float]:
    """Mean IoU after each epoch."""
    done = warm.run(SCRIPT, "--device", "cpu", "--size", 48, "--checkpoint", checkpoint, *arguments, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return [float(found) for found in re.findall(r"mean IoU ([\d.]+)", done.stdout)]


def test_it_learns_and_resumes_exactly(warm: Interpreter, tmp_path: Path) -> None:
    whole = run(warm, tmp_path / "whole.pt", "--epochs", 2, "--engine", "torch")
    assert len(whole) == 2 and whole[-1] > 0.6
    parts = [run(warm, tmp_path / "parts.pt", "--epochs", n, "--engine", "torch") for n in (1, 2)]
    assert parts == [whole[:1], whole[1:]]
    one, other = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("whole", "parts"))
    assert all(torch.equal(other["model"][name], value) for name, value in one["model"].items())
    assert one["loader"] == other["loader"]
