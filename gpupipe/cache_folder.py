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
BEAT, LOST = 2.0, 30.0
"""Seconds between signs of life in a lock file, and without one until its holder counts as gone."""
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

    Those that wait say after :data:`SILENCE` seconds, and every minute, who builds ``what`` and for how long.

    The lock is a file beside ``path``, which works on shared folders without kernel locks. Its holder touches it every
    :data:`BEAT` seconds. A holder that is gone is replaced: at once if it ran on this machine, otherwise when the file
    was not touched for :data:`LOST` seconds. If the folder is not writable, there is no lock: files are replaced as a
    whole, so the worst outcome is duplicate work.
    """
    held: _Lock | None = None
    try:
        make_folder(os.path.dirname(path))
        held = _Lock(path + ".building", what or path)
    except OSError as e:
        _log.info("no lock on %s: %s", path, e)
    try:
        yield
    finally:
        if held is not None:
            held.release()


class _Lock:
    """A lock file that this process holds and touches. Waits until it is free."""

    def __init__(self, path: str, what: str):
        self._path = path
        # The time makes the content differ from that of an earlier process with the same number.
        self._content = json.dumps([_machine(), os.getpid(), threading.get_ident(), time.time()]).encode()
        wait = _Wait(path, what)
        while not self._create():
            wait.a_while()
        self._done = threading.Event()
        threading.Thread(target=self._beat, name="gpupipe-lock", daemon=True).start()

    def _create(self) -> bool:
        """Create the file with its content at once. Return ``False`` if there is one."""
        own = f"{self._path}.{os.getpid()}-{threading.get_ident():x}-{time.monotonic_ns():x}.tmp"
        with open(own, "xb") as file:
            file.write(self._content)
        try:
            os.link(own, self._path)  # atomic on network file systems, too
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            try:
                with open(self._path, "xb") as file:
                    file.write(self._content)
            except FileExistsError:
                return False
        finally:
            os.unlink(own)
        return True

    def _is_mine(self) -> bool:
        found = _look(self._path)
        return found is not None and found[0] == self._content

    def _beat(self) -> None:
        while not self._done.wait(BEAT):
            with contextlib.suppress(OSError):
                if not self._is_mine():
                    return  # replaced, because this process was stopped for too long
                os.utime(self._path)

    def release(self) -> None:
        self._done.set()
        with contextlib.suppress(OSError):
            if self._is_mine():
                os.unlink(self._path)


class _Wait:
    """Waiting for the holder of a lock file."""

    def __init__(self, path: str, what: str):
        self._path, self._what = path, what
        self._told_at = time.monotonic() + SILENCE
        self._seen: tuple[bytes, int] | None = None
        self._since = 0.0
        self._pause = 0.02

    def a_while(self) -> None:
        """Wait a moment, and remove the lock if its holder is gone."""
        found, now = _look(self._path), time.monotonic()
        if found is None:
            return
        if found != self._seen:  # by this machine's clock, because those of machines differ
            self._seen, self._since = found, now
        machine, pid, began = _holder(found[0])
        if now - self._since > LOST or (machine == _machine() and not _is_alive(pid)):
            who = f"process {pid} on {machine.split()[0]}"
            _log.warning("%s was building %s and is gone: this process takes over", who, self._what)
            self._take_away(found[0])
            return
        if now > self._told_at:
            _log.warning(
                "waiting for process %d on %s, which has been building %s for %.0f s",
                pid, machine.split()[0], self._what, max(time.time() - began, 0.0),
            )  # fmt: skip
            self._told_at = now + _REMIND
        self._pause = min(1.2 * self._pause, 0.5)
        time.sleep(self._pause)

    def _take_away(self, content: bytes) -> None:
        gone = f"{self._path}.{os.getpid()}-{threading.get_ident():x}-{time.monotonic_ns():x}.tmp"
        with contextlib.suppress(OSError):
            os.rename(self._path, gone)  # only one of those that wait succeeds
            found = _look(gone)
            if found is not None and found[0] != content:  # of another process, which was faster
                with contextlib.suppress(OSError):
                    os.link(gone, self._path)
            os.unlink(gone)


def _look(path: str) -> tuple[bytes, int] | None:
    """Return content and time of a lock file, or ``None`` if there is none. A network file system looks anew when a
    file is opened."""
    try:
        with open(path, "rb") as file:
            return file.read(1024), os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _holder(content: bytes) -> tuple[str, int, float]:
    """Return machine, process and time of a lock file's content."""
    try:
        machine, pid, _, began = json.loads(content)
        return str(machine) or "?", int(pid), float(began)
    except (ValueError, TypeError):
        return "an unknown machine", 0, time.time()


def _machine() -> str:
    """Return what identifies the processes that this one sees: its machine, and the container on it."""
    try:
        return f"{platform.node() or '?'} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return platform.node() or "?"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


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
