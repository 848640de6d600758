"""An index beside the data, for shards behind a network: left there once, it saves every other machine from reading
all of them. It is believed no more than one in the cache: every byte has a checksum, and every shard must be what it
was."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from typing import Any

from ... import cache_folder as cache
from ...errors import DatasetError
from ...printable import printable
from ...sources.base import Source
from .column_file import Columns, ColumnsError

__all__ = ["bring", "leave", "url_of"]

_log = logging.getLogger("gpupipe")


def url_of(source: Source, limits: Sequence[Any]) -> bytes:
    """Where the index of a source lies beside it. Its name does not depend on the place, so that a copy of the shards
    and the index in another bucket goes on being used.

    Args:
        limits: what else the samples of an index depend on; JSON values.
    """
    folder = os.fsdecode(source.prefix)
    key = ["" if part == folder else part for part in source.key]
    return source.prefix + os.path.basename(cache.index_path(*limits, *key)).encode()


def bring(source: Source, url: bytes, path: str) -> Columns | None:
    """The index that lies beside the data, from now on in the cache; ``None`` if there is none that can be used."""
    try:
        with source.storage.open(url) as theirs, cache.replacing(path) as file:
            shutil.copyfileobj(theirs, file, 1 << 20)
            file.flush()
            columns = Columns(file.fileno(), path)
            if columns.meta.get("absolute"):  # paths that lead out of the folder, perhaps to files of this machine
                raise ColumnsError("it has paths outside of its folder")
            return columns
    except (FileNotFoundError, PermissionError):  # a store without the right to list says so of what is not there
        return None
    except (OSError, ValueError, ColumnsError) as e:
        _log.warning("the index %s beside the data is not used: %s", printable(url), e)
        return None


def leave(source: Source, url: bytes, columns: Columns) -> None:
    """Write an index beside the data. Raises :class:`DatasetError`."""
    where = os.fsdecode(url)
    if columns.path is None:
        raise DatasetError("the index is in memory only; set GPUPIPE_CACHE to a folder with free space first")
    try:
        with open(columns.path, "rb") as file:
            source.storage.write(url, file.read())
    except OSError as e:
        raise DatasetError(
            f"{where} cannot be written: {e.strerror or e}; credentials that may write are found by the client itself, "
            "in the environment or by the role of the instance"
        ) from None
