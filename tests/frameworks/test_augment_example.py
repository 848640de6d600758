"""The example that augments batches on the device, run as a command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from interpreter import Interpreter

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "lightning_augment.py"


def test_it_trains(frameworks: Interpreter) -> None:
    pytest.importorskip("lightning")
    done = frameworks.run(SCRIPT, "--accelerator", "cpu", "--epochs", 1)
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [float(loss) for loss in re.findall(r"epoch \d+  loss (\S+)  top1 \S+", done.stdout)]
    assert len(losses) == 1 and 0 < losses[0] < 2
