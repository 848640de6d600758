"""The one command for a machine with a GPU: its steps exist, and none keeps another from running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

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
    there = {p.name for p in [*ROOT.glob("tests/gpu/test_*.py"), *ROOT.glob("benchmarks/gpu_*.py")]}
    assert there - {"gpu_all.py", "gpu_ready.py"} <= given
    tests = [c.name for c in scripts[0].steps(False, False)[1].commands]
    assert tests[:6] == ["streams", "sync", "decoding", "recovery", "devices", "live"] and tests[-1] == "parity"


def test_every_gpu_test_is_in_a_step_by_its_name(scripts: Any) -> None:
    """Tests of the torch engine alone are left out of the first hour, and have a step of their own."""
    wanted: dict[str, set[str]] = {}
    for step in scripts[0].steps(False, False):
        for command in step.commands:
            if "-k" in command.arguments:
                for path in (a for a in command.arguments if a.startswith("tests/gpu/")):
                    wanted.setdefault(path, set()).add(command.arguments[command.arguments.index("-k") + 1])
    both = {scripts[0].DALI, scripts[0].TORCH_ALONE}
    assert both == {"dali or not torch", "torch and not dali"}  # each name fits one of them
    assert wanted["tests/gpu/test_gpu_streams.py"] == wanted["tests/gpu/test_gpu_sync.py"] == both
    video = next(c for c in scripts[0].steps(False, False)[1].commands if c.name == "video")
    assert "av" in video.needs  # without it pytest ends with status 5, which is no failure of gpupipe's


def test_without_arguments_it_takes_twelve_minutes_and_says_most(scripts: Any) -> None:
    first = scripts[0].first_steps(False, False)
    assert [step.name for step in first] == ["smoke", "tests", "loader", "parity"]
    assert sum(step.seconds for step in first) <= 12 * 60
    by_name = {c.name: c.arguments for step in first for c in step.commands}
    assert by_name["gpu_loader"][-2:] == ("--only", "main")
    assert by_name["gpu_parity"][-2:] == ("--only", "photographs")
    for step in first:
        for command in step.commands:
            assert command.seconds > 0
            if "--seconds" in command.arguments:
                assert float(command.arguments[command.arguments.index("--seconds") + 1]) < step.seconds


@pytest.mark.part(of=3)
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


def test_tests_whose_time_was_up_are_no_failure(scripts: Any) -> None:
    module = scripts[0]
    ended = (sys.executable, "-c", "raise SystemExit(2)")
    step = module.Step("s", (module.Command("a", ended, ("pytest",)), module.Command("b", ended)), 60)
    outcome = module.run(step, dict(os.environ), False)
    assert outcome.left_out == ("a: its time was up before the last test",)
    assert outcome.wrong == ("b: exit status 2",)


def test_a_step_tells_pytest_how_long_it_may_take(scripts: Any, capfd: pytest.CaptureFixture[str]) -> None:
    module = scripts[0]
    code = "import os; print('told', os.environ['GPUPIPE_TEST_SECONDS'])"
    step = module.Step("tests", (module.Command("a", (sys.executable, "-c", code), seconds=40.0),), 60)
    assert str(module.run(step, dict(os.environ), False)) == "ok"
    assert "told 25.0" in capfd.readouterr().out


class TestReport:
    """The one file and the last lines."""

    TESTS: ClassVar[dict[str, Any]] = {"outcomes": {"tests/gpu/a.py::x": "passed", "tests/gpu/a.py::y": "skipped: no"}}
    LOADER: ClassVar[dict[str, Any]] = {
        "stages": {
            "main": {
                "gpupipe, DALI engine": {"median_images_per_second": 9800.4},
                "DALI by hand": {"to_first": {"median": 0.99}},
            }
        },
    }
    DECODERS: ClassVar[dict[str, Any]] = {
        "race": {"a": {"bytes": 0, "batches": 700}, "b": {"bytes": 0, "batches": 500}},
        "decoders": {"fancy": {"4:2:0, load 0": {"decoded_by": "GPU"}, "4:4:4, load 1": {"decoded_by": "GPU or CPU"}}},
    }
    PARITY: ClassVar[dict[str, Any]] = {"rows": {"crop": {"max": 3.0, "mean": 0.1, "over_1": 0.0}}}

    @pytest.fixture
    def report(self, scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        import _gpu_report

        monkeypatch.setattr(_gpu_report, "asked_facts", lambda: {"machine": {"gpus": ["some GPU"]}, "doctor": []})
        made = _gpu_report.Report(tmp_path)
        made._began -= 1  # files may be a little older than the clock says
        for name, result in (("tests", self.TESTS), ("loader", self.LOADER), ("decoders", self.DECODERS)):
            (tmp_path / f"gpu_{name}.json").write_text(json.dumps(result))
        (tmp_path / "gpu_parity.json").write_text(json.dumps(self.PARITY))
        return made

    def test_a_good_run(self, scripts: Any, report: Any, tmp_path: Path) -> None:
        for name in ("smoke", "tests"):
            report.add(name, scripts[0].Outcome(seconds=12.4))
        assert report.passed
        assert report.lines()[-2:] == [
            "PASS  tests 1 of 1, no byte changed in 1,200 batches, decoded by the GPU, "
            "9,800 images/s = 1.01 of DALI by hand",
            f'{tmp_path / "gpu_report.json"} holds everything: please attach it to a new issue "GPU report".',
        ]
        found = json.loads((tmp_path / "gpu_report.json").read_text())
        assert found["verdict"].startswith("PASS") and found["machine"]["gpus"] == ["some GPU"]
        assert found["steps"]["smoke"] == {"wrong": [], "left_out": [], "seconds": 12.4}
        assert found["tests"] == {"counts": {"passed": 1, "skipped": 1}, "failed": {}}
        assert found["results"]["gpu_loader"] == self.LOADER

    def test_a_step_that_fails(self, scripts: Any, report: Any, tmp_path: Path) -> None:
        """The first one is named, and of tests the first that failed, with the last line of its error."""
        report.add("smoke", scripts[0].Outcome(left_out=("doctor: left out, rich is not installed",)))
        assert report.passed
        report.add("tests", scripts[0].Outcome(wrong=("streams: exit status 1",)))
        report.add("loader", scripts[0].Outcome(wrong=("gpu_loader: stopped after 5 s",)))
        assert not report.passed and report.lines()[-2] == "FAIL  tests: streams: exit status 1"
        why = (
            ">       assert a == b\nE       AssertionError: 1 is not 2\nE       assert 1 == 2\n\na.py:5: AssertionError"
        )
        outcomes = {**self.TESTS["outcomes"], "tests/gpu/a.py::z": f"failed: {why}"}
        (tmp_path / "gpu_tests.json").write_text(json.dumps({"outcomes": outcomes}))
        assert report.lines()[-2] == "FAIL  tests: tests/gpu/a.py::z: AssertionError: 1 is not 2"
        assert report.to_dict()["tests"]["failed"] == {"tests/gpu/a.py::z": why}

    @pytest.mark.thorough
    def test_nothing_of_another_run_is_reported(self, scripts: Any, tmp_path: Path) -> None:
        """Result files lie in the repository, of other machines."""
        (tmp_path / "gpu_loader.json").write_text(json.dumps(self.LOADER))
        (tmp_path / "video_clips_gpu.json").write_text("{}")
        os.utime(tmp_path / "gpu_loader.json", (1, 1))
        report = scripts[0].Report(tmp_path)
        report.add("loader", scripts[0].Outcome())
        assert report.lines()[-2] == "PASS  loader" and report.to_dict()["results"] == {}

    @pytest.mark.parametrize(
        ("said", "engines"), [("JPEG : 0 %", True), ("JPEG : N/A", False), ("Gpu : 0 %", None), (None, None)]
    )
    def test_jpeg_engines(
        self, scripts: Any, said: str | None, engines: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import _gpu_report

        monkeypatch.setenv("PATH", str(tmp_path))
        if said is not None:
            program(tmp_path / "nvidia-smi", f"echo '        {said}'")
        assert _gpu_report.jpeg_engines() is engines

    @pytest.mark.thorough
    @pytest.mark.slow
    def test_the_facts_of_this_machine(self, scripts: Any) -> None:
        import _gpu_report

        found = _gpu_report.asked_facts()
        assert found.keys() == {"machine", "driver", "versions", "doctor", "jpeg_engines"}
        assert found["machine"]["cores"] >= 1 and "torch" in found["versions"]


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


def test_make_gpu_installs_nothing_where_the_driver_is_too_old(tmp_path: Path) -> None:
    program(tmp_path / "nvidia-smi", "echo 'NVIDIA T4, 470.1'")
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["make", "gpu", f"VENV={tmp_path / 'venv'}"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode and "driver 470.1 is older than 580" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_the_readme_says_never_until_a_gpu_was_there(scripts: Any, tmp_path: Path) -> None:
    figures = scripts[1]
    assert figures.gpu(tmp_path).startswith("**No figures from a GPU yet.**")
    result: dict[str, Any] = {
        "machine": {"gpus": [], "cpu": "some CPU", "cores": 2, "date": "2030-01-01"},
        "bus": {"gigabytes_per_second": 50.0},
        "batches": {"4 MB": {"ways": {"ring": {"gigabytes_per_second": 21.04, "milliseconds_added_to_compute": 0.5}}}},
    }
    (tmp_path / "gpu_copy.json").write_text(json.dumps(result))
    assert figures.gpu(tmp_path).startswith("**No figures from a GPU yet.**")  # it was tried out on a CPU
    result["machine"]["gpus"] = ["some GPU"]
    (tmp_path / "gpu_copy.json").write_text(json.dumps(result))
    text = figures.gpu(tmp_path)
    assert "| 4 MB | ring | 21.0 | 0.50 |" in text and "No figures" not in text
    assert "Not measured on a GPU: decoding, loading, training, recipes, clips, differences." in text
    assert figures.draw(tmp_path) is None
