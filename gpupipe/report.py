"""What a run could not deliver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .errors import BadSample

__all__ = ["Report"]


@dataclass
class Report:
    """``samples`` lists what was bad, each sample once: (index, path, kind, reason)."""

    samples: list[BadSample] = field(default_factory=list)

    def add(self, samples: Iterable[BadSample]) -> None:
        known = {s.index for s in self.samples}
        for sample in samples:
            if sample.index not in known:
                known.add(sample.index)
                self.samples.append(sample)

    def __repr__(self) -> str:
        if not self.samples:
            return "Report(no bad samples)"
        lines = [f"  {s.index}: {s.path}: {s.kind}: {s.reason}" for s in self.samples]
        return "\n".join([f"Report({len(self.samples)} bad samples:", *lines, ")"])
