"""Packing on several machines: each writes a range of the shards, with a journal of its own, and one completes them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..cache_folder import replacing
from ..errors import ConfigError
from .journal import NAME, Journal, lines_of

_JOURNAL = re.compile(r"gpupipe-pack\.(\d+)-of-(\d+)\.jsonl")


@dataclass(frozen=True)
class Part:
    """Part ``number`` of ``count``, counted from 1.

    >>> Part.of("2/4")
    Part(number=2, count=4)
    """

    number: int
    count: int

    @classmethod
    def of(cls, text: str) -> Part:
        """Parse the argument of ``--part``. Raises :class:`ConfigError`."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ConfigError(f"--part {text}: it must be NUMBER/COUNT, such as 2/4, with numbers from 1 to COUNT")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def journal(self) -> str:
        """Name of the journal file."""
        return f"gpupipe-pack.{self.number}-of-{self.count}.jsonl"

    def range(self, tasks: int) -> slice:
        """Return which tasks it has, a range of nearly the same length for all parts."""
        return slice(tasks * (self.number - 1) // self.count, tasks * self.number // self.count)


def found_parts(folder: str) -> list[Part]:
    """Return the parts of a folder that have been started."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    matches = filter(None, map(_JOURNAL.fullmatch, names))
    return sorted((Part(int(m[1]), int(m[2])) for m in matches), key=lambda part: part.number)


def check_whole(folder: str) -> None:
    """Raise :class:`ConfigError` if a folder was begun in parts, for a run without ``--part``."""
    parts = found_parts(folder)
    if parts and not os.path.exists(os.path.join(folder, NAME)):
        raise ConfigError(
            f"{folder} was begun in parts ({', '.join(map(str, parts))}): continue with --part, or end with --complete"
        )


def check_part(folder: str, part: Part) -> None:
    """Raise :class:`ConfigError` if a folder was begun otherwise."""
    if os.path.exists(os.path.join(folder, NAME)):
        raise ConfigError(f"{folder} is complete, or was begun without --part; give a new folder")
    others = [other for other in found_parts(folder) if other.count != part.count]
    if others:
        raise ConfigError(f"--part {part}: {folder} has part {others[0]}; use the same number of parts on all machines")


def complete(folder: str, about: Mapping[str, Any], names: Sequence[str], read: Callable[..., Any]) -> None:
    """Join the journals of all parts to the one that a single machine would have written. Does nothing if there is one.

    Args:
        about: as for :class:`~.journal.Journal`.
        names: names of all shards, in order.

    Raises:
        ConfigError: a part is missing, not finished, still running, or of another dataset or with other options.
    """
    path = os.path.join(folder, NAME)
    if os.path.exists(path):
        return
    parts = found_parts(folder)
    if not parts:
        raise ConfigError(f"--complete: {folder} has no parts; write them with --part 1/N to --part N/N first")
    count = parts[0].count
    done: dict[str, Any] = {}
    for part in parts:
        check_part(folder, Part(1, count))
        # Opening the journal of a part that is still being written fails, because its run holds a lock.
        with closing(Journal(folder, {**about, "part": str(part)}, read, part.journal)) as journal:
            done |= journal.done
    for part in (Part(k, count) for k in range(1, count + 1)):
        mine = names[part.range(len(names))]
        there = [name for name in mine if name in done and os.path.exists(os.path.join(folder, name))]
        if len(there) < len(mine):
            state = f"has written {len(there)} of its {len(mine)} shards" if part in parts else "is missing"
            raise ConfigError(
                f"--complete: part {part} {state}: run it again with --part {part} on any machine, or copy its shards "
                f"and {part.journal} to {folder}"
            )
    with replacing(path) as file:
        file.write(lines_of([about, *(done[name].line() for name in names)]).encode("ascii"))
    # The parts' journals go only now, so that a kill loses nothing.
    for part in parts:
        os.unlink(os.path.join(folder, part.journal))
