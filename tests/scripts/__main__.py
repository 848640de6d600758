"""``python -m tests.scripts``: the table of all scripts, what falls back and why, and the totals."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as pytest does for conftest.py

import conftest  # noqa: F401 - defines what torchvision may lack, before anything imports it

from .harness.table import main

main()
