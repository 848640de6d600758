"""The table of formats in docs/sources.md is made of docstrings, which document every argument."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from gpupipe import datasets
from gpupipe.datasets.images import EncodedImages
from gpupipe.formats.registry import formats

ROOT = Path(__file__).resolve().parents[2]
CLASSES = [name for name in datasets.__all__ if inspect.isclass(getattr(datasets, name))]
IMAGES = [name for name in CLASSES if issubclass(getattr(datasets, name), EncodedImages)]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import figures

    made: str = figures.classes()
    return made


def test_the_page_has_the_table(table: str) -> None:
    assert f"<!-- classes -->\n{table}\n<!-- /classes -->" in (ROOT / "docs/sources.md").read_text()
    assert all(f"| `{name}` |" in table for name in IMAGES)


def test_what_a_class_needs_can_be_installed(table: str) -> None:
    declared = (ROOT / "pyproject.toml").read_text()
    extras = re.findall(r"gpupipe-loader\[(\w+)\]", table)
    assert len(extras) > 1
    assert all(re.search(rf"^{extra} = \[", declared, re.M) for extra in extras)


def test_every_format_is_public() -> None:
    assert {kind.__name__ for kind in formats().values()} <= {*datasets.__all__}


@pytest.mark.parametrize("name", IMAGES)
def test_every_argument_is_shown_and_documented(name: str) -> None:
    kind: Any = getattr(datasets, name)
    parameters = inspect.signature(kind).parameters
    assert {"transform", "exif", "max_pixels", "max_bytes"} <= parameters.keys()
    assert not any(it.kind in (it.VAR_KEYWORD, it.VAR_POSITIONAL) for it in parameters.values())
    arguments = inspect.getdoc(kind).partition("\nArgs:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\w+): ", arguments, re.M) == [*parameters]
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'nothing'"):
        kind(*("x" for it in parameters.values() if it.default is it.empty), nothing=1)
