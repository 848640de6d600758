"""Every script of the corpus, with torch's DataLoader and with gpupipe's; ``known.py`` has what is not done yet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchvision")
pytest.importorskip("timm")

import gpupipe

from . import corpus  # noqa: F401 - fills SCRIPTS
from .harness.judge import CHECKS, Judge
from .harness.script import SCRIPTS, Script
from .harness.tree import make_tree
from .known import KNOWN


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    @cache
    def tree(copies: int) -> Path:
        return make_tree(tmp_path_factory.mktemp(f"copies{copies}"), copies)

    return Judge(tree, gpupipe.DataLoader)


def cases() -> Iterator[Any]:
    """Every check of every script; of one that is known not to run, only that. ``make test`` has every twentieth."""
    for number, script in enumerate(SCRIPTS.values()):
        known = KNOWN.get(script.name, {})
        for check in ("runs",) if "runs" in known else CHECKS:
            marks = [pytest.mark.slow, pytest.mark.thorough] if check == "distribution" else []
            if number % 20:
                marks.append(pytest.mark.thorough)
            if check in known:
                marks.append(pytest.mark.xfail(strict=True, raises=AssertionError, reason=known[check]))
            yield pytest.param(script, check, id=f"{script.name}-{check}", marks=marks)


@pytest.mark.parametrize(("script", "check"), list(cases()))
def test_script(judge: Judge, script: Script, check: str) -> None:
    for package in script.needs:
        pytest.importorskip(package)
    verdict = judge.verdict(script)
    if check != "runs" and not verdict.runs:
        pytest.fail("it does not run, see the check 'runs'", pytrace=False)
    problems = judge.distribution(script) if check == "distribution" else verdict.problems.get(check, [])
    assert not problems, f"{script.name} ({script.style})\n" + "\n".join(problems)


def test_what_is_known_exists() -> None:
    assert set(KNOWN) <= set(SCRIPTS)
    for name, checks in KNOWN.items():
        assert checks and set(checks) <= set(CHECKS), name
        assert "runs" not in checks or len(checks) == 1, f"{name}: what does not run has no other checks"


def test_what_the_readme_says() -> None:
    plain = [script for script in SCRIPTS.values() if not script.needs]
    text = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    assert f"All of the {len(plain)} scripts" in text and "more than nine in ten on DALI" in text
    assert 0.91 <= sum(script.engine == "dali" for script in plain) / len(plain) < 0.96


def test_what_the_corpus_expects() -> None:
    assert len(SCRIPTS) >= 70
    assert sum(script.engine == "dali" for script in SCRIPTS.values()) >= 0.75 * len(SCRIPTS)
