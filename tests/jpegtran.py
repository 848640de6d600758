"""The program ``jpegtran``: the real one if it is installed, and a stand-in that knows some files."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from jpegs import pillow_jpeg, pillow_jpeg_with_restarts

__all__ = ["FakeJpegtran", "needs_jpegtran", "write_program"]

needs_jpegtran = pytest.mark.skipif(
    shutil.which("jpegtran") is None, reason="needs jpegtran of libjpeg-turbo (apt install libjpeg-turbo-progs)"
)

_KNOWN = """[ "$*" = "-copy all -optimize -restart $5" ] || exit 3
exec cat "{folder}/$(sha256sum | cut -c1-64).$5"
"""


def write_program(folder: Path, script: str, *, version: str = "libjpeg-turbo version 2.1.5") -> Path:
    """A program ``jpegtran`` in a folder: a shell script, which also answers ``-version``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "jpegtran"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -version ]; then echo "{version}" >&2; exit 0; fi\n{script}')
    path.chmod(0o755)
    return path


class FakeJpegtran:
    """A stand-in for ``jpegtran`` that transforms the files that :meth:`jpeg` wrote, and fails for all others."""

    def __init__(self, folder: Path):
        self.folder = folder
        write_program(folder, _KNOWN.format(folder=folder))

    def jpeg(self, height: int, width: int, seed: int, mode: str = "RGB", **options: object) -> bytes:
        """A photograph as :func:`jpegs.pillow_jpeg` writes it."""
        data = pillow_jpeg(height, width, seed, mode, **options)
        transformed, tile = pillow_jpeg_with_restarts(height, width, seed, mode, **options)
        (self.folder / f"{hashlib.sha256(data).hexdigest()}.{tile}B").write_bytes(transformed)
        return data
