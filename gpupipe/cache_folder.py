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
import math
import os
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
PATIENCE = 600
"""Seconds."""
SILENCE = 5.0
"""Seconds."""
_YOUNG = 60
"""Seconds without a change after which an unlocked file counts as abandoned; a day if the file system has no locks."""


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
    if found.st_uid not in (os.geteuid(), 0):
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
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}, but this is user {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (its mode is {stat.S_IMODE(found.st_mode):o})"
    return None


@contextlib.contextmanager
def locked(path: str, what: str = "") -> Iterator[None]:
    """Hold the lock of ``path``, so that one process creates the file and the others find it.

    Those that wait say so after :data:`SILENCE` seconds, with ``what`` the file is.

    The lock is the kernel's, on a file beside ``path``; it ends with the process in any case. File systems without
    locks (some Lustre mounts) get a marker file instead, which is respected for :data:`PATIENCE` seconds. If neither
    works because the folder is not writable, there is no lock: files are replaced as a whole, so the worst outcome is
    duplicate work.
    """
    with contextlib.ExitStack() as held:
        try:
            make_folder(os.path.dirname(path))
            fd = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # The file stays, because removing it would race with waiting processes.
            held.callback(os.close, fd)
            if not _flock(fd, what or path):
                held.enter_context(_marker(path))
        except OSError as e:
            _log.info("no lock on %s: %s", path, e)
        yield


def _flock(fd: int, what: str) -> bool:
    """Wait for the kernel's lock. Return ``False`` if the file system has no locks."""
    told_at = time.monotonic() + SILENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > told_at:
                _log.warning("waiting for another process, on this machine or another one, that is building %s", what)
                told_at = math.inf
            time.sleep(0.05)
        except OSError:
            return False
        else:
            return True


@contextlib.contextmanager
def _marker(path: str) -> Iterator[None]:
    import filelock

    lock = filelock.SoftFileLock(path + ".building", timeout=PATIENCE, mode=0o600)
    try:
        lock.acquire()
    except filelock.Timeout:
        _log.warning(
            "another process has been building %s for %d s, or was killed on another machine: building it here too. If "
            "there is no such process, delete %s",
            path, PATIENCE, lock.lock_file,
        )  # fmt: skip
        yield
        return
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def replacing(path: str, *, tidy: bool = True) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces ``path`` when the block succeeds and is removed when it fails.

    ``tidy``: remove leftovers of killed processes that wrote this file.
    """
    for stale in glob.glob(glob.escape(path) + ".*.tmp") if tidy else ():
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
        age = time.time() - os.fstat(fd).st_mtime
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # without locks, only the age tells
            alive = age < 1440 * _YOUNG
        else:
            alive = age < _YOUNG  # it may not be locked yet
        if not alive:
            os.unlink(path)
    finally:
        os.close(fd)
