"""``python -m tests.scripts``: the table of all scripts, what falls back and why, and the totals."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where pytest looks by itself

from torchvision_ops import define_missing_operators

define_missing_operators()

from .harness.table import main  # noqa: E402 - imports torchvision

main()
