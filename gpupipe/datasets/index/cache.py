"""Where index files lie, and how two processes do not get in each other's way.

``$GPUPIPE_CACHE``, else ``$XDG_CACHE_HOME/gpupipe``, else ``~/.cache/gpupipe``; indexes in its folder ``index/``. We
remove nothing there but files that we wrote.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

__all__ = ["cache_folder", "distrust", "index_path", "locked", "make_folder", "replacing"]

_log = logging.getLogger("gpupipe")

_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This folder was made by gpupipe. Everything in it can be made again; it need not be backed up.
"""
_SUFFIX = ".gpupipe-index"


def cache_folder(kind: str) -> str:
    """The folder of one kind of file, such as ``"index"``; it may not exist yet."""
    base = os.environ.get("GPUPIPE_CACHE")
    if not base:
        xdg = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        base = os.path.join(xdg, "gpupipe")
    return os.path.join(os.path.abspath(os.path.expanduser(base)), kind)


def index_path(*key: Any) -> str:
    """The index file for a key of JSON values. Nothing is created."""
    name = hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()
    return os.path.join(cache_folder("index"), name + _SUFFIX)


def make_folder(folder: str) -> None:
    base = os.path.dirname(folder)
    os.makedirs(os.path.dirname(base), exist_ok=True)
    for path in (base, folder):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    # In the folder that is ours alone: the tag makes backup programs leave out whatever lies beside it.
    with contextlib.suppress(FileExistsError), open(os.path.join(folder, "CACHEDIR.TAG"), "x") as tag:
        tag.write(_TAG)


def distrust(found: os.stat_result) -> str | None:
    """Why a file of the cache must not be believed: others than this user and root may have written it."""
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}, and this is user {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (its mode is {stat.S_IMODE(found.st_mode):o})"
    return None


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock file beside ``path``, so that the second of two processes finds what the first one made.

    A lock that cannot be had (some network file systems) is gone without: files are replaced as a whole, so the
    worst is that two processes do the same work.
    """
    fd = -1
    try:
        make_folder(os.path.dirname(path))
        fd = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("another process is building %s; waiting for it", path)
            fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as e:
        _log.info("no lock on %s: %s", path, e)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)  # lets go of the lock; the file stays, because removing it would race with who waits for it


@contextlib.contextmanager
def replacing(path: str, *, tidy: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` when the block ends well and vanishes when it does not.

    ``tidy``: look through the folder for what a process that was killed while it wrote has left of this file.
    """
    for stale in glob.glob(glob.escape(path) + ".*.tmp") if tidy else ():
        with contextlib.suppress(OSError):
            if time.time() - os.stat(stale).st_mtime > 86400:
                os.unlink(stale)
    temporary = f"{path}.{os.getpid()}-{threading.get_ident():x}-{time.monotonic_ns():x}.tmp"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
