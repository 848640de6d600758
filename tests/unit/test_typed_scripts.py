"""Types that scripts and editors see. mypy checks ``tests/typed`` with everything else, in ``make quick``."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import subprocess
import sys
import time
import typing
from pathlib import Path
from shutil import copytree, which
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe import DataLoader, datasets, transforms as T
from gpupipe.loader.arguments import Arguments, Options
from gpupipe.loader.stats import Stats

ROOT = Path(__file__).parents[2]
TYPED = ROOT / "tests" / "typed"


def small() -> datasets.Arrays[Any, Any]:
    return datasets.Arrays(np.zeros((6, 8, 8, 3), np.uint8), [0, 1, 2, 3, 4, 5])


def test_a_loader_is_generic_at_run_time() -> None:
    assert typing.get_origin(DataLoader[int]) is DataLoader
    loader = DataLoader[tuple[torch.Tensor, torch.Tensor]](small(), 2, device="cpu")
    assert [len(labels) for _, labels in loader] == [2, 2, 2]
    assert type(pickle.loads(pickle.dumps(loader))) is DataLoader
    assert typing.get_origin(datasets.ImageFolder[torch.Tensor]) is datasets.ImageFolder


def test_annotations_of_a_typed_script_evaluate() -> None:
    space: dict[str, Any] = {"DataLoader": DataLoader, "Any": Any}
    exec("def train(loader: DataLoader[Any]) -> DataLoader[Any]: return loader", space)
    assert typing.get_type_hints(space["train"])["return"] == DataLoader[Any]


def test_type_checkers_see_the_arguments_of_the_loader() -> None:
    seen = typing.get_overloads(DataLoader.__init__) if sys.version_info >= (3, 11) else []
    taken = list(inspect.signature(Arguments).parameters.values())
    for overload in seen:
        own = [p for p in inspect.signature(overload).parameters.values() if p.name not in ("self", "options")]
        assert [p.name for p in own] + list(Options.__annotations__) == sorted(
            [p.name for p in taken], key=lambda name: name not in {p.name for p in own}
        )
    for parameter in taken:
        if parameter.name in Options.__annotations__:
            assert Options.__annotations__[parameter.name].__forward_arg__ == parameter.annotation


def test_every_argument_of_a_transform_is_documented() -> None:
    lacking = []
    for name in T.__all__:
        documented = inspect.getdoc(getattr(T, name)) or ""
        own = [it for it in inspect.signature(getattr(T, name)).parameters if name != "Transform"]
        lacking += [(name, it) for it in own if not re.search(rf"(?m)^    [\w, ]*\b{it}\b[\w, ]*:", documented)]
    assert lacking == []


def test_stats_are_a_dictionary_with_attributes_and_print_in_three_lines() -> None:
    loader = DataLoader(small(), 2, device="cpu")
    before = loader.stats()
    assert before["bottleneck"] is None is before.bottleneck and before.samples_per_second == 0.0
    for _ in loader:
        time.sleep(0.03)
    stats = loader.stats()
    assert isinstance(stats, Stats) and len(repr(stats).splitlines()) == 3
    assert json.loads(json.dumps(stats)) == stats == pickle.loads(pickle.dumps(stats))
    for name, value in stats.items():
        if name != "bottleneck":
            assert getattr(stats, name) == value
    assert stats.bottleneck is not None
    assert stats["bottleneck"]["next_step"] == stats.bottleneck.next_step and stats.bottleneck.next_step in repr(stats)


@pytest.mark.parametrize(
    ("call", "wrong", "meant"),
    [
        (lambda: DataLoader(small(), batchsize=2), "batchsize", "batch_size"),
        (lambda: T.RandomResizedCrop(8, scal=(0.5, 1)), "scal", "scale"),
        (lambda: T.MixUp(alpah=1), "alpah", "alpha"),
        (lambda: datasets.ImageFolder("x", trasform=None), "trasform", "transform"),
    ],
)
def test_misspelt_keywords_get_a_suggestion(call: Any, wrong: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{wrong}'\. Did you mean '{meant}'\?"):
        call()


def test_a_keyword_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
        T.CenterCrop(8, zzz=1)


def test_dir_shows_public_names_only() -> None:
    for module in (gpupipe, datasets, T, gpupipe.pipelines):
        names = set(dir(module)) - {"__version__"}
        assert names == set(module.__all__)
        assert all(hasattr(module, name) for name in names)


def test_pipelines_are_an_attribute() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import gpupipe; print(len(gpupipe.pipelines.imagenet.train(64)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(found.stdout) > 3


@pytest.mark.slow
@pytest.mark.skipif(which("pyright") is None, reason="pyright is not installed")
def test_pyright_accepts_the_user_script_and_finds_mistakes(tmp_path: Path) -> None:
    # As the wheel lays them out.
    (tmp_path / "site" / "gpupipe").mkdir(parents=True)
    for entry in (ROOT / "gpupipe").iterdir():
        (tmp_path / "site" / "gpupipe" / entry.name).symlink_to(entry)
    (tmp_path / "site" / "gpupipe" / "pipelines").symlink_to(ROOT / "pipelines")
    copytree(TYPED, tmp_path / "scripts")
    settings = {"extraPaths": ["site"], "include": ["scripts"], "enableTypeIgnoreComments": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["pyright", "--outputjson", "-p", str(tmp_path), "--pythonpath", sys.executable]
    found = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["generalDiagnostics"]
    errors = {(Path(it["file"]).name, it["range"]["start"]["line"]) for it in found if it["severity"] == "error"}
    lines = (TYPED / "mistakes.py").read_text().splitlines()
    marked = {("mistakes.py", i) for i, line in enumerate(lines) if "  # type: ignore" in line}
    assert errors == marked


def test_what_a_notebook_shows(tmp_path: Path) -> None:
    loader = DataLoader(small(), 2, device="cpu")
    assert "<td>engine</td>" in loader._repr_html_() and "3 batches of 2 from Arrays" in loader._repr_html_()
    page: Any = loader.show(tmp_path / "step.html")
    sheet: Any = loader.show(tmp_path / "step.png")
    assert page._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert sheet.is_file() and sheet._repr_html_().startswith('<img src="data:image/png;base64,')
    report = loader.report()
    report.add([gpupipe.BadSample(3, "a<b.jpg", "missing", "no such file")])
    assert "<td>a&lt;b.jpg</td><td>missing</td>" in report._repr_html_()


def test_an_iterator_says_where_it_stands() -> None:
    loader = DataLoader(small(), 2, device="cpu")
    batches = iter(loader)
    assert repr(batches) == "EpochIterator(begins with the first next())"
    next(batches)
    assert repr(batches) == "EpochIterator(epoch 0, after batch 0)"
    assert len(list(batches)) == 2
    assert repr(batches) == "EpochIterator(epoch 0, ended after batch 2)"
