"""Datasets that do what is hard to foresee, each run with torch's loader and with gpupipe's: the same must come out.

``python -m tests.fooled`` prints a table of all cases, ``python -m tests.fooled.fuzz`` composes other ones at random.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where pytest looks by itself

from torchvision_ops import define_missing_operators

define_missing_operators()  # also in a process that is spawned
