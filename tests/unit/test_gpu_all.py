"""The one command for a machine with a GPU: its steps exist, and none keeps another from running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from interpreter import Interpreter

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_all

    return gpu_all


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("dry_run", [True, False])
def test_steps_are_files_that_are_there_and_fit_into_ten_minutes(scripts: Any, quick: bool, dry_run: bool) -> None:
    steps = scripts.steps(quick, dry_run)
    assert [s.name for s in steps[:6]] == ["smoke", "tests", "loader", "parity", "training", "copy"]
    for step in steps:
        assert 0 < step.seconds <= scripts.CALL < 600
        for command in step.commands:
            paths = [a for a in command.arguments if a.endswith(".py") or a.startswith("tests/")]
            assert paths or command.name == "doctor"
            assert all((ROOT / path).exists() for path in paths), command
            planned = [a for a in command.arguments if a == "--seconds"]
            if planned and not command.name.startswith("recipes"):  # a script ends by itself before it is stopped
                assert float(command.arguments[command.arguments.index("--seconds") + 1]) < step.seconds
    assert ("figures" in [s.name for s in steps]) is not dry_run


def test_every_gpu_test_and_every_gpu_benchmark_is_part_of_a_step(scripts: Any) -> None:
    commands = [c for s in scripts.steps(False, False) for c in s.commands]
    given = {Path(a).name for c in commands for a in c.arguments}
    there = {p.name for p in [*ROOT.glob("tests/gpu/test_*.py"), *ROOT.glob("benchmarks/gpu_*.py")]}
    assert there - {"gpu_all.py", "gpu_ready.py"} <= given
    tests = [c.name for c in scripts.steps(False, False)[1].commands]
    assert tests[:6] == ["streams", "sync", "decoding", "recovery", "devices", "live"] and tests[-1] == "parity"


def test_every_gpu_test_is_in_a_step_by_its_name(scripts: Any) -> None:
    """Tests of the torch engine alone are left out of the first hour, and have a step of their own."""
    wanted: dict[str, set[str]] = {}
    for step in scripts.steps(False, False):
        for command in step.commands:
            if "-k" in command.arguments:
                for path in (a for a in command.arguments if a.startswith("tests/gpu/")):
                    wanted.setdefault(path, set()).add(command.arguments[command.arguments.index("-k") + 1])
    both = {scripts.DALI, scripts.TORCH_ALONE}
    assert both == {"dali or not torch", "torch and not dali"}  # each name fits one of them
    assert wanted["tests/gpu/test_gpu_streams.py"] == wanted["tests/gpu/test_gpu_sync.py"] == both
    video = next(c for c in scripts.steps(False, False)[1].commands if c.name == "video")
    assert "av" in video.needs  # without it pytest ends with status 5, which is no failure of gpupipe's


@pytest.mark.part(of=3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "script", ["gpu_decoders", "gpu_loader", "gpu_parity", "gpu_training", "video_clips", "recipes"]
)
def test_every_argument_of_a_step_is_one_that_its_script_has(scripts: Any, script: str, warm: Interpreter) -> None:
    """What a step is given on the machine that matters is tried here, as far as to its refusal."""
    (command,) = [c for s in scripts.steps(False, False) for c in s.commands if c.name == script]
    assert command.arguments[0] == sys.executable
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = warm.run(*command.arguments[1:], "--help", env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    flags = [a for a in command.arguments if a.startswith("--")]
    usage = done.stdout.partition("\n\n")[0]  # the docstring below names flags, too
    assert flags and all(f"[{flag}" in usage for flag in flags)


@pytest.mark.slow
def test_what_fails_or_hangs_or_is_not_there_keeps_nothing_from_running(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = scripts

    def command(name: str, code: str, **of: Any) -> Any:
        return module.Command(name, (sys.executable, "-c", code), **of)

    made = [
        module.Step("bad", (command("one", "raise SystemExit(3)"), command("two", "print(6 + 1)")), 60),
        module.Step("late", (command("slow", "import time; time.sleep(60)"), command("then", "print(8)")), 1.8),
        module.Step(
            "short", (command("slow", "import time; time.sleep(60)", seconds=1.2), command("b", "print(9)")), 60
        ),
        module.Step("poor", (command("c", "print(5)", needs=("gpupipe_is_not_there",)),), 60),
        module.Step("blind", (command("d", "print(4)", cuda=True),), 60),
    ]
    monkeypatch.setattr(module, "steps", lambda quick, dry_run: made)
    monkeypatch.setattr(sys, "argv", ["gpu_all.py", "--dry-run", "--all"])
    with pytest.raises(SystemExit) as e:
        module.main()
    out = capfd.readouterr().out
    assert e.value.code == 1
    assert "bad: one: exit status 3\n" in out and "\n7\n" in out
    assert "late: slow: stopped after 2 s; then: not begun, no time" in out and "\n8\n" not in out
    assert "short: slow: stopped after 1 s\n" in out and "\n9\n" in out
    assert (
        "poor: c: left out, gpupipe_is_not_there is not installed" in out
        and "blind: d: left out, it needs a GPU" in out
    )
    assert out.rstrip().splitlines()[-1].startswith("FAIL  bad: one: exit status 3  (tried out")
    made[:3] = []
    with pytest.raises(SystemExit) as e:
        module.main()
    assert not e.value.code


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ("echo 'NVIDIA H200, 580.95.05'", 0, "NVIDIA H200, driver 580.95.05\nmeasured with DALI for CUDA 13"),
        ("echo 'NVIDIA A100-SXM4-40GB, 550.54'", 1, "driver 550.54 is older than 580"),
        (
            "echo 'NVIDIA-SMI has failed because it could not communicate'; exit 9",
            1,
            "nvidia-smi failed: NVIDIA-SMI has",
        ),
        (None, 1, "nvidia-smi is not found"),
    ],
)
def test_the_driver_is_asked_before_anything_is_downloaded(
    answer: str | None, status: int, said: str, tmp_path: Path
) -> None:
    if answer is not None:
        program(tmp_path / "nvidia-smi", answer)
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu_ready.py"], env={"PATH": str(tmp_path)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status and said in done.stdout + done.stderr
