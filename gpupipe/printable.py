"""Names of files in messages: a name may hold characters that a terminal obeys, or that end a line of a log."""

from __future__ import annotations

import logging
import os


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


def _escape(record: logging.LogRecord) -> bool:
    """Escape the message of a record of the log. Raises nothing: logging reports a wrong format by itself."""
    if record.args:
        values = record.args if isinstance(record.args, tuple) else (record.args,)
        record.args = tuple(printable(value, lines=True) if isinstance(value, str) else value for value in values)
    return True


logging.getLogger("gpupipe").addFilter(_escape)
