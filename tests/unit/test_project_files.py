"""What forges and package indexes show agrees with the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gpupipe

ROOT = Path(__file__).resolve().parents[2]
yaml = pytest.importorskip("yaml")


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_citation_has_the_version_and_the_license() -> None:
    citation = load("CITATION.cff")
    assert citation["version"] == gpupipe.__version__
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text()


def test_ci_runs_every_promised_python_with_commands_of_the_makefile() -> None:
    jobs = load(".github/workflows/ci.yml")["jobs"]
    runs = jobs["test"]["strategy"]["matrix"]["include"]
    tested = {it["python"] for it in runs}
    project = (ROOT / "pyproject.toml").read_text()
    promised = set(re.findall(r'Python :: (3\.\d+)"', project))
    assert tested == promised | {"3.14"} and 'requires-python = ">=3.11,<3.14"' in project
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "make " in step.get("run", "")]
    assert [command.split(" ")[1] for command in commands] == ["${{", "pytest", "docs"]
    assert [it["constraints"] for it in runs if it["run"] == "test"] == ["constraints.txt"]
    assert {it["run"] for it in runs} <= set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    assert all((ROOT / it["constraints"]).is_file() for it in runs)


def test_the_oldest_versions_are_those_that_are_promised() -> None:
    oldest = dict(re.findall(r"(?m)^([\w-]+)==(\S+)$", (ROOT / ".github/oldest.txt").read_text()))
    project = (ROOT / "pyproject.toml").read_text().partition("\ndev = ")[0]
    promised = dict(re.findall(r'"([\w-]+)>=([\d.]+)', project))
    compared = oldest.keys() & promised.keys()
    assert len(compared) >= 7
    assert {name for name in compared if not f"{oldest[name]}.".startswith(f"{promised[name]}.")} == set()
