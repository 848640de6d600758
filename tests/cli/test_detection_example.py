"""The example for detection learns, and a run that was stopped ends where an undisturbed one ends."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from interpreter import Interpreter

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_detection.py"


def run(warm: Interpreter, checkpoint: Path, *arguments: object) -> list[float]:
    """Loss at the end of each epoch."""
    fixed = ("--device", "cpu", "--images", 40, "--batch-size", 4, "--epochs", 2, "--engine", "torch", "--workers", 0)
    done = warm.run(SCRIPT, *fixed, "--save-every", 4, "--checkpoint", checkpoint, *arguments, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return [float(found) for found in re.findall(r"loss ([\d.]+)", done.stdout)]


def test_it_learns_and_resumes_exactly(warm: Interpreter, tmp_path: Path) -> None:
    whole = run(warm, tmp_path / "whole.pt")
    assert len(whole) == 2 and whole[-1] < 6
    assert run(warm, tmp_path / "parts.pt", "--max-steps", 7) == []
    middle = torch.load(tmp_path / "parts.pt", weights_only=True)
    assert (middle["step"], middle["loader"]["delivered"]) == (4, 16)
    assert run(warm, tmp_path / "parts.pt") == whole
    one, other = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("whole", "parts"))
    assert all(torch.equal(other["model"][name], value) for name, value in one["model"].items())
    assert one["loader"] == other["loader"]
