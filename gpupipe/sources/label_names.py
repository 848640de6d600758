"""Class names from a file ``labels.txt`` next to shards whose samples have numbers.

TensorFlow's research models write one line for each class, such as ``3:tench``.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence

from ..errors import DatasetError
from .storage import Storage

FILE = "labels.txt"
_LINE = re.compile(rb"([0-9]{1,9}):(.+)")
_LONGEST = 1 << 26
"""Maximum size of the file in bytes."""
_log = logging.getLogger("gpupipe")


def names_beside(storage: Storage, folder: bytes, greatest: int) -> tuple[str, ...]:
    """Return the class names by number; empty if the folder has no such file, or if it is a different list.

    Args:
        folder: folder of the shards; ends with a slash.
        greatest: the greatest label.
    """
    path = os.path.join(folder, FILE.encode())
    try:
        with storage.open(path) as file:
            lines = file.read(_LONGEST).splitlines()
    except (OSError, ValueError):
        return ()
    found = [_LINE.fullmatch(line) for line in lines]
    names = tuple(m[2].decode(errors="surrogateescape") for i, m in enumerate(found) if m and int(m[1]) == i)
    # Every line counts, numbered from 0; anything else is a file for another purpose.
    if not lines or len(names) < len(lines):
        return ()
    if greatest >= len(names):
        _log.warning("%s is not used: it names %d classes, but there is a label %d", path, len(names), greatest)
        return ()
    return names


def text_of(names: Sequence[str]) -> bytes:
    """Return the content of such a file. Raises :class:`DatasetError` for a name that does not fit on a line."""
    wrong = next((name for name in names if not name or len(name.splitlines()) > 1), None)
    if wrong is not None:
        raise DatasetError(f"the class name {wrong!r} does not fit into a line of {FILE}; rename the class")
    return b"".join(b"%d:%s\n" % (i, name.encode(errors="surrogateescape")) for i, name in enumerate(names))
