"""Datasets that do what is hard to foresee, each run with torch's loader and with gpupipe's: the same must come out.

``python -m tests.fooled`` prints a table of all cases, ``python -m tests.fooled.fuzz`` composes other ones at random.
"""

from gpupipe.testing.torchvision_ops import define_missing_operators

define_missing_operators()  # also in a process that is spawned
