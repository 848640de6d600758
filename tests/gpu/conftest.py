"""For tests that only a GPU can answer. What they measure is printed at the end and, where
``GPUPIPE_MEASURED`` names a file, written there as JSON after every test: promises for the GPU are made from
measurements. ``GPUPIPE_DRY_RUN=1`` runs on the CPU those that ask for ``where``, which proves the tests alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_tools import DEVICE, DRY_RUN
from support import write_photos

from gpupipe.testing.photos import make_photos

_MEASURED: dict[str, Any] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        if not DRY_RUN:
            item.add_marker(pytest.mark.gpu)
        elif "where" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="needs CUDA itself, also when the other tests are tried out"))


@pytest.fixture(scope="session")
def where() -> str:
    """``"cuda"``, or ``"cpu"`` where the tests are only tried out."""
    return DEVICE


@pytest.fixture(scope="session")
def measured() -> Callable[..., None]:
    """``measured(name, **values)`` keeps numbers for the summary."""

    def keep(name: str, **values: Any) -> None:
        _MEASURED[name] = values
        if (file := os.environ.get("GPUPIPE_MEASURED")) and not DRY_RUN:
            Path(file).write_text(json.dumps(_MEASURED, indent=1, default=str) + "\n")

    return keep


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _MEASURED:
        return
    terminalreporter.section("measured on the CPU, to try the tests out" if DRY_RUN else "measured on the GPU")
    for name, values in _MEASURED.items():
        shown = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
        terminalreporter.write_line(f"{name}: {shown}")


@pytest.fixture(scope="session")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small photographs; the label of each is its index."""
    return write_photos(tmp_path_factory.mktemp("numbered"))


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 photographs of the sizes that ImageNet has."""
    return make_photos(tmp_path_factory.mktemp("large"), classes=4, per_class=16)


@pytest.fixture(autouse=True)
def _quiet_device() -> Iterator[None]:
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
