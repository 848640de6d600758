"""Pixels in HDF5 files. A dataset in one piece is read by ranges of bytes; one in chunks goes through h5py."""

from __future__ import annotations

import os
import weakref
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.files import Place, Undecodable
from ..signal_handlers import defer_in_forks
from .hdf5_outside import find, h5py
from .storage import LOCAL

__all__ = ["ContiguousRows", "H5Rows", "PixelRows"]

U8 = npt.NDArray[np.uint8]


class PixelRows:
    """u8[N, ...] that looks like an array as far as its rows go."""

    dtype = np.dtype(np.uint8)

    def __init__(self, path: str, shape: tuple[int, ...]):
        self._path = path
        self.shape = shape
        self.ndim = len(shape)

    def __len__(self) -> int:
        return self.shape[0]


class ContiguousRows(PixelRows):
    """Rows that lie one after another from ``offset`` on."""

    def __init__(self, path: str, shape: tuple[int, ...], offset: int):
        super().__init__(path, shape)
        self._offset = offset

    def __getitem__(self, i: int) -> U8:
        """Raises :class:`~gpupipe.codecs.files.Undecodable`."""
        row = np.empty(self.shape[1:], np.uint8)
        place = Place(os.fsencode(self._path), self._offset + i * row.size, row.size)
        (problem,) = LOCAL.read_into([place], [row.reshape(-1)])
        if problem is not None:
            raise problem
        return row


class H5Rows(PixelRows):
    """Rows that h5py reads. Each process opens the file when it asks for the first row.

    Args:
        name: the dataset in the file.
        allow_outside: whether its bytes may lie in other files.
    """

    def __init__(self, path: str, shape: tuple[int, ...], name: str, allow_outside: bool = False):
        super().__init__(path, shape)
        self._name = name
        self._allow_outside = allow_outside
        self._file: Any = None
        self._rows: Any = None
        _all.add(self)

    def __getitem__(self, i: int) -> U8:
        """Raises :class:`~gpupipe.codecs.files.Undecodable`."""
        with _h5py_lock():
            try:
                if self._file is None:
                    self._file = h5py().File(self._path, "r")
                if self._rows is None:
                    self._rows = find(self._file, self._name, self._allow_outside)
                row: U8 = self._rows[i]
            except FileNotFoundError as e:
                raise Undecodable("missing", e.strerror or str(e)) from None
            except (OSError, RuntimeError, KeyError, ValueError, TypeError) as e:
                raise Undecodable("undecodable", f"h5py cannot read it: {e}") from None
            return row

    def close(self) -> None:
        """Reading opens it again."""
        file, self._file, self._rows = self._file, None, None
        if file is not None:
            file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return H5Rows, (self._path, self.shape, self._name, self._allow_outside)


_all: weakref.WeakSet[H5Rows] = weakref.WeakSet()


@cache
def _h5py_lock() -> Any:
    """h5py's own lock, which one thread has while it is in the library, and the one that forks from now on: so the
    child finds what the library keeps whole. (h5py has done so itself since 3.14.)

    There is no other lock: a fork would wait for two, in the opposite order of those who read."""
    h5py()
    from h5py._objects import phil

    os.register_at_fork(before=phil.acquire, after_in_parent=phil.release, after_in_child=phil.release)
    defer_in_forks()
    return phil


def _in_child() -> None:
    """The two processes would share a place in the file."""
    for rows in _all:
        rows.close()


os.register_at_fork(after_in_child=_in_child)
