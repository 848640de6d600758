"""Expansion of the file names that users pass: ``{000..127}``, ``*``, ``::`` and folders, local and remote."""

from __future__ import annotations

import fnmatch
import glob
import math
import os
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from braceexpand import braceexpand

from ..codecs.retry import advised
from ..errors import DatasetError
from .base import Texts
from .compressed import plain_name
from .files import Paths
from .storage import LOCAL, Storage

if TYPE_CHECKING:
    from .remote.files import RemoteFiles

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_MOST = 1_000_000
"""Maximum number of names of one text. More are a typing mistake and would fill the memory."""
_WILD = re.compile(r"[*?\[]")


def is_url(text: str) -> bool:
    """Return whether a text names a remote file.

    >>> is_url("s3://bucket/a.tar"), is_url("/data/a.tar")
    (True, False)
    """
    return _URL.match(text) is not None


def texts_of(paths: Iterable[Any], owner: str) -> list[str]:
    """Convert paths to texts. Raises :class:`DatasetError` for anything that is not a path."""
    found = []
    for i, path in enumerate(paths):
        try:
            found.append(path if type(path) is str else os.fsdecode(path))
        except TypeError:
            raise DatasetError(f"{owner}: path {i} is {path!r}; paths are text or pathlib.Path") from None
    return found


def expand(given: Any, suffixes: Sequence[str], owner: str, remote: RemoteFiles) -> tuple[Paths, Storage]:
    """Return the files that the user named. The files of a pattern or a folder are sorted by name.

    Args:
        given: a path or URL, or several. In each, ``::`` separates several, ``{000..127}`` and ``{a,b}`` expand to all
            alternatives, ``*`` matches any name, and a folder stands for the files in it with this format's endings. A
            file whose actual name contains such characters takes precedence.
        suffixes: endings of this format's files, in lower case.
        remote: storage that opens URLs.

    Raises :class:`DatasetError` if a pattern or a folder matches no file.
    """
    texts = texts_of([given] if isinstance(given, (str, bytes, os.PathLike)) else given, owner)
    found: list[str] = []
    for text in texts:
        if not is_url(text) and os.path.isfile(os.path.expanduser(text)):
            found.append(text)
            continue
        for part in text.split("::"):
            if part.startswith(("pipe:", "file:")):
                raise DatasetError(
                    f"{owner}: {part[:10]!r}... is no path; give the path or URL itself, such as s3://..., with "
                    "credentials in the environment: gpupipe runs no commands"
                )
            try:
                names = _expanded(part)
            except ValueError as e:
                raise DatasetError(f"{owner}: {e}; correct it, or list the files") from None
            for name in names:
                found += _matching(name, suffixes, owner, remote)
    behind = [is_url(name) for name in found]
    if not any(behind):
        return below([os.path.expanduser(name) for name in found], None, "allowed", owner), LOCAL
    if not all(behind):
        at = behind.index(False)
        raise DatasetError(
            f"{owner}: {found[at]!r} is a file and {found[behind.index(True)]!r} is not; make two datasets"
        )
    return urls_below(found, owner), remote


def _expanded(text: str) -> list[str]:
    """Return the names that a text with braces stands for. Raises :class:`ValueError`, also for over a million."""
    if "{" not in text:
        return [text]
    # braceexpand() makes all numbers of a range at once.
    count = math.prod(abs(int(last) - int(first)) + 1 for first, last in _RANGE.findall(text))
    names = [] if count > _MOST else list(islice(braceexpand(text, escape=False), _MOST + 1))
    if count > _MOST or len(names) > _MOST:
        raise ValueError(f"{text!r} stands for over {_MOST:,} names")
    return names


def _matching(name: str, suffixes: Sequence[str], owner: str, remote: RemoteFiles) -> Iterable[str]:
    wild = _WILD.search(name) is not None
    if is_url(name):
        _check_url(name, owner)
        folder = name.endswith("/")
        if not wild and not folder:
            return [name]
        # Stores list by prefix, so everything before the first wildcard is one.
        start = name[: _WILD.search(name).start()] if wild else name  # type: ignore[union-attr]
        try:
            home, _, begin = start.rpartition("/")
            # Only a pattern with further slashes needs what is in subfolders.
            texts = remote.names(home + "/", begin, "/" in name[len(home) + 1 :])
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or e
            advice = "name the files, as in {000..127}, which needs no list"
            raise DatasetError(f"{owner}: {name} cannot be listed: {advised(e, why, advice)}") from None
        if wild:
            # fnmatch lets * match slashes too, which it must not in a path.
            found = [t for t in texts if fnmatch.fnmatchcase(t, name) and t.count("/") == name.count("/")]
        else:
            found = _with([t for t in texts if t.count("/") == name.count("/")], suffixes)
    else:
        path = os.path.expanduser(name)
        folder = os.path.isdir(path)
        if folder:
            found = [os.path.join(path, t) for t in _with(os.listdir(path), suffixes)]
        elif not wild or os.path.exists(path):
            return [path]  # if it is missing, opening it raises the error
        else:
            found = glob.glob(path)
    if not found:
        what = f"no file in the folder {name} ends in {' or '.join(suffixes)}" if folder else f"no file matches {name}"
        raise DatasetError(f"{owner}: {what}; correct the path, or list the files")
    return sorted(found)


