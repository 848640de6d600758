"""Sources of large files that hold many samples each."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import IO, Any, ClassVar

from ..codecs.patience import Pool
from ..codecs.retry import advised
from ..errors import DatasetError
from ..printable import printable
from .base import Listing, Source
from .columns import NoSuchColumn
from .compressed import compression_of
from .files import Paths
from .label_names import names_beside
from .rows import Row, RowTable
from .storage import LOCAL, Storage

__all__ = ["CLAIMS", "Row", "Shards", "claim"]

_AHEAD = 4
"""Remote shards that are read at the same time."""


def claim(what: str, at: int, size: int, total: int) -> ValueError:
    """Return the error for a part of a file that claims to be larger than the rest of the file, which ends at
    byte ``total``."""
    return ValueError(f"{what} at byte {at} claims {size} bytes, and the file has {total}: it is truncated or damaged")


CLAIMS = (MemoryError, OverflowError, RecursionError, NotImplementedError)
"""Errors that readers raise for impossible numbers and structures."""


@dataclass(frozen=True, eq=False)
class Shards(Source):
    """The samples of the first shard, then those of the second, and so on. A format lists the rows of a shard."""

    paths: Paths
    storage: Storage = field(default=LOCAL, kw_only=True, repr=False)
    columns: tuple[str, ...] = field(default=(), kw_only=True)
    """Names of the columns besides the label."""

    whole_files: ClassVar[bool] = False
    owner: ClassVar[str]
    """The dataset that asks, for messages."""
    labels_file: ClassVar[bool] = False
    """Whether a file ``labels.txt`` next to the shards names the classes; see :mod:`.label_names`."""

    @abstractmethod
    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        """Yield the samples of one shard, in order.

        Raises :class:`ValueError` if the shard is damaged, and :class:`OSError`.
        """

    def names(self, file: IO[bytes]) -> Iterable[str]:
        """Return the names of the values in the first sample of a shard, as arguments take them; for messages."""
        return ()

    def first_names(self) -> list[str]:
        """Return the names from :meth:`names`; empty if they cannot be read."""
        try:
            with self.storage.open(self.paths[0]) as file:
                return [*self.names(file)]
        except Exception:  # these names are only for messages: an empty or odd first shard must not raise here
            return []

    def fields(self) -> list[str]:
        there, used = self.first_names(), set()
        for given in (getattr(self, "image", None), getattr(self, "label", None)):
            choices = given if isinstance(given, tuple) else (given,)
            used.update([name for name in choices if name in there][:1])  # readers take the first one that is there
        return [name for name in there if name not in used]

    @property
    def key(self) -> tuple[Any, ...]:
        shared = {it.name for it in fields(Shards)}
        own = (getattr(self, it.name) for it in fields(self) if it.name not in shared)
        return self.owner.lower(), *self.paths.key, *own

    @property
    def prefix(self) -> bytes:
        return self.paths.below

    def listing(self, progress: Callable[[int], None]) -> Listing:
        """List the rows. Raises :class:`DatasetError` if a shard cannot be read to its end, or if no shard has
        a sample."""
        started, rows = time.time_ns(), RowTable(self.columns)
        for k, content in enumerate(self._contents()):
            rows.container(self.paths.rows[k], next(content))
            for row in content:
                try:
                    rows.add(k, row)
                except ValueError as e:
                    raise DatasetError(f"{self.owner}: {e}; leave it out of columns=") from None
                if len(rows) % 4096 == 0:
                    progress(len(rows))
            progress(len(rows))
        if not len(rows):
            shown = printable(self.paths[0]) if len(self.paths) else "no file was given"
            raise DatasetError(f"{self.owner}: there is no sample in any of {len(self.paths)} files ({shown})")
        try:
            named = self.labels_file and rows.greatest >= 0
            names = names_beside(self.storage, self.prefix, rows.greatest) if named else ()
            return rows.listing(self.prefix, started, classes=names, absolute=self.paths.absolute)
        except ValueError as e:
            there = self.first_names() if isinstance(e, NoSuchColumn) else []
            has = f"; the first sample has {', '.join(map(repr, there))}" if there else ""
            raise DatasetError(f"{self.owner}: {e}{has}; correct it, or name others by label= and columns=") from None

    def _contents(self) -> Iterator[Iterator[Any]]:
        """Yield the content of every shard; see :meth:`_content`."""
        numbers = range(len(self.paths))
        if not self.storage.remote:
            yield from map(self._content, numbers)
            return
        # Reading mostly waits. Only a few are read at a time, since their rows are held until it is their turn.
        with Pool(_AHEAD, "gpupipe-list") as pool:
            for k in range(0, len(numbers), _AHEAD):
                yield from map(iter, pool.map(lambda k: list(self._content(k)), numbers[k : k + _AHEAD]))

    def _content(self, k: int) -> Iterator[Any]:
        """Yield the status of a shard, and then its rows."""
        path = self.paths[k]
        try:
            (found,) = self.storage.look([path])
            if isinstance(found, OSError):
                raise found
            yield found
            with self.storage.open(path) as file:
                yield from self.rows(file, path)
        except (OSError, ValueError, *CLAIMS) as e:
            raise self._unusable(path, e) from None

    def _unusable(self, path: bytes, e: Exception) -> DatasetError:
        why = e.strerror or str(e) if isinstance(e, OSError) else str(e)
        if isinstance(e, CLAIMS):
            why = f"it is damaged, or claims more than it has ({type(e).__name__}: {e})"
        text = advised(e, why, "make or download it again, or leave it out")
        if isinstance(e, ValueError):
            # Asked only now, because the beginning of a good file may look compressed.
            with suppress(OSError, ValueError), self.storage.open(path) as file:
                text = compression_of(file) or text
        return DatasetError(f"{self.owner}: the shard {printable(path)} cannot be used: {text}")
