"""URLs in the notation of webdataset: ``pipe:`` with a command that copies a file to its output, and ``file:``."""

from __future__ import annotations

import logging
import re
import shlex
from urllib.parse import unquote

from ..errors import DatasetError

_log = logging.getLogger("gpupipe")

_IGNORED = re.compile(r"-[sSfLq]+|--(silent|show-error|fail|location|quiet|only-show-errors|no-progress|no-verbose)")
"""Options that do not change the bytes of a file."""
_FORMS = (
    ("aws s3 cp", r"s3://.+", True),
    ("gsutil cat", r"gs://.+", False),
    ("gsutil cp", r"gs://.+", True),
    ("gcloud storage cat", r"gs://.+", False),
    ("gcloud storage cp", r"gs://.+", True),
    ("curl", r"https?://.+", False),
    ("wget -O -", r"https?://.+", False),
    ("wget -qO-", r"https?://.+", False),
    ("cat", r"[^-].*", False),
)
"""(command, pattern of its argument, whether ``-`` follows)"""
_ALWAYS = re.compile(r"\s*\|\|\s*(true|:|exit 0)\s*$")


def plain(text: str, owner: str) -> str:
    """Return the path or URL that a text stands for. No command is ever run.

    >>> plain("pipe:aws s3 cp s3://bucket/{000..127}.tar -", "WebDataset"), plain("file:///data/a.tar", "WebDataset")
    ('s3://bucket/{000..127}.tar', '/data/a.tar')

    Raises :class:`DatasetError` for any other command.
    """
    if text.startswith("pipe:"):
        found = _read_by(_ALWAYS.sub("", text.removeprefix("pipe:")))
        if found is None:
            raise DatasetError(
                f"{owner}: a text that begins with {text[:10]!r} is a command, and gpupipe runs no commands, because "
                "it reads samples by byte ranges in any order. Give the URL itself (s3://..., gs://..., "
                "https://...), and set credentials, endpoints and proxies in the environment; or write the command's "
                "output to files"
            )
        _log.info("%s: %s is read from %s, without the command", owner, text, found)
        return found
    if text.startswith("file:"):
        path = text.removeprefix("file:")
        path = path.removeprefix("//localhost") if path.startswith("//localhost/") else path
        return unquote(path[2:] if path.startswith("//") else path)
    return text


def _read_by(command: str) -> str | None:
    """Return the file that a command copies to its output, if the command is one of the known forms."""
    # More than one command, or anything that only a shell can do.
    if set(command) & set(";|&<>`$\n"):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if words[:1] in (["gsutil"], ["aws"], ["gcloud"]):
        words = [
            word for word in words if not _IGNORED.fullmatch(word)
        ]  # they may also precede the name of the command
    for form, kind, has_dash in _FORMS:
        start = form.split()
        if words[: len(start)] != start:
            continue
        rest = [word for word in words[len(start) :] if not _IGNORED.fullmatch(word)]
        if len(rest) == 1 + has_dash and re.fullmatch(kind, rest[0]) and rest[1:] == ["-"] * has_dash:
            return rest[0]
    return None
