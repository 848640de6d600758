"""RecordIO files, as MXNet's ``im2rec`` writes them: ``train.rec``, and beside it ``train.idx`` with the position of
every record.

A record is a magic number, its length, a header with the label, and the encoded image. Where the magic number comes in
a record by chance, the record is cut there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from ..codecs.unpack import Packed
from ..sources.shards import Row, Shards, claim
from .base import PathsLike, RemoteOptions, Sharded, Unpack

__all__ = ["RecordFiles", "RecordIO"]

_PART = struct.Struct("<II")
_MAGIC = 0xCED7230A
_HEADER = struct.Struct("<IfQQ")
"""How many labels follow, the label if none does, two numbers of the record."""
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


@dataclass(frozen=True, eq=False)
class RecordFiles(Shards):
    """See the module."""

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

    def _positions(self, path: bytes, total: int) -> list[tuple[bytes, int]] | None:
        """(key, position) of the records in ``total`` bytes, if there is an index file."""
        try:
            with self.storage.open(path.rpartition(b".")[0] + b".idx") as file:
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
        """(a row, or nothing if the record has no image; where the next record begins)"""
        start, size, parts = at, 0, 0
        content = b""
        while True:
            file.seek(at)
            head = file.read(_PART.size)
            if len(head) < _PART.size:
                raise ValueError(f"it ends within the record at byte {start}")
            magic, word = _PART.unpack(head)
            kind, length = word >> 29, word & (1 << 29) - 1
            if magic != _MAGIC or (kind not in (_WHOLE, _FIRST) if not parts else kind not in (_MIDDLE, _LAST)):
                raise ValueError(f"it is no RecordIO file, or damaged at byte {at}")
            if not parts:
                content = file.read(min(length, 4096))
            at += _PART.size + length
            size += length + 4 * (parts > 0)
            parts += 1
            if at > total:
                raise claim("the record", start, at - start, total)
            end, at = at, (at + 3) & ~3
            if kind in (_WHOLE, _LAST):
                break
        if len(content) < _HEADER.size:
            raise ValueError(f"the record at byte {start} is too short for a header")
        count, label, _, _ = _HEADER.unpack_from(content)
        skip = _HEADER.size + 4 * count
        if skip > len(content):
            if skip > size:
                raise ValueError(f"the record at byte {start} is too short for {count} labels")
        elif count:
            (label,) = struct.unpack_from("<f", content, _HEADER.size)
        if skip == size:  # lists of other records, as those for faces have them
            return None, at
        if not label.is_integer():
            return Row(name, 0, 0, problem=f"its label is {label}, which is no class number"), at
        if parts == 1:
            return Row(name, start + _PART.size + skip, size - skip, int(label)), at
        return Row(name, start, end - start, int(label), packed=Packed("recordio", size, skip, size - skip)), at


class RecordIO(Sharded):
    """Images in RecordIO files (``.rec``), as MXNet's ``im2rec`` packs them. If a file ``.idx`` lies beside one, its
    records come in that order and are named by its keys, otherwise by their number. Records without an image are left
    out; if they have several labels, the first is taken.

    Not supported: a record whose label is not a whole number is a bad sample.

    Raises:
        DatasetError: A file is missing, not a RecordIO file, or cut.

    >>> RecordIO("train.rec")  # doctest: +SKIP
    RecordIO(1,281,167 samples in 1 files below '/data/')
    """

    suffixes = (".rec",)

    def __init__(self, paths: PathsLike, transform: Any = None, **options: Unpack[RemoteOptions]):
        super().__init__(RecordFiles, self.files(paths, options), transform, options)
