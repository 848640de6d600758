"""Unpack shards whose samples cannot be read one by one into a folder beside the destination, for the time of packing.

The files keep their names there, and the ordinary index finds their samples. A file that exists is complete, so the
same command goes on after a kill.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

from ..cache_folder import replacing
from ..errors import ConfigError, DatasetError
from ..printable import printable
from ..sources.base import Texts
from ..sources.compressed import codec_of, unpacked
from ..sources.files import Paths
from ..sources.label_names import FILE as LABELS
from ..sources.shards import CLAIMS, Shards
from ..sources.storage import LOCAL, Found
from .journal import refuse_foreign

_PIECE = 1 << 20
_NAME = "source"


class Unpacking:
    """The folder with the unpacked files of a source; hidden, beside the destination.

    Args:
        source: the shards as they are.
        destination: the folder that ``gpupipe pack`` writes.

    Raises:
        ConfigError: another run uses the folder, or the destination has other files.
        DatasetError: it cannot be written to, or a shard is missing.
    """

    def __init__(self, source: Shards, destination: str):
        folder, name = os.path.split(destination)
        self.folder = os.path.join(folder, f".{name}.gpupipe-unpacked")
        self._source = source
        self._files = os.path.join(self.folder, "files", "")
        self._paths = [source.paths[k] for k in range(len(source.paths))]
        try:
            refuse_foreign(destination)
            os.makedirs(self._files, exist_ok=True)
            self._lock = open(os.path.join(self.folder, "lock"), "a")  # noqa: SIM115
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another run packs into {destination}; wait for its end, or give a new folder") from None
        except OSError as e:
            raise DatasetError(f"{self.folder}: {e.strerror}; give a folder that can be written to") from None
        found = source.storage.look(self._paths)
        self._sizes = [it.size if isinstance(it, Found) else 0 for it in found]
        self.total = sum(self._sizes)
        """Bytes of the shards as they are."""
        key = [source.key, [tuple(it) if isinstance(it, Found) else str(it) for it in found]]
        self._expect(hashlib.blake2b(json.dumps(key, default=str).encode(), digest_size=16).hexdigest())

    def _expect(self, digest: str) -> None:
        """Remove the files of another source."""
        about = Path(self.folder, _NAME)
        if not about.is_file() or about.read_text() != digest:
            shutil.rmtree(self._files)
            os.makedirs(self._files)
            about.write_text(digest)

    def close(self) -> None:
        self._lock.close()

    def remove(self) -> None:
        """Remove the folder with all files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def shown(self, text: str) -> str:
        """Return a text with the names of the files as the user knows them."""
        return text.replace(self._files, os.fsdecode(self._source.prefix))

    def run(self, progress: Callable[[int], None]) -> Shards:
        """Unpack what is not there yet. Returns a source with the same samples, which can be read one by one.

        Args:
            progress: called with the number of bytes that were read.

        Raises:
            DatasetError: a shard is damaged, or there is no room. The files are removed.
        """
        rows = [_below(os.fsdecode(self._source.paths.rows[k]), k) for k in range(len(self._paths))]
        done = 0
        for path, row, size in zip(self._paths, rows, self._sizes, strict=True):
            target = os.path.join(self._files, row)
            if not os.path.lexists(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                try:
                    # The file beside it comes first: a shard that exists counts as complete.
                    if beside := self._source.beside(path):
                        with contextlib.suppress(FileNotFoundError):
                            self._copy(beside, self._source.beside(os.fsencode(target)))
                    self._unpack(path, target, partial(_added, progress, done))
                except (OSError, ValueError, *CLAIMS) as e:
                    self.remove()
                    raise self._failed(path, e) from None
            done += size
            progress(done)
        with contextlib.suppress(OSError, ValueError):
            self._copy(self._source.prefix + LABELS.encode(), os.fsencode(os.path.join(self._files, LABELS)))
        paths = Paths(os.fsencode(self._files), Texts.of(map(os.fsencode, rows)))
        return replace(self._source, paths=paths, storage=LOCAL)

    def _copy(self, path: bytes, target: bytes) -> None:
        """Copy a file that accompanies the shards. Raises :class:`OSError`, and :class:`ValueError` if it is not a
        file."""
        with self._source.storage.open(path) as file, replacing(os.fsdecode(target), tidy=False) as out:
            shutil.copyfileobj(file, out)

    def _unpack(self, path: bytes, target: str, tell: Callable[[int], None]) -> None:
        source = self._source
        with source.storage.open(path) as file:
            codec = codec_of(file, path)
            if not codec and not source.rewrites and not source.storage.remote:
                # It can be read as it is, but needs a name in the folder.
                os.symlink(path, os.fsencode(target))
                return
            with replacing(target, tidy=False) as out:
                if not codec and source.rewrites:
                    source.rewrite(file, out)
                    return
                for piece in unpacked(file, codec) if codec else _pieces(file):
                    out.write(piece)
                    tell(file.tell())

    def _failed(self, path: bytes, e: Exception) -> DatasetError:
        name = f"{self._source.owner}: the shard {printable(path)} cannot be unpacked"
        if not isinstance(e, OSError):
            return DatasetError(f"{name}: {e}" if ";" in str(e) else f"{name}: {e}; make or download it again")
        advice = "make or download it again"
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = (
                f"packing needs room for all unpacked files beside DST; name one on a larger disk than {self.folder}"
            )
        return DatasetError(f"{name}: {e.strerror or e}; {advice}")


def _added(progress: Callable[[int], None], done: int, more: int) -> None:
    progress(done + more)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while piece := file.read(_PIECE):
        yield piece


def _below(row: str, number: int) -> str:
    """Return the path of a file in the folder: its own, unless that would leave the folder."""
    path = os.path.normpath(row)
    return f"{number}-{os.path.basename(path)}" if os.path.isabs(path) or path.split("/")[0] == ".." else path
