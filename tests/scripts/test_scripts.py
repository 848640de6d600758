"""Every script of the corpus, with torch's DataLoader and with gpupipe's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchvision")
pytest.importorskip("timm")

import numpy as np
import torch

from . import corpus  # noqa: F401 - fills SCRIPTS
from .harness.compare import differences, unlike
from .harness.judge import CHECKS, Judge
from .harness.record import Run, snapshot
from .harness.script import SCRIPTS, Script
from .harness.tree import make_tree


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(make_tree(tmp_path_factory.mktemp("scripts"), 1))


@pytest.mark.part(of=14)
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_script(judge: Judge, script: Script) -> None:
    for package in script.needs:
        pytest.importorskip(package)
    found = judge.verdict(script).problems
    problems = [f"{check}: {problem}" for check in CHECKS for problem in found[check]]
    assert not problems, f"{script.name} ({script.style})\n" + "\n".join(problems)


def test_what_the_readme_says() -> None:
    plain = [script for script in SCRIPTS.values() if not script.needs]
    text = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    assert f"All of the {len(plain)} scripts" in text


# ---- the harness


def run_of(judge: Judge, name: str = "pytorch_imagenet") -> Run:
    return judge.play(SCRIPTS[name], torch.utils.data.DataLoader)


def changed(run: Run, change: Any) -> Run:
    """Return a run whose first batch is another one."""
    (first, *others), *epochs = (epoch.batches for epoch in run.epochs)
    images, labels = (value.copy() for value in first.leaves.values())
    batch = snapshot(change(torch.from_numpy(images), torch.from_numpy(labels)))
    assert epochs
    one = replace(run.epochs[0], batches=(batch, *others))
    return replace(run, epochs=[one, *run.epochs[1:]])


def test_torch_does_not_differ_from_itself(judge: Judge) -> None:
    assert differences(run_of(judge), run_of(judge), exact=True) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda images, labels: [images + 0.001, labels],
        lambda images, labels: [images.flip(0), labels],
        lambda images, labels: [images, labels + 1],
        lambda images, labels: [images, labels.int()],
        lambda images, labels: (images, labels),
        lambda images, labels: [images[1:], labels[1:]],
    ],
)
def test_differences_are_found(judge: Judge, change: Any) -> None:
    run = run_of(judge)
    assert differences(changed(run, change), run, exact=True)


def test_other_pixels_than_those_of_another_decoder_are_found(judge: Judge) -> None:
    run, levels = run_of(judge), np.float32(0.01)
    assert differences(changed(run, lambda images, labels: [images + levels, labels]), run, exact=False) == []
    assert differences(changed(run, lambda images, labels: [images.flip(3), labels]), run, exact=False)
    assert unlike(changed(run, lambda images, labels: [images[1:], labels[1:]]), run)
