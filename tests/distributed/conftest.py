"""What the tests of several ranks share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import write_photos


@pytest.fixture(scope="session")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small photographs; the label of each is its index. Read only."""
    return write_photos(tmp_path_factory.mktemp("numbered"))
