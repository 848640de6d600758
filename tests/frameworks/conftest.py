"""What the tests of frameworks share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from interpreter import Interpreter


@pytest.fixture(scope="package")
def frameworks() -> Iterator[Interpreter]:
    """An interpreter that has imported them. ``conftest`` makes torchvision's import work beside any torch."""
    names = ["conftest", "torch._dynamo", "gpupipe.engines.dali.engine", "gpupipe.engines.torch"]
    names += [name for name in ("lightning", "accelerate") if importlib.util.find_spec(name) is not None]
    with Interpreter(*names) as warm:
        yield warm
