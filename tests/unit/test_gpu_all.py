"""The one command for a machine with a GPU: its steps exist, and none keeps another from running."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import _gpu_figures
    import gpu_all

    return gpu_all, _gpu_figures


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("dry_run", [True, False])
def test_steps_are_files_that_are_there(scripts: Any, quick: bool, dry_run: bool) -> None:
    steps = scripts[0].steps(quick, dry_run)
    assert [s.name for s in steps[:3]] == ["doctor", "tests", "gpu_parity"]
    for step in steps:
        paths = [a for a in step.command if a.endswith(".py") or a.startswith("tests/")]
        assert all((ROOT / path).exists() for path in paths), step
    assert ("figures" in [s.name for s in steps]) is not dry_run


def test_a_step_that_fails_or_hangs_keeps_none_from_running(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = scripts[0]

    def step(name: str, code: str, seconds: float = 60) -> Any:
        return module.Step(name, [sys.executable, "-c", code], seconds)

    made = [
        step("bad", "raise SystemExit(3)"),
        step("late", "import time; time.sleep(60)", 0.5),
        step("good", "print(7)"),
    ]
    monkeypatch.setattr(module, "steps", lambda quick, dry_run: made)
    monkeypatch.setattr(sys, "argv", ["gpu_all.py", "--dry-run"])
    with pytest.raises(SystemExit) as e:
        module.main()
    out = capfd.readouterr().out
    assert e.value.code == 1 and "7" in out
    assert "bad: exit status 3" in out and "late: stopped after" in out and "good: ok" in out
    made[:2] = []
    with pytest.raises(SystemExit) as e:
        module.main()
    assert not e.value.code


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
    assert "Not measured on a GPU: loading, training, recipes, differences." in text
    assert figures.draw(tmp_path) is None
