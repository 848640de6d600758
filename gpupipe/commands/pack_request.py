"""What both ways of packing share: what was asked for, where they read and write, and what they say when they are
stopped."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import ConfigError
from ..sources.names import is_url
from .console import console

__all__ = ["Request", "placed", "stopped"]


@dataclass(frozen=True)
class Request:
    """What a person typed."""

    source: str
    destination: str
    format: str | None = None
    sliceable: bool = False
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
    """Of the source."""
    image: str | None = None
    label: str | None = None
    num_workers: int | None = None

    @property
    def processes(self) -> int:
        return self.num_workers or len(os.sched_getaffinity(0))


def placed(source: str, destination: str) -> tuple[str, str]:
    """Both as absolute paths; a URL, or a pattern, stays what it is.

    Raises :class:`ConfigError` if one lies in the other.
    """
    target = os.path.abspath(os.path.expanduser(destination))
    if is_url(source):
        return source, target
    given = os.path.abspath(os.path.expanduser(source))
    inner, outer = os.path.realpath(target), os.path.realpath(given)
    if os.path.commonpath([inner, outer]) in (inner, outer):
        raise ConfigError(f"{target} and {given} are one folder, or one lies in the other; give another one")
    return given, target


def stopped() -> int:
    """Says how to go on after Ctrl-C; the exit code."""
    console(stderr=True).print("stopped; the same command goes on where this one ended", style="yellow")
    return 130
