"""Files whose inode changed while their size and modification time stayed the same.

The time of that change (``ctime``) cannot be set, so it reveals content replaced by ``cp -p``, ``rsync -t`` or ``touch
-r``. But it also changes with owner, permissions, name and number of links, while the content is unchanged. Such a file
is therefore neither trusted nor rejected but checked again: an image by its header, any larger file by parts of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from ...codecs.files import open_regular, pread
from ...codecs.probe import OK, Probe
from ...sources.base import Listing
from .probe_pool import Prober, probe_all
from .progress import Progress
from .table import Index

_PART = 16 << 10
_PARTS = 64
"""Number of parts of a file to compare."""


def part_sum(path: bytes, size: int) -> int:
    """Return a checksum of a file's bytes, or of evenly spaced parts if it exceeds 1 MiB; 0 if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        fd = open_regular(path)
        try:
            if size <= _PART * _PARTS:
                parts = pread(fd, size, 0)
            else:
                starts = np.linspace(0, size - _PART, _PARTS).astype(np.int64).tolist()
                parts = b"".join(os.pread(fd, _PART, start) for start in starts)
        finally:
            os.close(fd)
        # Positive, because the column is signed and 0 stands for a file that cannot be read.
        return xxh3_64_intdigest(parts) >> 1 or 1
    return 0


def holds_several(listing: Listing) -> bool:
    """Return whether files contain several samples, and therefore more than headers of images."""
    return listing.container is not None and len(listing) >= 2 * len(listing.containers)


def with_sums(listing: Listing) -> Listing:
    """Return a listing of local files with the checksums of their parts."""
    paths = (os.path.join(listing.prefix, listing.containers[k]) for k in range(len(listing.containers)))
    return replace(listing, part_sums=np.fromiter(map(part_sum, paths, listing.container_size.tolist()), np.int64))


def is_as_indexed(index: Index, files: Sequence[int], prefix: bytes, prober: Prober[Any]) -> bool:
    """Return whether touched files still match the index."""
    chosen = np.array(files, np.int64)
    if index.part_sums is not None:
        paths = [os.path.join(prefix, path) for path in index.paths.many(chosen)]
        sums = list(map(part_sum, paths, index.container_size.rows(chosen).tolist()))
        return bool(sums == index.part_sums.rows(chosen).tolist())
    rows = chosen if index.container is None else np.flatnonzero(np.isin(index.container.all, chosen))
    found: dict[int, Probe] = {}
    with Progress("checking touched files again", len(rows)) as progress:
        probe_all(len(rows), lambda k: index.place(int(rows[k]), prefix), found.__setitem__, progress, prober)
    return all(_is_same(index, row, found[k]) for k, row in enumerate(rows.tolist()))


def _is_same(index: Index, row: int, probe: Probe) -> bool:
    if probe.status != OK or index.status.all[row] != OK:
        return bool(index.status.all[row] == probe.status)
    code = int(index.coding.all[row])
    return (
        index.stored_sizes.all[row].tolist() == [probe.height, probe.width]
        and (code >= len(index.codings) or index.codings[code] == probe.coding)
        and int(index.orientation.all[row]) == probe.orientation
    )
