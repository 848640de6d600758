"""The journal of a run, a file in the destination: one JSON line for each finished shard."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import ConfigError, DatasetError

NAME = "gpupipe-pack.jsonl"


@dataclass(frozen=True)
class ShardDone:
    """A shard that was written: a line of the journal."""

    name: str
    samples: int
    bytes: int
    sha256: str
    """Checksum of the file."""
    read_bytes: int
    """Bytes of its samples in the source."""
    kept: dict[str, int] = field(default_factory=dict)
    """Number of samples that were copied unchanged, by kind."""
    changed_keys: int = 0
    """Number of samples whose key is another one than in the source."""
    left_out: list[tuple[int, str, str]] = field(default_factory=list)
    """(index in the dataset, kind, reason) of samples that turned out to be bad."""


class Journal:
    """The journal of a destination folder, which is created if it does not exist.

    Args:
        folder: the destination.
        about: what is written and from which source, as JSON values; only a run with equal values can resume.

    Raises:
        ConfigError: the folder contains anything but the output of such a run, or another run is writing to it.
        DatasetError: the folder cannot be written to.
    """

    def __init__(self, folder: str, about: Mapping[str, Any]):
        self.done: dict[str, ShardDone] = {}
        """Finished shards, by name."""
        try:
            os.makedirs(folder, exist_ok=True)
            there = os.listdir(folder)
            if there and NAME not in there:
                raise ConfigError(f"{folder} is not empty, and gpupipe overwrites nothing; give a new folder")
            self._file = open(os.path.join(folder, NAME), "a+", encoding="ascii", errors="replace")  # noqa: SIM115
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
            self._append(json.dumps(wanted))
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
            with suppress(TypeError):  # the last line may have been cut short by a kill
                # JSON turned tuples into lists.
                left_out = [tuple(row) for row in values.pop("left_out", [])]
                one = ShardDone(**values, left_out=left_out)
                self.done[one.name] = one
        # End a line that a kill has cut, so that the next one stands alone.
        if lines[-1]:
            self._append()

    def add(self, done: ShardDone) -> None:
        self.done[done.name] = done
        self._append(json.dumps(asdict(done)))

    def _append(self, line: str = "") -> None:
        self._file.write(line + "\n")
        self._file.flush()


def _parsed(line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
