"""The examples for frameworks, run as commands: as they are, and stopped in the middle of an epoch and resumed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import Interpreter

from gpupipe.testing.photos import make_photos

ROOT = Path(__file__).resolve().parents[2]
CPU = {"lightning": ["--accelerator", "cpu"], "accelerate": ["--cpu"]}

pytestmark = pytest.mark.parametrize("framework", ["lightning", "accelerate"])


@pytest.fixture
def run(framework: str, frameworks: Interpreter) -> Callable[..., list[str]]:
    """Runs the example with these arguments; the lines that tell of epochs."""
    pytest.importorskip(framework)

    def start(out: Path, *arguments: object) -> list[str]:
        script = ROOT / "examples" / f"{framework}_imagenet.py"
        done = frameworks.run(script, "--out", out, *CPU[framework], *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        return re.findall(r"epoch \d+  val_loss .*", done.stdout)

    return start


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 classes: 24 pictures to train on, 10 to validate on."""
    root = tmp_path_factory.mktemp("data")
    make_photos(root / "train", classes=2, per_class=12, seed=0, sizes=((64, 80), (80, 64)))
    make_photos(root / "val", classes=2, per_class=5, seed=1, sizes=((64, 80), (80, 64)))
    return root


def weights(framework: str, out: Path) -> dict[str, Any]:
    if framework == "lightning":
        return dict(torch.load(out / "last.ckpt", weights_only=True)["state_dict"])
    from safetensors.torch import load_file

    return dict(load_file(out / "checkpoint" / "model.safetensors"))


@pytest.mark.part(of=2)
def test_without_data_it_makes_some_and_learns(run: Callable[..., list[str]], tmp_path: Path) -> None:
    lines = run(tmp_path, "--size", 96)
    assert len(lines) == 2 and all("images 32" in line for line in lines)
    right = re.search(r"top1 (\S+)", lines[-1])
    assert right is not None and float(right[1]) > 0.5  # of four classes


@pytest.mark.part(of=2)
def test_a_run_stopped_in_the_middle_of_an_epoch_ends_where_a_whole_one_ends(
    framework: str, run: Callable[..., list[str]], data: Path, tmp_path: Path
) -> None:
    fixed = (data, "--size", 32, "--batch-size", 6, "--save-every", 3)
    whole = run(tmp_path / "whole", *fixed)
    assert len(whole) == 2 and all("images 10" in line for line in whole)
    first = run(tmp_path / "parts", *fixed, "--max-steps", 3)
    assert first == []  # 4 steps an epoch
    assert run(tmp_path / "parts", *fixed, "--resume") == whole
    one, two = weights(framework, tmp_path / "whole"), weights(framework, tmp_path / "parts")
    assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
