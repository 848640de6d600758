"""Indexes stored beside remote shards, which save other machines from reading all of them.

Such an index is trusted no more than one in the cache: every byte has a checksum, and every shard must be unchanged.
"""

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

_log = logging.getLogger("gpupipe")


def url_of(source: Source, limits: Sequence[Any]) -> bytes:
    """Return the location of a source's index beside its data.

    The name does not depend on the location, so that a copy of shards and index in another bucket remains usable.

    Args:
        limits: other JSON values that the samples of an index depend on.
    """
    folder = os.fsdecode(source.prefix)
    key = ["" if part == folder else part for part in source.key]
    return source.prefix + os.path.basename(cache.index_path(*limits, *key)).encode()


def bring(source: Source, url: bytes, path: str) -> Columns | None:
    """Fetch the index beside the data to the cache, or return ``None`` if there is no usable one."""
    try:
        with source.storage.open(url) as theirs, cache.replacing(path) as file:
            shutil.copyfileobj(theirs, file, 1 << 20)
            file.flush()
            columns = Columns(file.fileno(), path)
            if columns.meta.get("absolute"):  # paths outside the folder, perhaps of local files
                raise ColumnsError("it has paths outside of its folder")
            return columns
    except (FileNotFoundError, PermissionError):  # stores without the right to list report missing files this way
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
            f"{where} cannot be written: {e.strerror or e}; the client takes credentials with write access from the "
            "environment or from the role of the instance"
        ) from None
