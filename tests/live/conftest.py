"""Fixtures of live sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from by_reference import by_reference

from gpupipe.live import looks


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    """Tests open images outside of a loader, too."""
    looks.taken()


@pytest.fixture
def exact() -> Iterator[None]:
    """Images that wait are made by Pillow and the reference, so batches must equal torch's in every bit."""
    with by_reference():
        yield
