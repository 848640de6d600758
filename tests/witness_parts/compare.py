"""What differs between two records, in lines that a person can read."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from itertools import zip_longest

from .file import Record

__all__ = ["differences", "elsewhere", "matching"]

MARKS = ("order", "sizes", "frames", "numbers", "batch", "images", "target")
"""Parts that have a checksum for every step of every epoch."""
LOCAL = ("batch", "bits", "dataset", "images")
"""Parts that are compared on the same machine only; so are targets of engines that read."""


def matching(name: str, pattern: str | None) -> bool:
    """Whether a case is meant by ``--only``."""
    return pattern is None or fnmatch.fnmatchcase(name, f"*{pattern}*")


def elsewhere(was: Record, now: Record) -> dict[str, tuple[str, str]]:
    """In what two machines differ, (there, here). Checksums of inputs are known only where a case needed them."""
    there, here = was["machine"], now["machine"]
    return {k: (there[k], v) for k, v in here.items() if there.get(k, v) != v}


def differences(was: Record, now: Record, only: str | None = None) -> tuple[list[str], list[str]]:
    """(what differs, what else is to be said), a line each.

    Args:
        was: what the file has.
        now: what is done now, by all engines or by those that ``look`` was told to take.
        only: as on the command line.
    """
    notes = [f"not looked at: {name} ({why})" for name, why in now["skipped"].items()]
    other = elsewhere(was, now)
    lines: list[str] = []
    renamed: dict[str, str] = {}
    apart = [0, 0]
    before = {name: record for name, record in was["cases"].items() if matching(name, only)}
    for name in [*before, *(n for n in now["cases"] if n not in before)]:
        old, new = before.get(name), now["cases"].get(name)
        if name in now["skipped"]:
            continue
        if new is None:
            lines.append(f"{name}: is not looked at any more")
            continue
        if old is None:
            lines.append(f"{name}: is new; write it down with --write --only")
            continue
        gone = [e for e in old if e not in new and (now["engines"] is None or e in now["engines"])]
        lines += [f"{name}, {engine}: is not looked at any more" for engine in gone]
        for engine, seen in new.items():
            if engine not in old:
                lines.append(f"{name}, {engine}: is new; write it down with --write --only")
                continue
            lines += _compared(
                f"{name}, {engine}", old[engine], seen, engine, local=not other, renamed=renamed, apart=apart
            )
    notes += [f"renamed: {a} is now {b}" for a, b in renamed.items() if a != b]
    notes += _fields(was["fields"], now["fields"], renamed)
    if other:
        notes.append("not comparable: pixels, because this is another machine than the file is of:")
        notes += [f"    {k}: {a} there, {b} here" for k, (a, b) in other.items()]
        notes.append(f"    ({apart[1] - apart[0]} of {apart[1]} such lines are equal all the same)")
    return lines, notes


def _compared(
    where: str, old: Record, new: Record, engine: str, *, local: bool, renamed: dict[str, str], apart: list[int]
) -> list[str]:
    """One case with one engine. ``local``: whether pixels can be compared; ``renamed`` and ``apart`` (lines that cannot
    be compared and differ, all of them) are added to."""
    lines = []
    if "failed" in new or ("refused" in new) != ("refused" in old):
        return [f"{where}: {', '.join(f'{k} {v}' for k, v in new.items() if k in ('failed', 'refused')) or 'runs now'}"]
    for part in dict.fromkeys([*old, *new]):
        a, b = old.get(part), new.get(part)
        if not local and (part in LOCAL or (part == "target" and engine != "null")):
            apart[0] += a != b
            apart[1] += 1
        elif part == "names" and a is not None and b is not None:
            if not _renaming(a, b, renamed):
                lines.append(f"{where}: names was {a!r}, is {b!r}: not the same names as everywhere else")
        elif a != b:
            lines += [f"{where}: {text}" for text in _difference(part, a, b)]
    return lines


def _difference(part: str, a: str | None, b: str | None) -> Iterable[str]:
    if part not in MARKS or a is None or b is None:
        yield f"{part} was {a!r}, is {b!r}"
        return
    for epoch, (one, two) in enumerate(zip_longest(a.split(" / "), b.split(" / "), fillvalue="")):
        old, new = one.split(), two.split()
        steps = [str(k) for k, (x, y) in enumerate(zip(old, new)) if x != y]  # noqa: B905
        count = f" ({len(old)} steps, now {len(new)})" if len(old) != len(new) else ""
        if steps or count:
            yield f"epoch {epoch}: {part} of step{'s' * (len(steps) != 1)} {' '.join(steps) or 'none'}{count}"


def _renaming(a: str, b: str, renamed: dict[str, str]) -> bool:
    """Whether these names of ops are the same ones, each called by one other name everywhere."""
    old, new = (re.split(r"(\w+)", text) for text in (a, b))
    together = {**renamed}
    same = old[::2] == new[::2] and all(
        together.setdefault(x, y) == y for x, y in zip(old[1::2], new[1::2], strict=True)
    )
    if not same or len(set(together.values())) != len(together):
        return False
    renamed |= together
    return True


def _fields(old: dict[str, str], new: dict[str, str], renamed: dict[str, str]) -> list[str]:
    pairs = [(name, renamed.get(name, name)) for name in old]
    return [f"fields of {b}: {old[a]!r} is now {new[b]!r}" for a, b in pairs if b in new and old[a] != new[b]]
