"""What messages show: names of files, which may hold characters that a terminal obeys, or that end a line of a log, and
objects, which may show a million numbers."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from typing import Any


def printable(text: str | bytes | os.PathLike[str], *, lines: bool = False) -> str:
    """Escape every character of ``text`` that cannot be shown, as ``repr`` does. Plain text stays as it is.

    Args:
        text: bytes are decoded as file names are.
        lines: keep line breaks and tabs.

    >>> print(printable(b"a\\x1b[31m\\n.jpg"))
    a\\x1b[31m\\n.jpg
    """
    text = os.fsdecode(text)
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def quantity(count: int, one: str, many: str | None = None) -> str:
    """Return a number and what is counted.

    >>> quantity(1, "image"), quantity(1200, "image"), quantity(2, "has", "have")
    ('1 image', '1,200 images', '2 have')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def representation(obj: Any) -> str:
    """Return ``repr(obj)``, or only the name of its class if an attribute is a large array or tensor.
    ``torchvision.transforms.LinearTransformation`` shows every number of its matrix, which takes seconds."""
    if any(_is_large(value) for value in getattr(obj, "__dict__", {}).values()):
        return f"{type(obj).__name__}(...)"
    return repr(obj)


def _is_large(value: Any) -> bool:
    shape = getattr(value, "shape", None) if hasattr(value, "dtype") else None
    return isinstance(shape, tuple) and math.prod(shape) > 1000


def _escape(record: logging.LogRecord) -> bool:
    """Escape the message of a record of the log. Raises nothing: logging reports a wrong format by itself."""
    if isinstance(record.args, Mapping):  # for a format such as "%(name)s"
        record.args = {name: _escaped(value) for name, value in record.args.items()}
    elif isinstance(record.args, tuple):
        record.args = tuple(map(_escaped, record.args))
    return True


def _escaped(value: Any) -> Any:
    return printable(value, lines=True) if isinstance(value, str) else value


logging.getLogger("gpupipe").addFilter(_escape)
