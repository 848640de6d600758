"""Large files that hold many samples each."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, ClassVar, NamedTuple

import numpy as np

from ..codecs.files import Place, Undecodable, open_regular
from ..codecs.probe import MISSING, OK
from ..errors import DatasetError
from .base import Listing, OpenFiles, Source, Texts
from .files import Paths

__all__ = ["Row", "Shards"]


class Row(NamedTuple):
    """One sample of a shard."""

    name: bytes
    offset: int
    """Bytes from the beginning of the file."""
    length: int
    """Bytes."""
    label: int | None = None
    problem: str = ""
    """Why the sample cannot be used, if that shows already."""


@dataclass(frozen=True, eq=False)
class Shards(Source):
    """The samples of the first shard, then those of the second, and so on. A format says what rows a shard has."""

    paths: Paths
    _files: OpenFiles = field(default_factory=OpenFiles, init=False, repr=False)

    whole_files: ClassVar[bool] = False
    owner: ClassVar[str]
    """The dataset that asks, for messages."""

    @abstractmethod
    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        """The samples of one shard, in their order. Raises :class:`ValueError` with what is wrong with the shard, and
        :class:`OSError`."""

    @property
    def prefix(self) -> bytes:
        return self.paths.below

    def listing(self, progress: Callable[[int], None]) -> Listing:
        """Raises :class:`DatasetError` if a shard cannot be read to its end, or if there is no sample in any."""
        started = time.time_ns()
        size, mtime_ns = array("q"), array("q")
        container, offset, length, labels = array("i"), array("q"), array("q"), array("q")
        status, reasons, names = bytearray(), dict[int, str](), list[bytes]()
        unlabelled: list[int] = []
        for k in range(len(self.paths)):
            path = self.paths[k]
            try:
                with open(path, "rb", opener=open_regular) as file:
                    found = os.fstat(file.fileno())
                    size.append(found.st_size)
                    mtime_ns.append(found.st_mtime_ns)
                    for row in self.rows(file):
                        if row.problem:
                            reasons[len(status)] = row.problem
                        elif row.label is None:
                            unlabelled.append(len(status))
                        status.append(MISSING if row.problem else OK)
                        names.append(row.name)
                        container.append(k)
                        offset.append(row.offset)
                        length.append(row.length)
                        labels.append(-1 if row.label is None else row.label)
                        if len(status) % 4096 == 0:
                            progress(len(status))
            except (OSError, ValueError) as e:
                why = e.strerror or str(e) if isinstance(e, OSError) else str(e)
                raise DatasetError(
                    f"{self.owner}: the shard {os.fsdecode(path)} cannot be used: {why}. Make or download it again, or "
                    "leave it out"
                ) from None
            progress(len(status))
        labelled = len(unlabelled) < len(status) - len(reasons)
        for i in unlabelled if labelled else ():
            status[i] = MISSING
            reasons[i] = "it has no label, and other samples have one"
        if not status:
            shown = os.fsdecode(self.paths[0]) if len(self.paths) else "no file was given"
            raise DatasetError(f"{self.owner}: there is no sample in any of {len(self.paths)} files ({shown})")
        return Listing(
            self.prefix,
            self.paths.rows,
            np.frombuffer(size, np.int64),
            np.frombuffer(mtime_ns, np.int64),
            np.frombuffer(status, np.uint8),
            reasons,
            started,
            labels=np.frombuffer(labels, np.int64) if labelled else None,
            container=np.frombuffer(container, np.int32),
            offset=np.frombuffer(offset, np.int64),
            length=np.frombuffer(length, np.int64),
            names=Texts.of(names),
            absolute=self.paths.absolute,
        )

    def read(self, places: Sequence[Place]) -> list[bytes | Undecodable]:
        found: list[bytes | Undecodable] = []
        for place in places:
            try:
                found.append(self._files.read(place))
            except Undecodable as e:
                found.append(e)
        return found
