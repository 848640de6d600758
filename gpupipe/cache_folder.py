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

__all__ = ["cache_folder", "distrust", "distrust_folder", "index_path", "locked", "make_folder", "replacing"]

_log = logging.getLogger("gpupipe")

_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This folder was made by gpupipe. Everything in it can be made again; it need not be backed up.
"""
_SUFFIX = ".gpupipe-index"
PATIENCE = 600
"""Seconds."""
_YOUNG = 60
"""Seconds without a change after which a file without a lock is abandoned; a day if there are no locks."""


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


def distrust_folder(path: str) -> str | None:
    """Why nothing must be kept in a folder that only this user may write to; ``None`` if it is one, or not there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as e:
        return f"it cannot be looked at: {e.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return "it is a link" if stat.S_ISLNK(found.st_mode) else "it is not a folder"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}, and this is user {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (its mode is {stat.S_IMODE(found.st_mode):o})"
    return None


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock of ``path``, so that of several processes one makes the file, and the others find it.

    It is the kernel's lock on a file beside ``path``, which ends with its process, however that ends. File systems that
    have no locks (some Lustre mounts) get a file that is there while the lock is held, which is believed for
    :data:`PATIENCE` seconds. If neither can be had, because nothing can be written there, it is gone without: files
    are replaced as a whole, so the worst is that several processes do the same work.
    """
    with contextlib.ExitStack() as held:
        try:
            make_folder(os.path.dirname(path))
            fd = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # It stays: removing it would race with who waits for it.
            held.callback(os.close, fd)
            if not _flock(fd, path):
                held.enter_context(_marker(path))
        except OSError as e:
            _log.info("no lock on %s: %s", path, e)
        yield


def _flock(fd: int, path: str) -> bool:
    """Wait for the kernel's lock. Gives ``False`` if the file system has none."""
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("another process is building %s; waiting for it", path)
            fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError:
        return False
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
            "none is, delete %s",
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
    """A file to write, which takes the place of ``path`` when the block ends well and vanishes when it does not.

    ``tidy``: remove what processes that were killed while they wrote have left of this file.
    """
    for stale in glob.glob(glob.escape(path) + ".*.tmp") if tidy else ():
        with contextlib.suppress(OSError):
            _remove_abandoned(stale)
    temporary = f"{path}.{os.getpid()}-{threading.get_ident():x}-{time.monotonic_ns():x}.tmp"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w+b") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # somebody writes this: see _remove_abandoned
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _remove_abandoned(path: str) -> None:
    """Remove a temporary file that nobody writes any more. Raises :class:`OSError`, also if somebody does."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        age = time.time() - os.fstat(fd).st_mtime
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # no locks here: only its age tells
            alive = age < 1440 * _YOUNG
        else:
            alive = age < _YOUNG  # it may not be locked yet
        if not alive:
            os.unlink(path)
    finally:
        os.close(fd)
