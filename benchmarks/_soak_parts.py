"""What befalls the loaders of ``soak.py``: bad files, files that become bad, and signals."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common
import numpy as np

SPOILT: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "random bytes": lambda path: path.write_bytes(np.random.default_rng(0).bytes(20_000)),
    "HTML": lambda path: path.write_text("<!DOCTYPE html><title>404</title>" * 50),
}
"""Damage to good files while the loaders run."""


def collect(files: list[str], root: Path) -> Path:
    """The photographs in four classes, the odd files in a fifth; every twentieth file of all cut in the middle."""
    for i, file in enumerate(files):
        folder = root / f"class{i % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / f"{i:04d}.jpg")
    odd = _common.IMAGES.parent / "odd"
    if odd.is_dir():
        shutil.copytree(odd, root / "odd", copy_function=shutil.copyfile)
    every = sorted(p for p in root.rglob("*") if p.is_file())
    for path in every[3::20]:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
    return root


class Interrupted(Exception):
    """Exception that the handler raises."""


class Alarm:
    """A signal at a moment drawn at random, once, within a ``with``."""

    def __init__(self) -> None:
        self.called = 0.0
        """When the handler was called."""
        self.put_off = False
        """While it is checked what came: codecs take any exception for the file's."""
        self._armed = False
        signal.signal(signal.SIGALRM, self._handle)

    def _handle(self, number: int, frame: Any) -> None:
        if self.put_off:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        elif self._armed:
            self._armed, self.called = False, time.monotonic()
            raise Interrupted

    def set(self, seconds: float | None) -> None:
        """``None``: none comes any more."""
        self._armed = seconds is not None
        signal.setitimer(signal.ITIMER_REAL, seconds or 0)
