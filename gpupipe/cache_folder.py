"""Location of cached files, and locks between processes that write them.

The folder is ``$GPUPIPE_CACHE``, or ``$XDG_CACHE_HOME/gpupipe``, or ``~/.cache/gpupipe``; indexes are in its subfolder
``index/``. gpupipe removes only files that it wrote.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import logging
import os
import platform
import stat
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

_log = logging.getLogger("gpupipe")

_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This folder was made by gpupipe. Everything in it can be made again; it need not be backed up.
"""
_SUFFIX = ".gpupipe-index"
SILENCE, _REMIND = 5.0, 60.0
"""Seconds until a process that waits says so, and says so again."""
_YOUNG = 60
"""Seconds without a change after which an unlocked file counts as abandoned."""


def cache_folder(kind: str) -> str:
    """Return the folder for one kind of file, such as ``"index"``. It may not exist yet."""
    base = os.environ.get("GPUPIPE_CACHE")
    if not base:
        xdg = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        base = os.path.join(xdg, "gpupipe")
    return os.path.join(os.path.abspath(os.path.expanduser(base)), kind)


def index_path(*key: Any) -> str:
    """Return the index file for a key of JSON values, without creating it."""
    name = hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()
    return os.path.join(cache_folder("index"), name + _SUFFIX)


def make_folder(folder: str) -> None:
    base = os.path.dirname(folder)
    os.makedirs(os.path.dirname(base), exist_ok=True)
    for path in (base, folder):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    # Only in a folder of our own, because the tag makes backup programs skip all files beside it.
    with contextlib.suppress(FileExistsError), open(os.path.join(folder, "CACHEDIR.TAG"), "x") as tag:
        tag.write(_TAG)


def distrust(found: os.stat_result) -> str | None:
    """Return why a cached file must not be trusted: anyone except this user and root may have written it."""
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    return _others_may_write(found, os.geteuid(), 0)


def _others_may_write(found: os.stat_result, *owners: int) -> str | None:
    if found.st_uid not in owners:
        return f"it belongs to user {found.st_uid}, but this is user {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (its mode is {stat.S_IMODE(found.st_mode):o})"
    return None


def distrust_folder(path: str) -> str | None:
    """Return why nothing must be stored in a folder that only this user may write to; ``None`` if all is well or it is
    missing."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as e:
        return f"it cannot be inspected: {e.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return "it is a link" if stat.S_ISLNK(found.st_mode) else "it is not a folder"
    return _others_may_write(found, os.geteuid())


@contextlib.contextmanager
def locked(path: str, what: str = "") -> Iterator[None]:
    """Hold the lock of ``path``, so that one process creates the file and the others find it.

    Those that wait say after :data:`SILENCE` seconds, and every minute, who builds ``what``.

    The system frees the lock if its holder is killed. If the folder is not writable, or its file system has no locks,
    there is no lock: files are replaced as a whole, so the worst outcome is duplicate work.
    """
    with contextlib.ExitStack() as lock:
        try:
            make_folder(os.path.dirname(path))
            lock.enter_context(_lock(path + ".building", what or path))
        except OSError as e:
            _log.info("no lock on %s: %s", path, e)
        yield


@contextlib.contextmanager
def _lock(path: str, what: str) -> Iterator[None]:
    tell_at, pause = time.monotonic() + SILENCE, 0.02
    while True:
        with open(path, "a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last holder may have removed it after it was opened here.
                held = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            except (BlockingIOError, FileNotFoundError):
                held = False
            if held:
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}".encode())
                file.flush()
                try:
                    yield
                finally:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                return
            if time.monotonic() > tell_at:
                file.seek(0)
                holder = file.read(1024).decode(errors="replace") or "another process"
                _log.warning("waiting for %s, which is building %s", holder, what)
                tell_at += _REMIND
        time.sleep(pause)
        pause = min(1.2 * pause, 0.5)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces ``path`` when the block succeeds and is removed when it fails.

    Leftovers of killed processes that wrote this file are removed.
    """
    for stale in glob.glob(glob.escape(path) + ".*.tmp"):
        with contextlib.suppress(OSError):
            _remove_abandoned(stale)
    temporary = f"{path}.{os.getpid()}-{threading.get_ident():x}-{time.monotonic_ns():x}.tmp"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w+b") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # marks the file as being written: see _remove_abandoned
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _remove_abandoned(path: str) -> None:
    """Remove a temporary file without a writer. Raises :class:`OSError`, also if a process is writing it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - os.fstat(fd).st_mtime > _YOUNG:  # before, it may not be locked yet
            os.unlink(path)
    finally:
        os.close(fd)
