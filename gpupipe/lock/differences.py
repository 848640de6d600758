"""Differences between two lock files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError, StateError
from ..loader.session import Session
from ..parity.drawing import create_folder_of
from .record import Lock, Sample, group_size, record

Kind = Literal["version", "setting", "dataset", "order", "sample", "draws", "pixels"]
_SHOWN = 8
"""Differences that an error names."""


@dataclass(frozen=True)
class Difference:
    """A difference between two runs."""

    kind: Kind
    """``"version"`` alone changes nothing that a run reads."""
    where: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.where}: {self.before} -> {self.after}"


def differences(a: Lock, b: Lock) -> list[Difference]:
    """Return how ``b`` differs from ``a``."""
    found = [*_unequal("version", a.versions, b.versions), *_unequal("setting", a.settings, b.settings)]
    if a.count != b.count:
        found.append(Difference("dataset", "number of samples", f"{a.count:,}", f"{b.count:,}"))
    found += _groups(a, b)
    for step in a.steps:
        if step in b.steps:
            found += _step(step, a.steps[step], b.steps[step])
    only = [step for step in (*a.steps, *b.steps) if (step in a.steps) != (step in b.steps)]
    # With another number of samples, the recorded steps differ anyway.
    if only and a.count == b.count:
        found.append(Difference("order", "recorded steps", ", ".join(a.steps), ", ".join(b.steps)))
    return found


def _unequal(kind: Kind, a: dict[str, Any], b: dict[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys((*a, *b)):
        if a.get(name) != b.get(name):
            yield Difference(kind, name, str(a.get(name, "none")), str(b.get(name, "none")))


def _groups(a: Lock, b: Lock) -> Iterator[Difference]:
    """Yield runs of consecutive groups of samples that differ."""
    size = group_size(a.count)
    # Groups of other sizes hold other samples, so their checksums cannot be compared.
    if size != group_size(b.count):
        return
    pairs = list(zip(a.groups, b.groups, strict=False))
    begin = None
    # One round more than there are pairs, to end a run that reaches the last pair.
    for k in range(len(pairs) + 1):
        differs = k < len(pairs) and pairs[k][0] != pairs[k][1]
        if differs and begin is None:
            begin = k
        elif not differs and begin is not None:
            first, last = begin * size, min(k * size, a.count) - 1
            where = f"sample {first:,}" if first == last else f"samples {first:,} to {last:,}"
            yield Difference("dataset", where, "names, sizes and labels", "others")
            begin = None


def _step(step: str, a: Sequence[Sample], b: Sequence[Sample]) -> Iterator[Difference]:
    # Ranks record their part of a global batch, so one of the two may have fewer samples.
    for one, two in zip(a, b, strict=False):
        if (one.index, one.name) != (two.index, two.name):
            before, after = (f"{sample.name} ({sample.index:,})" for sample in (one, two))
            yield Difference("order", step, before, after)
            continue
        where = f"{step}, {one.name}"
        if one.size != two.size:
            yield Difference("sample", f"{where}, size", one.size or "unknown", two.size or "unknown")
        yield from _unequal("sample", *({f"{where}, {k}": v for k, v in s.target.items()} for s in (one, two)))
        if one.ops != two.ops:
            changed = [pair for pair in zip(one.ops, two.ops, strict=False) if pair[0] != pair[1]]
            before, after = changed[0] if changed else (f"{len(one.ops)} ops", f"{len(two.ops)} ops")
            yield Difference("draws", where, before, after)
        elif one.pixels and two.pixels and one.pixels != two.pixels:
            before, after = ("mean " + ", ".join(f"{mean:.6g}" for mean in s.means) for s in (one, two))
            yield Difference("pixels", where, before, after)


def lock(session: Session, path: str | Path, steps: int, version: str) -> None:
    """Write a lock file, or compare with it; see :meth:`gpupipe.DataLoader.lock`."""
    path = Path(path)
    if not path.exists():
        create_folder_of(path)
        try:
            record(session, steps, version).save(path)
        except OSError as e:
            raise ConfigError(f"cannot write {path}: {e.strerror}") from None
        return
    before = Lock.load(path)
    found = differences(before, record(session, len(before.steps), version))
    changed = [each for each in found if each.kind != "version"]
    if not changed:
        return
    shown = [str(each) for each in (*changed[:_SHOWN], *(each for each in found if each.kind == "version"))]
    more = f"\n  and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    raise StateError(
        f"this run does not read what {path} pins:\n  " + "\n  ".join(shown) + more + "\ndelete the file to pin what "
        "the run reads now, or write another one and see all differences with gpupipe diff"
    )
