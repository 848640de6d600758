"""The loop of docs/ddp.md continues after a crash as if nothing had happened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpupipe.testing.photos import make_photos

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ddp.md"

DIES = """
import os, runpy, signal
from pathlib import Path
from torch.optim.optimizer import register_optimizer_step_post_hook

def die(*_):
    global steps
    steps += 1
    if steps == 7 and os.environ["RANK"] == "1" and not Path("crashed").exists():
        Path("crashed").touch()
        os.kill(os.getpid(), signal.SIGKILL)

steps = 0
register_optimizer_step_post_hook(die)
runpy.run_path("train.py", run_name="__main__")
"""
"""Runs the script of the page. Rank 1 dies in the middle of the second epoch, once."""


def trained(folder: Path, script: str, *options: str) -> dict[str, Any]:
    """Return ``last.pt`` of a run of torchrun with two processes."""
    (folder / "photos").symlink_to(folder.parent / "photos")
    (folder / "train.py").write_text("".join(re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    (folder / "dies.py").write_text(DIES)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([*command, script], cwd=folder, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    state: dict[str, Any] = torch.load(folder / "last.pt")
    return state


@pytest.mark.thorough
@pytest.mark.timeout(420)
def test_the_loop_survives_a_crash(tmp_path: Path) -> None:
    make_photos(tmp_path / "photos" / "train", classes=3, per_class=16, sizes=((120, 160), (160, 120)))
    for name in ("whole", "crashed"):
        (tmp_path / name).mkdir()
    expected = trained(tmp_path / "whole", "train.py")
    found = trained(tmp_path / "crashed", "dies.py", "--max-restarts", "1")
    assert (tmp_path / "crashed" / "crashed").exists()
    assert found["step"] == expected["step"] == 12
    assert found["loader"] == expected["loader"]
    for name, weights in expected["model"].items():
        assert found["model"][name].equal(weights), name
