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
from typing import IO, Any, ClassVar

from ..codecs.limits import MAX_BYTES, Limits
from ..codecs.unpack import Packed
from ..sources.remote.options import Remote
from ..sources.shards import Row, Shards, claim
from .base import PathsLike, Sharded, files_of

__all__ = ["RecordFiles", "RecordIO"]

_PART = struct.Struct("<II")
_MAGIC = 0xCED7230A
_HEADER = struct.Struct("<IfQQ")
"""How many labels follow, the label if none does, two numbers of the record."""
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


@dataclass(frozen=True, eq=False)
class RecordFiles(Shards):
    """See the module."""

    owner: ClassVar[str] = "RecordIO"

    @property
    def key(self) -> tuple[Any, ...]:
        return "recordio", *self.paths.key

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
    """Images in RecordIO files (``.rec``), as MXNet's ``im2rec`` packs them. Where a file ``.idx`` lies beside, its
    records come in that order and are named by its keys, otherwise by their number. Of several labels the first one is
    taken, and records without an image are left out.

    Args:
        paths: the ``.rec`` files; ``"train-{0..7}.rec"``, a pattern, a folder, a URL, several of these with ``::``
            between them, or a list.
        transform: a gpupipe ``Compose``, or transforms for one.
        exif: turn images upright by their EXIF orientation.
        max_pixels: larger images are bad samples of kind ``bomb``, and never decoded. ``None``: what Pillow allows,
            which is twice ``PIL.Image.MAX_IMAGE_PIXELS``.
        max_bytes: images that have more are bad samples of kind ``bomb``, and never read. The default of 2 GiB is more
            than so many pixels take without any compression.
        strict: JPEG files whose data libjpeg repairs with a warning, which Pillow delivers as if they were good, are
            bad samples of kind ``damaged``. All of each file is read and decoded once, when the index is built. See
            :mod:`gpupipe.codecs.damage` for what is found and what cannot be. Needs simplejpeg.
        remote: how URLs are read; see :class:`~gpupipe.datasets.Remote`.

    Raises:
        DatasetError: a file that is missing, no RecordIO file, or cut.

    >>> RecordIO("train.rec")  # doctest: +SKIP
    RecordIO(1,281,167 samples in 1 files below '/data/')
    """

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        files, storage = files_of(paths, (".rec",), "RecordIO", remote)
        super().__init__(RecordFiles(files, storage=storage), transform, Limits(exif, max_pixels, max_bytes, strict))
