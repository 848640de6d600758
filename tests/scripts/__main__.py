"""``python -m tests.scripts``: the table of all scripts, what falls back and why, and the totals."""

from tests import conftest  # noqa: F401 - defines what torchvision may lack, before anything imports it

from .harness.table import main

main()
