"""What was done, in a file beside it: one JSON line for each sample."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError, DatasetError
from .base import Sample, Written

__all__ = ["NAME", "Journal"]

NAME = "gpupipe-pack.jsonl"


class Journal:
    """The journal of a destination folder, which is made if it is not there.

    Args:
        folder: the destination.
        source: the source, and ``form`` what is made of it; both are written down.

    Raises:
        ConfigError: the folder holds anything else than what such a run has left, or another run is at work in it.
        DatasetError: the folder cannot be written to.
    """

    def __init__(self, folder: str, source: str, form: str):
        wanted = {"source": os.path.realpath(source), "form": form}
        self.done: dict[str, Written] = {}
        """By name."""
        try:
            os.makedirs(folder, exist_ok=True)
            there = os.listdir(folder)
            if there and NAME not in there:
                raise ConfigError(f"{folder} is not empty, and nothing is overwritten; give a new folder")
            self._file = open(os.path.join(folder, NAME), "a+", encoding="ascii", errors="replace")  # noqa: SIM115
        except OSError as e:
            raise DatasetError(f"{folder}: {e.strerror}; give a folder that can be written to") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # up to close(), or the end of this process
            self._load(folder, wanted)
        except BlockingIOError:
            self.close()
            raise ConfigError(f"another run packs into {folder}; wait for its end, or give a new folder") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _load(self, folder: str, wanted: dict[str, str]) -> None:
        self._file.seek(0)
        lines = self._file.read().split("\n")
        if lines == [""]:
            self._append(wanted)
            return
        found = _parsed(lines[0])
        if found != wanted:
            made = f"{found.get('form')} out of {found.get('source')}" if found else "something else"
            raise ConfigError(
                f"{folder} holds {made}, and this would be {wanted['form']} out of {wanted['source']}; "
                "give a new folder"
            )
        for line in lines[1:]:
            values = _parsed(line)
            if values:  # the last line may have been cut short by a kill
                try:
                    one = Written(**values)
                except TypeError:
                    continue
                self.done[one.name] = one
        if lines[-1]:
            self._append()

    def is_done(self, sample: Sample) -> Written | None:
        """What was written of a sample that has not changed since."""
        found = self.done.get(sample.name)
        return found if found is not None and (found.size, found.mtime_ns) == (sample.size, sample.mtime_ns) else None

    def add(self, written: Iterable[Written]) -> None:
        rows = list(written)
        self.done |= {one.name: one for one in rows}
        self._append(*(one.line() for one in rows))

    def _append(self, *rows: Mapping[str, object]) -> None:
        self._file.write("".join(json.dumps(row) + "\n" for row in rows) or "\n")
        self._file.flush()


def _parsed(line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
