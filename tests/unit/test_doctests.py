"""The examples in docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import gpupipe
from gpupipe import transforms

PACKAGE = Path(gpupipe.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if re.search(r">>> (?!.*doctest: \+SKIP)", path.read_text())
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_every_public_transform_has_one() -> None:
    public = set(transforms.__all__) - {"Transform"}
    assert {name for name in public if ">>>" not in (getattr(transforms, name).__doc__ or "")} == set()
