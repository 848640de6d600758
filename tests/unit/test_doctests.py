"""The examples in the documentation of public names do what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import gpupipe
from gpupipe import transforms

MODULES = [
    name
    for package in ("codecs", "datasets", "interop", "sources", "transforms")
    for _, name, _ in pkgutil.walk_packages([f"{gpupipe.__path__[0]}/{package}"], f"gpupipe.{package}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_transform_has_one() -> None:
    public = set(transforms.__all__) - {"Transform"}
    assert {name for name in public if ">>>" not in (getattr(transforms, name).__doc__ or "")} == set()
