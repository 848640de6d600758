"""For tests that only a GPU can answer. What they measure is printed at the end. If ``GPUPIPE_MEASURED`` names a file,
it is written there as JSON after every test, beside what passed, failed and was skipped: promises for the GPU are made
from measurements, and a run that is cut must have said what it knew. A run adds to what the file has of other files.

Without a GPU, or with ``GPUPIPE_DRY_RUN=1``, those that ask for ``where`` run on the CPU, which proves the tests alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_tools import ASKED, DEVICE, DRY_RUN

from gpupipe.bench import machine
from gpupipe.testing.photos import make_photos

HERE = Path(__file__).parent
_MEASURED: dict[str, Any] = {}
_OUTCOMES: dict[str, str] = {}
"""What became of every test: ``passed``, or ``failed: why``, ``skipped: why``, ``not run``."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        if not DRY_RUN or "where" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gpu)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not (HERE.parents[1] / report.nodeid.partition("::")[0]).is_relative_to(HERE):
        return
    if report.when == "call" or not report.passed:  # a test that passed may still fail in what it leaves behind
        why = str(report.longrepr[-1] if report.skipped else report.longrepr)  # type: ignore[index]
        for folder, name in ((str(HERE.parents[1]), "."), (sys.prefix, "python"), (tempfile.gettempdir(), "tmp")):
            why = why.replace(folder, name)
        _OUTCOMES[report.nodeid] = "passed" if report.passed else f"{report.outcome}: {why[-1000:]}"
        _write()


def pytest_sessionfinish(session: pytest.Session) -> None:
    for item in getattr(session, "items", ()):
        if HERE in item.path.parents:
            _OUTCOMES.setdefault(item.nodeid, "not run")
    _write()


def _write() -> None:
    """Adds this run to the file: what is there of other tests stays."""
    file = os.environ.get("GPUPIPE_MEASURED")
    if not file or DRY_RUN or not _OUTCOMES:
        return
    path = Path(file)
    before = json.loads(path.read_text()) if path.exists() else {}
    found = {
        "machine": before.get("machine") or machine.facts(),
        "measured": before.get("measured", {}) | _MEASURED,
        "outcomes": before.get("outcomes", {}) | _OUTCOMES,
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1, default=str) + "\n")
    os.replace(partial, path)


@pytest.fixture(scope="session")
def where() -> str:
    """``"cuda"``, or ``"cpu"`` if the tests are only tried out."""
    return DEVICE


@pytest.fixture(scope="session")
def measured() -> Callable[..., None]:
    """``measured(name, **values)`` keeps numbers for the summary and the file."""

    def keep(name: str, **values: Any) -> None:
        _MEASURED[name] = values

    return keep


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _MEASURED or (DRY_RUN and not ASKED):
        return
    terminalreporter.section("measured on the CPU, to try the tests out" if DRY_RUN else "measured on the GPU")
    for name, values in _MEASURED.items():
        shown = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
        terminalreporter.write_line(f"{name}: {shown}")


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 photographs of the sizes that ImageNet has."""
    return make_photos(tmp_path_factory.mktemp("large"), classes=4, per_class=16)


@pytest.fixture(scope="session")
def wide_videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Videos by name as ``videos`` has them, but not too small for a GPU's decoder. ``uneven.mp4``: no side is a
    multiple of 16; ``hevc-closed.mp4``: no open groups of pictures."""
    av = pytest.importorskip("av")
    from videos import CLOSED, X265, make_all, make_video

    folder = tmp_path_factory.mktemp("wide")
    made = make_all(folder, size=(144, 256))
    if "libx264" in av.codecs_available:
        made["uneven.mp4"] = make_video(folder / "uneven.mp4", size=(150, 262), options=CLOSED)
    if "libx265" in av.codecs_available:
        closed = {"x265-params": X265["x265-params"].replace("open-gop=1", "open-gop=0")}
        made["hevc-closed.mp4"] = make_video(folder / "hevc-closed.mp4", "libx265", size=(144, 256), options=closed)
    return made


@pytest.fixture(autouse=True)
def _quiet_device() -> Iterator[None]:
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
