"""What a run could not deliver."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import BadSample

__all__ = ["Report", "Reported"]


class Reported(BadSample):
    """A bad sample, (index, path, kind, reason), and how often it was met."""

    count: int = 0  # type: ignore[assignment]


@dataclass
class Report:
    """What was bad, each sample once, in the order in which they were met."""

    samples: list[Reported] = field(default_factory=list)

    def add(self, samples: Iterable[BadSample]) -> None:
        known = {s.index: s for s in self.samples}
        for sample in samples:
            reported = known.get(sample.index)
            if reported is None:
                reported = known[sample.index] = Reported(*sample)
                self.samples.append(reported)
            reported.count += 1

    def write(self, path: str | os.PathLike[str]) -> None:
        """One JSON object per line: index, path, kind, reason, count. Replaces the file."""
        with open(path, "w") as file:
            for sample in self.samples:
                file.write(json.dumps({**sample._asdict(), "count": sample.count}) + "\n")

    def __repr__(self) -> str:
        if not self.samples:
            return "Report(no bad samples)"
        lines = [f"  {s.index}: {s.path}: {s.kind}: {s.reason} ({s.count} times)" for s in self.samples]
        return "\n".join([f"Report({len(self.samples)} bad samples:", *lines, ")"])
