"""Launchers that lose and get processes: torchrun starts all again, torchft keeps the others running."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("script", "needs", "ranks"), [("torchrun_job", "psutil", [4, 2, 3]), ("torchft_job", "torchft", [3, 2, 3])]
)
def test_no_sample_is_lost_or_delivered_twice(script: str, needs: str, ranks: list[int]) -> None:
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    command = [sys.executable, str(FOLDER / f"{script}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["lost"], found["twice"]) == (0, 0)
    assert found["equal_batches"] == found["batches"] > 20
    assert found["ranks"][-3:] == ranks
