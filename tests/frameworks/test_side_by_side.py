"""Frameworks in two processes: every batch is that of one process without a framework, also after a resume."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from continued import judge, photos

SCRIPT = Path(__file__).with_name("side_by_side.py")
WARNED = ["ignite", "ray"]
"""Frameworks that build the loader themselves."""

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.fixture(params=["lightning", "timm", "ignite", "ray"])
def name(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"needs {request.param}")
    return str(request.param)


def start(name: str, mode: str, folder: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher = [] if name == "ray" else torchrun  # Ray starts its workers itself
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *launcher, str(SCRIPT), name, mode, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("modes", [("whole",), ("stop", "resume")])
def test_every_batch_is_that_of_a_plain_loop(name: str, modes: tuple[str, ...], tmp_path: Path) -> None:
    root = photos(tmp_path / "photos")
    (tmp_path / "notes").mkdir()
    for mode in modes:
        start(name, mode, tmp_path)
    found = judge(tmp_path / "notes", root)
    assert (found["lost"], found["twice"]) == (0, 0)
    assert found["equal_batches"] == found["batches"] > 20 and found["ranks"] == [2] * len(modes)


@pytest.mark.parametrize("name", WARNED, indirect=True)
def test_a_loader_that_the_framework_builds_is_told(name: str, tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    start(name, "careless", tmp_path)
    seen = [json.loads(file.read_text()) for file in tmp_path.glob("seen-*.json")]
    assert seen and sorted({code for codes in seen for code in codes}) == ["read-by-torch"]
