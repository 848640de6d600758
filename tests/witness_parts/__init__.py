"""The parts of ``tests/witness.py``, which says what it is."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Case
from .clips import clips
from .epochs import bad_samples, orders, ranks, resuming
from .media import media, odd_files
from .pipelines import full_size, recipes, timm, transforms

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """All, in the order of the file."""
    for some in (recipes, full_size, transforms, timm, media, odd_files, orders, ranks, resuming, bad_samples, clips):
        yield from some()
