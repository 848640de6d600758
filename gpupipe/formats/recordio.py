"""RecordIO files, as MXNet's ``im2rec`` writes them: ``train.rec``, and ``train.idx`` with the position of every
record.

A record is a magic number, its length, a header with the label, and the encoded image. A record that happens to contain
the magic number is split there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..codecs.unpack import Packed
from ..errors import DatasetError
from ..sources.compressed import plain_name
from ..sources.shards import Row, Shards, claim
from .base import PathsLike, Sharded, ShardOptions, Unpack

_PART = struct.Struct("<II")
_MAGIC = 0xCED7230A
_HEADER = struct.Struct("<IfQQ")
"""Number of labels that follow, the label if none follow, and two numbers of the record."""
_COLUMNS = ("labels", "id", "id2")
_LABELS = (4096 - _HEADER.size) // 4
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


@dataclass(frozen=True, eq=False)
class RecordFiles(Shards):
    """Rows of RecordIO files.

    Args:
        label: which of several labels is the class number; ``None``: the only one.
    """

    label: int | None

    owner = "RecordIO"

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        total = file.seek(0, os.SEEK_END)
        positions = self._positions(path, total)
        if positions is None:
            at = number = 0
            while at < total:
                row, at = self._row(file, at, total, b"%d" % number)
                number += 1
                if row is not None:
                    yield row
            return
        for key, at in positions:
            row, _ = self._row(file, at, total, key)
            if row is not None:
                yield row

    def beside(self, path: bytes) -> bytes:
        return os.fsencode(plain_name(os.fsdecode(path)).rpartition(".")[0] + ".idx")

    def _positions(self, path: bytes, total: int) -> list[tuple[bytes, int]] | None:
        """Return (key, position) of the records in ``total`` bytes, if there is an index file."""
        try:
            with self.storage.open(self.beside(path)) as file:
                lines = [line.split() for line in file.read().splitlines() if line.strip()]
        except FileNotFoundError:
            return None
        if any(len(line) != 2 or not line[1].isdigit() for line in lines):
            raise ValueError("its .idx file is damaged: every line has a key and a position")
        positions = [(key, int(at)) for key, at in lines]
        if any(at >= total for _, at in positions):
            raise ValueError(
                f"its .idx file belongs to another one: it has {total} bytes, and a record lies behind them"
            )
        return positions

    def _row(self, file: IO[bytes], at: int, total: int, name: bytes) -> tuple[Row | None, int]:
        """Return (a row, or ``None`` if the record has no image; the start of the next record)."""
        start, size, parts = at, 0, 0
        content = b""
        while True:
            file.seek(at)
            head = file.read(_PART.size)
            if len(head) < _PART.size:
                raise ValueError(f"it ends within the record at byte {start}")
            magic, word = _PART.unpack(head)
            # The upper three bits say which part of a record this is, or that it is a whole one.
            kind, length = word >> 29, word & (1 << 29) - 1
            if magic != _MAGIC or (kind not in (_WHOLE, _FIRST) if not parts else kind not in (_MIDDLE, _LAST)):
                raise ValueError(f"it is not a RecordIO file, or it is damaged at byte {at}")
            if not parts:
                content = file.read(min(length, 4096))
            at += _PART.size + length
            # Where a record was split, the magic number is left out, which has four bytes.
            size += length + 4 * (parts > 0)
            parts += 1
            if at > total:
                raise claim("the record", start, at - start, total)
            # Parts are padded to four bytes.
            end, at = at, (at + 3) & ~3
            if kind in (_WHOLE, _LAST):
                break
        if len(content) < _HEADER.size:
            raise ValueError(f"the record at byte {start} is too short for a header")
        count, single, first, second = _HEADER.unpack_from(content)
        skip = _HEADER.size + 4 * count
        if skip > size:
            raise ValueError(f"the record at byte {start} is too short for {count} labels")
        if skip == size:  # lists of other records, as in face datasets
            return None, at
        if skip > len(content):
            return Row(name, 0, 0, problem=f"it has {count} labels, and at most {_LABELS} are read"), at
        labels = np.frombuffer(content, "<f4", count, _HEADER.size) if count else np.array([single], "<f4")
        packed = None if parts == 1 else Packed("recordio", size, skip, size - skip)
        # A record in one part is a range of bytes; several parts must be joined first.
        row = Row(name, start + _PART.size + skip, size - skip) if packed is None else Row(name, start, end - start)
        about = {"labels": labels, "id": first, "id2": second}
        row = row._replace(packed=packed, values=[about.get(column) for column in self.columns])
        return self._labeled(row, labels), at

    def names(self, file: IO[bytes]) -> Iterable[str]:
        return _COLUMNS

    def _labeled(self, row: Row, labels: npt.NDArray[Any]) -> Row:
        if self.label is None and len(labels) > 1:
            if "labels" in self.columns:
                return row
            return row._replace(
                problem=f"it has {len(labels)} labels, and a label is one class number; columns=['labels'] gives all, "
                "and label=0 takes the first"
            )
        number = self.label or 0
        if not -len(labels) <= number < len(labels):
            return row._replace(problem=f"it has {len(labels)} labels, and no label={number}")
        label = float(labels[number])
        if not label.is_integer():
            if self.label is None and "labels" in self.columns:
                return row
            return row._replace(
                problem=f"its label is {label}, which is not a class number; columns=['labels'] gives it"
            )
        return row._replace(label=int(label))


class RecordIO(Sharded):
    """Images in RecordIO files (``.rec``), as MXNet's ``im2rec`` packs them. If there is a file ``.idx`` next to one,
    its records are in that order and named by its keys, otherwise by their number. Records without an image are
    omitted.

    Not supported: a record whose label is not an integer, or that has several, is a bad sample, unless ``label`` or
    ``columns`` specifies how to use them.

    Args:
        label: Which of several labels is the class number, counted from 0. ``None``: the only one.
        columns: ``"labels"`` for all labels of a record, f32[L], equally many in each; ``"id"`` and ``"id2"`` for the
            numbers in its header.

    Raises:
        DatasetError: A file is missing, not a RecordIO file, or cut.

    >>> RecordIO("train.rec")  # doctest: +SKIP
    RecordIO(1,281,167 samples in 1 files below '/data/')
    """

    suffixes = (".rec",)

    def __init__(
        self, paths: PathsLike, transform: Any = None, *, label: int | None = None, **options: Unpack[ShardOptions]
    ):
        if label is not None and type(label) is not int:
            raise DatasetError(f"RecordIO: label must be the number of a label, such as 0, and is {label!r}")
        wrong = [name for name in options.get("columns", ()) if name not in _COLUMNS]
        if wrong:
            raise DatasetError(f"RecordIO: there is no column {wrong[0]!r}; there are 'labels', 'id' and 'id2'")
        super().__init__(partial(RecordFiles, label=label), self.files(paths, options), transform, options)
