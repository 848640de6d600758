"""The request of ``gpupipe pack``, its folders, and the message after Ctrl-C."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import ConfigError
from ..sources.names import is_url
from .console import console


@dataclass(frozen=True)
class Request:
    """Command-line arguments of ``gpupipe pack``."""

    source: str
    destination: str
    format: str = "webdataset"
    resize: int | None = None
    quality: int | None = None
    decoded: bool = False
    exif: bool = False
    shards: int | None = None
    shard_bytes: str | None = None
    shuffle: bool = False
    seed: int | None = None
    split: str = "train"
    kind: str | None = None
    """Kind of the source."""
    image: str | None = None
    label: str | None = None
    columns: str | None = None
    """Names of the columns to carry, separated by commas; ``None`` for all, ``""`` or ``"none"`` for none."""
    num_workers: int | None = None

    @property
    def column_names(self) -> tuple[str, ...] | None:
        """The names of :attr:`columns`."""
        if self.columns is None:
            return None
        names = [name.strip() for name in self.columns.split(",") if name.strip()]
        return () if names == ["none"] else tuple(dict.fromkeys(names))

    @property
    def processes(self) -> int:
        return self.num_workers or len(os.sched_getaffinity(0))


def placed(source: str, destination: str) -> tuple[str, str]:
    """Return both as absolute paths, leaving URLs and patterns as they are.

    Raises :class:`ConfigError` if one contains the other.
    """
    target = os.path.abspath(os.path.expanduser(destination))
    if is_url(source):
        return source, target
    given = os.path.abspath(os.path.expanduser(source))
    inner, outer = os.path.realpath(target), os.path.realpath(given)
    if os.path.commonpath([inner, outer]) in (inner, outer):
        raise ConfigError(f"{target} and {given} are the same folder, or one contains the other; name another folder")
    return given, target


def stopped() -> int:
    """Explain how to continue after Ctrl-C, and return the exit code."""
    console(stderr=True).print("stopped; run the same command again to continue", style="yellow")
    return 130
