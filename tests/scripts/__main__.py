"""``python -m tests.scripts``: the table of all scripts, what falls back and why, and the totals."""

from gpupipe.testing.torchvision_ops import define_missing_operators

define_missing_operators()

from .harness.table import main  # noqa: E402 - imports torchvision

main()
