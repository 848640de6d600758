"""Checks of files just before an engine opens them by name."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from ..codecs.files import NOT_A_FILE, Undecodable, refuse_large

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

_SLOW = 50e-6
"""Seconds per file, averaged over a batch, above which threads share the work."""
_THREADS = 16


class FileChecker:
    """Finds files that must not be opened, whatever they were when they were indexed.

    A FIFO would block the engine forever, and a file that has grown beyond ``max_bytes`` would take the memory. Also
    finds files whose size has changed: the engine's decoder may not be safe with their new content.

    A file that is replaced between this check and the opening goes unnoticed. The engine must find all other faults.
    The check takes 3 microseconds for a local file, and a round trip for a network file system.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._pool: ThreadPoolExecutor | None = None

    def __call__(
        self, paths: Sequence[U8], sizes: I64 | None = None
    ) -> tuple[list[tuple[int, Undecodable]], list[int]]:
        """Return [(position, problem)] of files in ``paths``, u8[L] each, that must not be opened, and the positions of
        files whose size differs from ``sizes``, i64[N]."""
        names = [path.tobytes() for path in paths]
        if not names:
            return [], []
        # This thread checks the files until a batch shows that they are far away.
        if self._pool is None:
            began = time.perf_counter()
            found = self._look(names)
            if time.perf_counter() - began > _SLOW * len(names):
                self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="gpupipe-look")
        else:
            size = -(-len(names) // _THREADS)
            parts = [names[at : at + size] for at in range(0, len(names), size)]
            found = [problem for part in self._pool.map(self._look, parts) for problem in part]
        problems = [(i, problem) for i, problem in enumerate(found) if isinstance(problem, Undecodable)]
        # With a problem the batch is not made, so changed sizes do not matter.
        if problems or sizes is None:
            return problems, []
        then = sizes.tolist()
        return [], [i for i, now in enumerate(found) if now is not None and now != then[i]]

    def _look(self, names: list[bytes]) -> list[Undecodable | int | None]:
        return [self._one(name) for name in names]

    def _one(self, name: bytes) -> Undecodable | int | None:
        """Return the problem of a file, its size, or ``None`` if nothing is known about it."""
        try:
            found = os.stat(name)
        except OSError as e:
            gone = e.errno in (errno.ENOENT, errno.ENOTDIR)
            return Undecodable("missing", e.strerror or str(e)) if gone else None
        if not stat.S_ISREG(found.st_mode):
            return Undecodable("unreadable", NOT_A_FILE)
        try:
            refuse_large(found.st_size, self._max_bytes)
        except Undecodable as e:
            return e
        return found.st_size

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
