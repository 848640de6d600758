"""What a run could not deliver."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from ..errors import BadSample
from ..printable import printable

__all__ = ["BadSampleReport", "Reported"]


class Reported(BadSample):
    """A bad sample, (index, path, kind, reason), and how often it was met."""

    count: int = 0  # type: ignore[assignment]


class BadSampleReport:
    """What was bad, each sample once, in the order in which they were met."""

    def __init__(self) -> None:
        self._by_index: dict[int, Reported] = {}
        self.remarks: list[str] = []
        """Sentences about how the work was done, as of when the report was asked for."""

    @property
    def samples(self) -> list[Reported]:
        """(index, path, kind, reason) of each, with its ``count``."""
        return list(self._by_index.values())

    def add(self, samples: Iterable[BadSample]) -> None:
        """Count samples that a batch went without."""
        for sample in samples:
            self._by_index.setdefault(sample.index, Reported(*sample)).count += 1

    def write(self, path: str | os.PathLike[str]) -> None:
        """One JSON object per line: index, path, kind, reason, count. Replaces the file."""
        with open(path, "w") as file:
            for sample in self.samples:
                file.write(json.dumps({**sample._asdict(), "count": sample.count}) + "\n")

    def __repr__(self) -> str:
        notes = [f"  note: {remark}" for remark in self.remarks]
        if not self._by_index:
            return (
                "\n".join(["BadSampleReport(no bad samples", *notes, ")"])
                if notes
                else "BadSampleReport(no bad samples)"
            )
        lines = [
            f"  {s.index}: {printable(s.path)}: {s.kind}: {printable(s.reason)} ({s.count} times)" for s in self.samples
        ]
        return "\n".join([f"BadSampleReport({len(lines)} bad samples:", *lines, *notes, ")"])
