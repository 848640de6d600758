"""The one command for a machine with a GPU: its steps exist, and none keeps another from running."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from interpreter import Interpreter

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import _gpu_figures
    import gpu_all

    return gpu_all, _gpu_figures


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("dry_run", [True, False])
def test_steps_are_files_that_are_there_and_fit_into_ten_minutes(scripts: Any, quick: bool, dry_run: bool) -> None:
    steps = scripts[0].steps(quick, dry_run)
    assert [s.name for s in steps[:6]] == ["smoke", "tests", "loader", "parity", "training", "copy"]
    for step in steps:
        assert 0 < step.seconds <= scripts[0].CALL < 600
        for command in step.commands:
            paths = [a for a in command.arguments if a.endswith(".py") or a.startswith("tests/")]
            assert paths or command.name == "doctor"
            assert all((ROOT / path).exists() for path in paths), command
            planned = [a for a in command.arguments if a == "--seconds"]
            if planned and not command.name.startswith("recipes"):  # a script ends by itself before it is stopped
                assert float(command.arguments[command.arguments.index("--seconds") + 1]) < step.seconds
    assert ("figures" in [s.name for s in steps]) is not dry_run


def test_every_gpu_test_and_every_gpu_benchmark_is_part_of_a_step(scripts: Any) -> None:
    commands = [c for s in scripts[0].steps(False, False) for c in s.commands]
    given = {Path(a).name for c in commands for a in c.arguments}
    there = {p.name for p in [*ROOT.glob("tests/gpu/test_*.py"), *ROOT.glob("benchmarks/gpu_*.py")]} - {"gpu_all.py"}
    assert there <= given
    tests = [c.name for c in scripts[0].steps(False, False)[1].commands]
    assert tests[:6] == ["streams", "sync", "decoding", "recovery", "devices", "memory"] and tests[-1] == "parity"


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", ["gpu_decoders", "gpu_loader", "gpu_parity", "gpu_training", "video_clips", "recipes"]
)
def test_every_argument_of_a_step_is_one_that_its_script_has(scripts: Any, script: str, warm: Interpreter) -> None:
    """What a step is given on the machine that matters is tried here, as far as to its refusal."""
    (command,) = [c for s in scripts[0].steps(False, False) for c in s.commands if c.name == script]
    assert command.arguments[0] == sys.executable
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = warm.run(*command.arguments[1:], "--help", env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    flags = [a for a in command.arguments if a.startswith("--")]
    usage = done.stdout.partition("\n\n")[0]  # the docstring below names flags, too
    assert flags and all(f"[{flag}" in usage for flag in flags)


def test_a_benchmark_for_a_gpu_refuses_to_measure_without_one(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from _gpu_arguments import parsed, parser

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_anything.py", "--seconds", "7"])
    with pytest.raises(SystemExit, match="--device cpu tries the script out"):
        parsed(parser("What it asks.", 100))
    monkeypatch.setattr(sys, "argv", ["gpu_anything.py", "--device", "cpu", "--quick"])
    args = parsed(parser("What it asks.", 100))
    assert (args.seconds, args.quick, args.device) == (100, True, "cpu")


def test_the_list_and_a_step_by_number_or_name(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = scripts[0]
    everything = module.steps(False, False)
    assert [s.name for s in module.chosen(["2", "copy"], everything)] == ["tests", "copy"]
    monkeypatch.setattr(sys, "argv", ["gpu_all.py", "--list"])
    module.main()
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(everything)
    assert all(s.name in line and f"{s.seconds:.0f} s" in line for s, line in zip(everything, listed, strict=True))
    monkeypatch.setattr(sys, "argv", ["gpu_all.py", "--step", "0", "nothing"])
    with pytest.raises(SystemExit):
        module.main()
    assert "no such step: 0, nothing" in capsys.readouterr().err


@pytest.mark.slow
def test_what_fails_or_hangs_or_is_not_there_keeps_nothing_from_running(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = scripts[0]

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
    monkeypatch.setattr(sys, "argv", ["gpu_all.py", "--dry-run"])
    with pytest.raises(SystemExit) as e:
        module.main()
    out = capfd.readouterr().out
    assert e.value.code == 1
    assert "bad: one: exit status 3\n" in out and "\n7\n" in out
    assert "late: slow: stopped after 2 s; then: not begun, no time" in out and "\n8\n" not in out
    assert "short: slow: stopped after 1 s\n" in out and "\n9\n" in out
    assert (
        "poor: left out: c, gpupipe_is_not_there is not installed" in out
        and "blind: left out: d, it needs a GPU" in out
    )
    made[:3] = []
    with pytest.raises(SystemExit) as e:
        module.main()
    assert not e.value.code


def test_a_step_tells_pytest_how_long_it_may_take(scripts: Any, capfd: pytest.CaptureFixture[str]) -> None:
    module = scripts[0]
    code = "import os; print('told', os.environ['GPUPIPE_TEST_SECONDS'])"
    step = module.Step("tests", (module.Command("a", (sys.executable, "-c", code), seconds=40.0),), 60)
    assert module.run(step, dict(os.environ), False) == "ok"
    assert "told 25.0" in capfd.readouterr().out


def test_the_readme_says_never_until_a_gpu_was_there(scripts: Any, tmp_path: Path) -> None:
    figures = scripts[1]
    assert figures.gpu(tmp_path).startswith("**Never measured on a GPU.**")
    result: dict[str, Any] = {
        "machine": {"gpus": [], "cpu": "some CPU", "cores": 2, "date": "2030-01-01"},
        "bus": {"gigabytes_per_second": 50.0},
        "batches": {"4 MB": {"ways": {"ring": {"gigabytes_per_second": 21.04, "milliseconds_added_to_compute": 0.5}}}},
    }
    (tmp_path / "gpu_copy.json").write_text(json.dumps(result))
    assert figures.gpu(tmp_path).startswith("**Never measured on a GPU.**")  # it was tried out on a CPU
    result["machine"]["gpus"] = ["some GPU"]
    (tmp_path / "gpu_copy.json").write_text(json.dumps(result))
    text = figures.gpu(tmp_path)
    assert "| 4 MB | ring | 21.0 | 0.50 |" in text and "Never measured" not in text
    assert "Not measured on a GPU: decoding, loading, training, recipes, clips, differences." in text
    assert figures.draw(tmp_path) is None
