"""``gpupipe why`` gives the reasons that the loader itself gives, for every script of the corpus."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchvision")
pytest.importorskip("timm")

import torch
from torch.utils.data import DataLoader as TorchLoader

import gpupipe
from gpupipe.reasons import FallbackWarning, Reason
from gpupipe.why.explain import explain
from gpupipe.why.watch import watching

from . import corpus  # noqa: F401 - fills SCRIPTS
from .harness.layouts import any_checksum
from .harness.ours import watching as watching_ours
from .harness.script import SCRIPTS, Args, Script
from .harness.tree import make_tree
from .known import KNOWN


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("why"), 1)


def cases() -> Iterator[Any]:
    """Every script that runs; ``make test`` has three of them, two of which fall back."""
    running = [script for script in SCRIPTS.values() if "runs" not in KNOWN.get(script.name, {})]
    chosen = [*[s for s in running if s.engine == "torch" and not s.needs][:2], running[0]]
    for script in running:
        yield pytest.param(script, id=script.name, marks=[] if script in chosen else [pytest.mark.thorough])


def said(script: Script, args: Args) -> set[Reason]:
    """Reasons of the warnings when the script makes gpupipe's loaders."""
    with warnings.catch_warnings(record=True) as caught, watching_ours() as ours, any_checksum():
        warnings.simplefilter("always")
        torch.manual_seed(0)
        next(iter(script.run(args, gpupipe.DataLoader)), None)
    ours.close()
    return {reason for w in caught if isinstance(w.message, FallbackWarning) for reason in w.message.reasons}


@pytest.mark.parametrize("script", list(cases()))
def test_the_reasons_are_those_of_the_loader(script: Script, data: Path) -> None:
    for package in script.needs:
        pytest.importorskip(package)
    args = Args(data, workers=script.workers)
    with watching() as watched, any_checksum(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's about pin_memory
        torch.manual_seed(0)
        next(iter(script.run(args, TorchLoader)), None)
    found = {reason for made in watched.made for reason in explain(made, seconds=0).reasons}
    assert watched.made and found == said(script, args)