def _with(names: Iterable[str], suffixes: Sequence[str]) -> list[str]:
    """Return the names that end in one of ``suffixes``; if there is none, those of compressed files."""
    names = [*names]
    plain = [name for name in names if name.lower().endswith(tuple(suffixes))]
    return plain or [name for name in names if plain_name(name.lower()).endswith(tuple(suffixes))]


def urls_below(urls: list[str], owner: str) -> Paths:
    """Return URLs relative to the folder that they have in common. Raises :class:`DatasetError`."""
    for url in urls:
        _check_url(url, owner)
    parts = [url.split("/") for url in urls]
    least, greatest = min(parts), max(parts)  # all share what these two have in common
    depth = next((i for i, (a, b) in enumerate(zip(least, greatest, strict=False)) if a != b), len(least))
    if not depth:
        raise DatasetError(f"{owner}: {urls[0]!r} and others are in different kinds of stores; make a dataset of each")
    # At least the scheme, and at most the folder of the shortest URL, so that no name becomes empty.
    prefix = "/".join(least[: max(2, min(depth, min(map(len, parts)) - 1))]) + "/"
    return Paths(os.fsencode(prefix), Texts.of(os.fsencode(url[len(prefix) :]) for url in urls))


def _check_url(url: str, owner: str) -> None:
    """Raise :class:`DatasetError`, without the URL if it may contain a secret."""
    scheme, _, rest = url.partition("://")
    if "@" in rest.partition("/")[0] or "?" in rest:
        raise DatasetError(
            f"{owner}: a URL ({scheme}://...) has an @ before its path or a ?, so it may contain a password or a "
            "signature, which would end up in index files and messages; give the plain URL, and pass credentials in "
            "the way of the store's client"
        )
    if "\0" in url or not rest.strip("/"):
        raise DatasetError(f"{owner}: the URL {url!r} names no file")


Outside = Literal["allowed", "absolute", "refused"]
"""Which paths may lead out of a folder: all, only absolute ones, or none."""


def below(paths: list[str], base: str | None, outside: Outside, owner: str) -> Paths:
    """Return the paths relative to ``base``, or to the folder that they have in common.

    Raises :class:`DatasetError`, also for a forbidden path that leads out of ``base``.
    """
    strict = outside != "allowed"
    if base is None:
        here = os.getcwd()
        paths = [os.path.join(here, p) for p in paths]
        # All share what the first and the last in sorted order have in common. So the same files elsewhere have the
        # same rows and the same fingerprint.
        folders = [os.path.dirname(p) for p in (min(paths), max(paths))] if paths else [here]
        base = os.path.commonpath(folders)
    prefix = os.path.join(base, "")
    rows, absolute = [], False
    for i, path in enumerate(paths):
        if ".." in path and ".." in path.split("/"):
            full = os.path.join(base, path)
            leaves = not os.path.normpath(full).startswith(prefix)
            if strict and not leaves:  # behind a link, ".." leads to the folder above the link's target
                leaves = not os.path.realpath(full).startswith(os.path.join(os.path.realpath(base), ""))
        else:
            leaves = path.startswith("/") and not path.startswith(prefix)
        if leaves and (outside == "refused" or (outside == "absolute" and not path.startswith("/"))):
            where = "root" if outside == "refused" else "the list's folder"
            raise DatasetError(
                f"{owner}: path {i} is {path!r}, which leads out of {where} {base!r}; correct it, or pass "
                "allow_outside=True if you trust the list"
            )
        if path.startswith(prefix):
            path = path[len(prefix) :].lstrip("/")
        absolute = absolute or path.startswith("/")
        rows.append(path)
    encoded = Texts.of(map(os.fsencode, rows))
    if b"\0" in encoded.blob:
        at = next(i for i, row in enumerate(rows) if "\0" in row)
        raise DatasetError(f"{owner}: path {at} is {rows[at]!r}; a file name cannot contain a NUL character")
    return Paths(os.fsencode(prefix), encoded, absolute)
