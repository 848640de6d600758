"""Summary of a dataset's index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...codecs.probe import OK
from ...errors import BadSample
from .table import Index


@dataclass(frozen=True)
class Summary:
    """Summary of an index. Sizes are those of good samples, as stored, before any orientation."""

    count: int
    """Number of all samples, good and bad."""
    classes: int
    formats: dict[str, int]
    """Number of samples per format, in Pillow's terms, or codec, in FFmpeg's; the most frequent first."""
    height: tuple[int, int, int]
    """Smallest, median and largest height."""
    width: tuple[int, int, int]
    """Smallest, median and largest width."""
    total_bytes: int
    oriented: int
    """Number of samples with an EXIF orientation other than 1."""
    bad: tuple[BadSample, ...]
    path: str | None
    """Index file, or ``None`` if none could be stored."""
    built: bool
    """Whether the index was just built, rather than read from the cache."""
    reused: int
    """Number of samples of a new index that did not need probing."""
    seconds: float
    """Duration of building or opening."""


def summarize(index: Index, bad: list[BadSample]) -> Summary:
    """Summarize an index, reading all rows."""
    ok = index.status.all == OK
    sizes = index.stored_sizes.all[ok]
    formats: dict[str, int] = {}
    for coding, count in zip(index.codings, np.bincount(index.coding.all[ok], minlength=1).tolist(), strict=False):
        if count:
            formats[coding[0]] = formats.get(coding[0], 0) + count
    return Summary(
        count=len(index),
        classes=len(index.classes),
        formats=dict(sorted(formats.items(), key=lambda item: (-item[1], item[0]))),
        height=_spread(sizes[:, 0]),
        width=_spread(sizes[:, 1]),
        total_bytes=int(index.sample_sizes().sum()),
        oriented=int(np.count_nonzero(index.orientation.read() > 1)),
        bad=tuple(bad),
        path=index.columns.path,
        built=index.built,
        reused=index.reused,
        seconds=index.seconds,
    )


def _spread(column: npt.NDArray[np.int32]) -> tuple[int, int, int]:
    return (int(column.min()), int(np.median(column)), int(column.max())) if len(column) else (0, 0, 0)
