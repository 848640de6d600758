"""Memory for the encoded images of a batch, which a worker process shares with the loader's process and uses again.

New memory costs several times as much as copying files to it, because the system clears it page by page.
"""

from __future__ import annotations

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

_MOST = 16
"""Trays of a worker. Further batches get memory that is used once."""
_MARGIN = 1.25
"""Size of new trays, in sizes of the largest batch so far."""


class _Lease:
    """Owner of arrays on a tray. A tray is free when its lease has ended."""

    def __init__(self, array: U8):
        self._array = array
        self.__array_interface__ = array.__array_interface__


# ---- in the worker


class _Tray:
    """A piece of shared memory. Its last byte is 1 while the loader's process uses it."""

    def __init__(self, number: int, size: int):
        storage = torch.UntypedStorage._new_shared(size + 1)  # type: ignore[no-untyped-call]
        self.number, self.size, self.used = number, size, 0
        self.memory = torch.empty(0, dtype=torch.uint8).set_(storage)
        self.is_known = False
        """Whether the loader's process has got the memory."""
        self._array: U8 = self.memory.numpy()
        self._array[-1] = 0
        self._lease: weakref.ref[_Lease] | None = None

    @property
    def is_free(self) -> bool:
        """Whether neither process uses it."""
        return not self._array[-1] and (self._lease is None or self._lease() is None)

    def lend(self) -> U8:
        """Return its memory, from its beginning. It is not free as long as a part of this array exists."""
        lease = _Lease(self._array)
        self._lease, self.used = weakref.ref(lease), 0
        return np.asarray(lease)

    def hand_over(self) -> Tensor | None:
        """Note that the loader's process uses it now. Returns the memory if it has not got it yet."""
        self._array[-1] = 1
        was_known, self.is_known = self.is_known, True
        return None if was_known else self.memory


class Sent(NamedTuple):
    """Encoded images on their way to the loader's process."""

    process: int
    tray: int
    """Its number; -1 for memory that is used once."""
    memory: Tensor | None
    """``None`` if the process has got it with an earlier batch."""
    starts: list[int]
    lengths: list[int]


class _Trays:
    """The trays of this process, a worker."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._trays: dict[int, _Tray] = {}
        self._current: _Tray | None = None
        self._room: U8 | None = None
        """Memory of the current tray."""
        self._largest = 0
        self._lock = threading.Lock()

    def room(self, size: int) -> memoryview | None:
        if os.getpid() != self._process:  # a process that the script has forked
            return None
        with self._lock:
            if self._current is None and self._largest:
                self._current = self._free(0)
                self._room = None if self._current is None else self._current.lend()
            tray, room = self._current, self._room
            if tray is None or room is None or tray.used + size > tray.size:
                return None
            start, tray.used = tray.used, tray.used + size
            return memoryview(room[start : start + size])  # type: ignore[arg-type]

    def sent(self, encoded: Sequence[Data]) -> Sent:
        lengths = list(map(len, encoded))
        with self._lock:
            self._largest = max(self._largest, sum(lengths))
            tray, room, self._current, self._room = self._current, self._room, None, None
            starts = None if room is None else _places(encoded, room)
            if tray is None or starts is None:
                tray = self._free(sum(lengths))
                memory = torch.empty(sum(lengths), dtype=torch.uint8) if tray is None else tray.memory
                array = memory.numpy() if tray is None else tray.lend()
                starts = list(accumulate(lengths[:-1], initial=0))
                for start, one in zip(starts, encoded, strict=True):
                    array[start : start + len(one)] = np.frombuffer(one, np.uint8)
                if tray is None:
                    return Sent(self._process, -1, memory, starts, lengths)
            return Sent(self._process, tray.number, tray.hand_over(), starts, lengths)

    def _free(self, size: int) -> _Tray | None:
        """Return a free tray for at least ``size`` bytes, perhaps a new one."""
        free = [tray for tray in self._trays.values() if tray.is_free]
        for tray in free:
            if tray.size >= max(size, self._largest):
                return tray
        if free:
            number = free[0].number  # too small by now
        elif len(self._trays) < _MOST:
            number = len(self._trays)
        else:
            return None
        self._trays[number] = made = _Tray(number, int(_MARGIN * max(size, self._largest)))
        return made


def _places(encoded: Sequence[Data], room: U8) -> list[int] | None:
    """Return where images lie on a tray; ``None`` if one lies elsewhere."""
    first: int = room.ctypes.data
    starts = [np.frombuffer(one, np.uint8).ctypes.data - first for one in encoded]
    return starts if all(0 <= start < len(room) for start in starts) else None


_trays: _Trays | None = None


def begin() -> None:
    """Give trays to this process, a worker."""
    global _trays
    _trays = _Trays()


def room(size: int) -> memoryview | None:
    """Return memory for an encoded image of the next batch; ``None`` if there is none, or if this is no worker."""
    return None if _trays is None else _trays.room(size)


def sent(encoded: Sequence[Data]) -> Sent:
    """Return the encoded images of a batch, to be pickled. The next ones belong to another batch."""
    assert _trays is not None
    return _trays.sent(encoded)


# ---- in the loader's process


class _Borrowed(_Lease):
    """Gives a tray back when no array on it is left."""

    def __del__(self) -> None:
        self._array[-1] = 0


_known: dict[int, dict[int, U8]] = {}
"""Memory of trays by process and number."""


def arrived(what: Sent) -> list[Data]:
    """Return encoded images where they arrive. A tray is used again when none of them is left."""
    array: U8
    if what.tray < 0:
        assert what.memory is not None
        array = what.memory.numpy()
    else:
        trays = _known.setdefault(what.process, {})
        if what.memory is not None:
            trays[what.tray] = what.memory.numpy()
        array = np.asarray(_Borrowed(trays[what.tray]))
    whole = memoryview(array)  # type: ignore[arg-type]
    return [whole[start : start + length] for start, length in zip(what.starts, what.lengths, strict=True)]


def forget(process: int) -> None:
    """Free the trays of a worker process that has ended."""
    _known.pop(process, None)
