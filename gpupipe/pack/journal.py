"""The journal of a run, a file in the destination: one JSON line for each finished file or shard."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from ..errors import ConfigError, DatasetError

NAME = "gpupipe-pack.jsonl"


class Done(Protocol):
    """Something that is done: a line of the journal."""

    @property
    def name(self) -> str: ...

    def line(self) -> dict[str, Any]:
        """JSON values from which it can be restored."""
        ...


D = TypeVar("D", bound=Done)


class Journal(Generic[D]):
    """The journal of a destination folder, which is created if it does not exist.

    Args:
        folder: the destination.
        about: what is written and from which source, as JSON values; only a run with equal values can resume.
        read: converts the values of a line to a :class:`Done`; raises :class:`TypeError` if they do not fit.
        name: name of the file.

    Raises:
        ConfigError: the folder contains anything but the output of such a run, or another run is writing to it.
        DatasetError: the folder cannot be written to.
    """

    def __init__(self, folder: str, about: Mapping[str, Any], read: Callable[..., D], name: str = NAME):
        self._read = read
        self.done: dict[str, D] = {}
        """Finished parts, by name."""
        try:
            os.makedirs(folder, exist_ok=True)
            refuse_foreign(folder)
            self._file = open(os.path.join(folder, name), "a+", encoding="ascii", errors="replace")  # noqa: SIM115
        except OSError as e:
            raise DatasetError(f"{folder}: {e.strerror}; give a folder that can be written to") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # up to close(), or the end of this process
            self._load(folder, dict(about))
        except BlockingIOError:
            self.close()
            raise ConfigError(f"another run packs into {folder}; wait for its end, or give a new folder") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _load(self, folder: str, wanted: dict[str, Any]) -> None:
        self._file.seek(0)
        lines = self._file.read().split("\n")
        if lines == [""]:
            self._append(wanted)
            return
        found = _parsed(lines[0])
        different = [key for key in wanted if found.get(key) != wanted[key]]
        if different or found.keys() != wanted.keys():
            key = different[0] if different else "more"
            raise ConfigError(
                f"{folder} was started with {key}: {found.get(key)}, but this run has {key}: {wanted.get(key)}; give a "
                "new folder"
            )
        for line in lines[1:]:
            values = _parsed(line)
            if values:  # the last line may have been cut short by a kill
                try:
                    one = self._read(**values)
                except TypeError:
                    continue
                self.done[one.name] = one
        # End a line that a kill has cut, so that the next one stands alone.
        if lines[-1]:
            self._append()

    def add(self, done: Iterable[D]) -> None:
        rows = list(done)
        self.done |= {one.name: one for one in rows}
        self._append(*(one.line() for one in rows))

    def _append(self, *rows: Mapping[str, object]) -> None:
        self._file.write(lines_of(rows) or "\n")
        self._file.flush()


def lines_of(rows: Iterable[Mapping[str, object]]) -> str:
    """Return rows as they are in a journal."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def refuse_foreign(folder: str) -> None:
    """Raise :class:`ConfigError` if a folder contains anything but the output of packing, and :class:`OSError`."""
    there = os.listdir(folder) if os.path.lexists(folder) else []
    if there and not any(name.startswith("gpupipe-pack.") for name in there):
        raise ConfigError(f"{folder} is not empty, and gpupipe overwrites nothing; give a new folder")


def _parsed(line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
