"""Report of the samples that a loader could not deliver."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable

from ..errors import BadSample
from ..html import table
from ..printable import printable, quantity


class Reported(BadSample):
    """A bad sample, (index, path, kind, reason), with the number of times it occurred."""

    count: int = 0  # type: ignore[assignment]


class BadSampleReport:
    """Bad samples, once each, in the order in which they occurred."""

    def __init__(self) -> None:
        self._by_index: dict[int, Reported] = {}
        self.remarks: list[str] = []
        """Notes on how the work was done, up to the time of the report."""

    @property
    def samples(self) -> list[Reported]:
        """Bad samples as (index, path, kind, reason), each with its ``count``."""
        return list(self._by_index.values())

    def add(self, samples: Iterable[BadSample]) -> None:
        """Count samples that are missing from a batch."""
        for sample in samples:
            self._by_index.setdefault(sample.index, Reported(*sample)).count += 1

    @classmethod
    def merged(cls, reports: Iterable[BadSampleReport]) -> BadSampleReport:
        """Return the report of several ranks: each sample once, with the sum of its counts."""
        found = cls()
        for report in reports:
            for sample in report.samples:
                known = found._by_index.setdefault(sample.index, Reported(*sample))
                known.count += sample.count
            found.remarks += [remark for remark in report.remarks if remark not in found.remarks]
        return found

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON object per line: index, path, kind, reason, count. Replaces the file."""
        with open(path, "w") as file:
            for sample in self.samples:
                file.write(json.dumps({**sample._asdict(), "count": sample.count}) + "\n")

    def _repr_html_(self) -> str:
        rows = [
            (str(s.index), html.escape(printable(s.path)), s.kind, html.escape(printable(s.reason)), str(s.count))
            for s in self.samples
        ]
        notes = "".join(f"<p>note: {html.escape(remark)}</p>" for remark in self.remarks)
        head = ["index", "path", "kind", "reason", "times"] if rows else []
        return f"<b>{quantity(len(rows), 'bad sample')}</b>{table(head, rows)}{notes}"

    def __repr__(self) -> str:
        notes = [f"  note: {remark}" for remark in self.remarks]
        if not self._by_index:
            return (
                "\n".join(["BadSampleReport(no bad samples", *notes, ")"])
                if notes
                else "BadSampleReport(no bad samples)"
            )
        lines = [
            f"  {s.index}: {printable(s.path)}: {s.kind}: {printable(s.reason)} ({quantity(s.count, 'time')})"
            for s in self.samples
        ]
        return "\n".join([f"BadSampleReport({quantity(len(lines), 'bad sample')}:", *lines, *notes, ")"])
