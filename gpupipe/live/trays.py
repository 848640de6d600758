"""Memory for the encoded images of a batch, which is used again. Worker processes share it with the loader's process.

New memory costs several times as much as copying files to it, because the system clears it page by page.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

U8 = npt.NDArray[np.uint8]
Data = bytes | memoryview
"""An encoded image."""

_COUNT = 16
"""Trays of a worker. Further batches get memory that is used once."""
_SIZE = 128 << 20
"""Bytes of a tray. The system gives memory when it is written, so that only the size of batches counts."""
_NO_RESERVE = 0x4000  # mmap.MAP_NORESERVE in Python 3.13
_numbers = itertools.count()


class Trays:
    """The trays of a worker process. The loader's process makes them before it forks, and keeps them for later ones."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        size = mmap.PAGESIZE + _COUNT * _SIZE
        whole = np.frombuffer(mmap.mmap(-1, size, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NO_RESERVE), np.uint8)
        self.arrays = whole[mmap.PAGESIZE :].reshape(_COUNT, _SIZE)
        self.in_use = whole[:_COUNT]
        """u8[_COUNT]: 1 for a tray that the loader's process uses, or that is on its way to it."""
        self.held: set[int] = set()
        """Numbers of trays that the loader's process uses."""
        _made[self.number] = self

    def free(self) -> None:
        """Free the trays that are on their way. Their worker process has ended."""
        for number in range(_COUNT):
            if number not in self.held:
                self.in_use[number] = 0


_made: weakref.WeakValueDictionary[int, Trays] = weakref.WeakValueDictionary()


class Sent(NamedTuple):
    """Encoded images on their way to the loader's process."""

    trays: int
    tray: int
    """Its number."""
    memory: Tensor | None
    """Memory that is used once, in place of a tray."""
    starts: list[int]
    lengths: list[int]


# ---- where images are opened


class _Lease:
    """Owner of arrays on a tray. They are still in use as long as it exists."""

    def __init__(self, array: U8):
        self._memory, self.__array_interface__ = array, array.__array_interface__


class _Writer:
    """Fills the trays of this process."""

    def __init__(self, trays: Trays | None):
        self.process, self._trays, self._lock = os.getpid(), trays, threading.Lock()
        self._leases: dict[int, weakref.ref[_Lease]] = {}
        self._tray: int | None = None
        """Number of the tray of the next batch."""
        self._room: U8 | None = None
        """Its memory."""
        self._used = 0

    def room(self, size: int) -> memoryview | None:
        if os.getpid() != self.process:  # a process that the script has forked
            return None
        with self._lock:
            if self._room is None:
                self._tray, self._room = self._lent()
                self._used = 0
            if self._room is None or self._used + size > _SIZE:
                return None
            start, self._used = self._used, self._used + size
            return memoryview(self._room[start : start + size])  # type: ignore[arg-type]

    def sent(self, encoded: Sequence[Data]) -> Sent:
        lengths, memory = list(map(len, encoded)), None
        with self._lock:
            tray, room, self._tray, self._room = self._tray, self._room, None, None
            starts = None if room is None else _places(encoded, room)
            if starts is None:
                tray, room = self._lent() if sum(lengths) <= _SIZE else (None, None)
                if room is None:
                    memory = torch.empty(sum(lengths), dtype=torch.uint8)
                    room = memory.numpy()
                starts = list(accumulate(lengths[:-1], initial=0))
                for start, one in zip(starts, encoded, strict=True):
                    room[start : start + len(one)] = np.frombuffer(one, np.uint8)
            if tray is None or self._trays is None:
                return Sent(-1, -1, memory, starts, lengths)
            self._trays.in_use[tray] = 1
            return Sent(self._trays.number, tray, None, starts, lengths)

    def _lent(self) -> tuple[int, U8] | tuple[None, None]:
        """Return a free tray and its memory."""
        trays = self._trays
        if trays is None:
            return None, None
        for number in range(_COUNT):
            lease = self._leases.get(number)
            if not trays.in_use[number] and (lease is None or lease() is None):
                made = _Lease(trays.arrays[number])
                self._leases[number] = weakref.ref(made)
                return number, np.asarray(made)
        return None, None


def _places(encoded: Sequence[Data], room: U8) -> list[int] | None:
    """Return where images lie on a tray; ``None`` if one lies elsewhere."""
    first: int = room.ctypes.data
    starts = [np.frombuffer(one, np.uint8).ctypes.data - first for one in encoded]
    return starts if all(0 <= start < len(room) for start in starts) else None


_writer: _Writer | None = None


def begin(trays: Trays | None) -> None:
    """Give trays to this process, a worker. Without any, memory is used once."""
    global _writer
    _writer = _Writer(trays)


def room(size: int) -> memoryview | None:
    """Return memory for an encoded image of the next batch; ``None`` if there is none."""
    return None if _writer is None else _writer.room(size)


def sent(encoded: Sequence[Data]) -> Sent:
    """Return the encoded images of a batch, to be pickled. The next ones belong to another batch."""
    assert _writer is not None
    return _writer.sent(encoded)


# ---- in the loader's process


class _Borrowed:
    """Owner of arrays on a tray, which it gives back when none of them is left."""

    def __init__(self, trays: Trays, number: int):
        self._trays, self._number, self._process = trays, number, os.getpid()  # the trays keep the memory
        self.__array_interface__ = trays.arrays[number].__array_interface__
        trays.held.add(number)

    def __del__(self) -> None:
        if os.getpid() == self._process:  # forked processes share the tray
            self._trays.held.discard(self._number)
            self._trays.in_use[self._number] = 0


def arrived(what: Sent) -> list[Data]:
    """Return encoded images where they arrive. A tray is used again when none of them is left."""
    array = np.asarray(_Borrowed(_made[what.trays], what.tray)) if what.memory is None else what.memory.numpy()
    whole = memoryview(array)  # type: ignore[arg-type]
    return [whole[start : start + length] for start, length in zip(what.starts, what.lengths, strict=True)]
