"""Faster imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Freeze existing objects during imports, so that the garbage collector skips them. Imports allocate so many new
    ones that it would otherwise scan all of torch's several times."""
    if gc.get_freeze_count():  # the script's, or another thread's
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
