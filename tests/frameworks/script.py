"""Runs a script as ``python script`` does, on machines too whose torchvision fits another torch.

The frameworks import torchvision where it is installed; ``tests/conftest.py`` knows how to make that import work.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import conftest  # noqa: F401

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
