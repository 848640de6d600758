"""Faster imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector away from older objects during imports. They allocate so many new ones that it would
    look through all of torch's several times."""
    if gc.get_freeze_count():  # the script's, or another thread's
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
