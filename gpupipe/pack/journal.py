"""What was done, in a file beside it: one JSON line for each sample."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from ..errors import ConfigError, DatasetError
from .base import Sample, Written

__all__ = ["NAME", "Journal"]

NAME = "gpupipe-pack.jsonl"


class Journal:
    """The journal of a destination folder, which is made if it is not there.

    Args:
        folder: the destination.
        source: the source, and ``form`` what is made of it; both are written down.

    Raises :class:`ConfigError` if the folder holds anything else than what such a run has left.
    """

    def __init__(self, folder: str, source: str, form: str):
        self._path = os.path.join(folder, NAME)
        wanted = {"source": os.path.realpath(source), "form": form}
        self.done: dict[str, Written] = {}
        """By name."""
        try:
            os.makedirs(folder, exist_ok=True)
            there = os.listdir(folder)
        except OSError as e:
            raise DatasetError(f"{folder}: {e.strerror}; give a folder that can be written to") from None
        if NAME in there:
            self._load(folder, wanted)
        elif there:
            raise ConfigError(f"{folder} is not empty, and nothing is overwritten; give a new folder")
        else:
            self._append(wanted)

    def _load(self, folder: str, wanted: dict[str, str]) -> None:
        with open(self._path, encoding="ascii", errors="replace") as file:
            lines = file.read().split("\n")
        found = _parsed(lines[0])
        if found != wanted:
            made = f"{found.get('form')} out of {found.get('source')}" if found else "something else"
            raise ConfigError(
                f"{folder} holds {made}, and this would be {wanted['form']} out of {wanted['source']}; give a new folder"
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

    def _append(self, *rows: dict[str, object]) -> None:
        with open(self._path, "a", encoding="ascii") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows) or "\n")


def _parsed(line: str) -> dict[str, object]:
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
