"""Results of benchmarks are those of a commit of this history, and pages do not show outdated ones in silence."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = 'MEASURES = ("core",)\nprint(1)\n'


class Checkout:
    """A repository with a script ``speed.py`` that measures ``core/``, and results."""

    def __init__(self, root: Path):
        self.root, self.results = root, root / "benchmarks" / "results"
        self.git("init", "-q")
        self.write("benchmarks/speed.py", SCRIPT)
        self.write("core/a.py", "x = 1\n")
        self.first = self.commit()

    def git(self, *arguments: str) -> str:
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(self.root), *name, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")
        return self.git("rev-parse", "HEAD")

    def result(self, name: str, commit: str | None) -> None:
        self.write(f"benchmarks/results/{name}.json", json.dumps({"machine": {"commit": commit}}))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import _freshness

    return _freshness


@pytest.fixture
def checkout(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return Checkout(tmp_path)


def test_a_result_names_a_commit_of_this_history(module: Any, checkout: Checkout) -> None:
    checkout.git("checkout", "-q", "-b", "other")
    other = checkout.commit()
    checkout.git("checkout", "-q", "-")
    checkout.result("speed_cpu", checkout.first)
    assert module.judge(checkout.results, {"speed_cpu"}) == ([], [])
    for name, commit in (("a", None), ("b", f"{checkout.first}+"), ("c", other)):
        checkout.result(name, commit)
    wrong, outdated = module.judge(checkout.results, {"speed_cpu"})
    assert [line.partition(":")[0] for line in wrong] == ["a", "b", "c"]
    assert "names no commit" in wrong[0] and "in no commit" in wrong[1] and "no ancestor" in wrong[2]
    assert outdated == []


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("core/a.py", '"""Says more."""\nx = 1  # why\n', False),
        ("other/b.py", "y = 1\n", False),
        ("benchmarks/speed.py", SCRIPT.replace('"core",', '"core", "other"'), False),
        ("core/a.py", "x = 2\n", True),
        ("core/new.py", "y = 1\n", True),
        ("benchmarks/speed.py", SCRIPT + "print(2)\n", True),
    ],
)
def test_code_that_a_result_depends_on(
    name: str, text: str, changed: bool, module: Any, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.result("speed_cpu", checkout.first)
    checkout.write(name, text)
    head = checkout.commit()
    outdated = [f"speed_cpu: {name} changed since {checkout.first}"] if changed else []
    assert module.judge(checkout.results, {"speed_cpu"}) == ([], outdated)
    assert module.judge(checkout.results, set()) == ([], [])  # no page shows it
    monkeypatch.setattr(module, "facts", lambda: {"commit": head})
    module.confirm(checkout.results / "speed_cpu.json", "only a name")
    assert module.judge(checkout.results, {"speed_cpu"}) == ([], [])


def test_every_result_on_a_page_has_a_script_that_names_what_it_measures(module: Any) -> None:
    import figures
    from _figure_tables import SHOWN

    for page, marks in figures.PAGES.items():
        figures.written((ROOT / page).read_text(), marks)
    assert len(SHOWN) > 20
    for name in sorted(SHOWN):
        assert all((ROOT / path).exists() for path in module.measures(module.script_of(name))), name
