"""Rows of containers, added one by one to columns that grow."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..codecs.probe import KINDS, MISSING, OK
from .base import Listing, TextList
from .columns import GrowingColumn
from .storage import Found

_LARGEST = 1 << 63
"""Labels must fit into 64 bits."""


class Row(NamedTuple):
    """One sample of a container."""

    name: bytes
    offset: int
    """Bytes from the beginning of the file."""
    length: int
    """Bytes."""
    label: int | str | None = None
    """A number, or the name of a class."""
    problem: str = ""
    """Why the sample cannot be used, if known already."""
    inflated: int = -1
    """Bytes after inflating; -1 if the sample is not deflated."""
    kind: str = "missing"
    """Kind of the problem; one of :data:`gpupipe.codecs.probe.KINDS`."""
    values: Sequence[Any] = ()
    """Values of further columns, in the order of their names; ``None`` for one that the sample lacks."""


class RowTable:
    """Containers and their rows, in the order in which they are added.

    Args:
        columns: names of the columns that rows have values for.
    """

    def __init__(self, columns: Sequence[str] = ()) -> None:
        self._columns = [GrowingColumn(name) for name in columns]
        self._paths = TextList()
        self._size, self._version, self._changed = array("q"), array("q"), array("q")
        self._names = TextList()
        self._container = array("i")
        self._offset, self._length, self._inflated = array("q"), array("q"), array("q")
        self._status = bytearray()
        self._reasons: dict[int, str] = {}
        self._labels = array("q")
        self._unlabeled: list[int] = []
        self._classes: dict[str, int] = {}
        self._numbers = False

    def __len__(self) -> int:
        return len(self._status)

    @property
    def greatest(self) -> int:
        """The greatest numeric label; -1 without any."""
        return max(self._labels, default=-1) if self._numbers else -1

    def container(self, path: bytes, found: Found) -> int:
        """Add a container. Returns its number."""
        self._paths.append(path)
        self._size.append(found.size)
        self._version.append(found.version)
        self._changed.append(found.changed)
        return len(self._size) - 1

    def add(self, container: int, row: Row) -> None:
        size = self._size[container]
        if not row.problem and not (0 <= row.offset <= row.offset + row.length <= size):
            where = f"bytes {row.offset} to {row.offset + row.length} of a file of {size} bytes"
            row = row._replace(offset=0, length=0, inflated=-1, problem=f"it should be {where}", kind="truncated")
        if isinstance(row.label, int) and not -_LARGEST <= row.label < _LARGEST:
            row = row._replace(label=None, problem=f"its label is {row.label}, which is not a class number")
        for i, further in enumerate(self._columns):
            # A row with a problem may come without values, but every column needs an entry for it.
            problem = further.add(None if row.problem and not row.values else row.values[i])
            row = row if row.problem or not problem else row._replace(problem=problem)
        if row.problem:
            self._reasons[len(self)] = row.problem
        elif row.label is None:
            self._unlabeled.append(len(self))
        self._status.append(KINDS.index(row.kind) if row.problem else OK)
        self._names.append(row.name)
        self._container.append(container)
        self._offset.append(row.offset)
        self._length.append(row.length)
        self._inflated.append(row.inflated)
        if isinstance(row.label, str):
            self._labels.append(self._classes.setdefault(row.label, len(self._classes)))
        else:
            self._numbers = self._numbers or row.label is not None
            self._labels.append(-1 if row.label is None else row.label)

    def listing(
        self,
        prefix: bytes,
        started_ns: int,
        *,
        classes: tuple[str, ...] = (),
        absolute: bool = False,
    ) -> Listing:
        """Return everything that was added.

        Args:
            classes: the names of all classes, by number. If labels are class names, these are sorted instead.

        Raises:
            ValueError: labels mix numbers and names; no row has a value of a column.
        """
        labels: npt.NDArray[Any] = np.frombuffer(self._labels, np.int64)
        if self._classes:
            if self._numbers:
                raise ValueError("some labels are numbers and others class names")
            labels, classes = self._named(labels)
        # If no good row has a label, there are no labels. Otherwise a row without one is bad.
        labeled = len(self._unlabeled) < len(self) - len(self._reasons)
        for i in self._unlabeled if labeled else ():
            self._status[i] = MISSING
            self._reasons[i] = "it has no label, but other samples have one"
        inflated = np.frombuffer(self._inflated, np.int64)
        return Listing(
            prefix,
            self._paths.texts(),
            np.frombuffer(self._size, np.int64),
            np.frombuffer(self._version, np.int64),
            np.frombuffer(self._status, np.uint8),
            self._reasons,
            started_ns,
            labels=labels if labeled else None,
            container=np.frombuffer(self._container, np.int32),
            offset=np.frombuffer(self._offset, np.int64),
            length=np.frombuffer(self._length, np.int64),
            inflated=inflated if (inflated >= 0).any() else None,
            names=self._names.texts(),
            columns={column.name: column.values() for column in self._columns},
            ctime_ns=np.frombuffer(self._changed, np.int64) if any(self._changed) else None,
            classes=classes if labeled else (),
            absolute=absolute,
        )

    def _named(self, labels: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
        """Renumber labels from the order of their first samples to the order of their names."""
        order = tuple(sorted(self._classes))
        number = {name: i for i, name in enumerate(order)}
        place = np.array([number[name] for name in self._classes] + [-1], np.int64)  # the last entry maps -1
        return place[labels], order
