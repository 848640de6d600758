"""Where gpupipe's run of a script differs from torch's.

Nothing says what is random in a script: two runs of torch with different seeds do. What both gave alike is fixed, and
must be the same here; what they gave in another order must be the same samples here; what differed must differ here too
(and :mod:`.distributions` asks how).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .ours import Promise
from .record import Epoch, Run

__all__ = [
    "Pair",
    "drawing_problems",
    "is_image",
    "order_problems",
    "pairs",
    "pixel_problems",
    "same_batches",
    "structure_problems",
]

Array = npt.NDArray[Any]
Problems = list[str]


@dataclass(frozen=True)
class Pair:
    """One epoch three times: of torch, of torch with another seed, and ours."""

    number: int
    theirs: Epoch
    again: Epoch
    ours: Epoch

    @property
    def comparable(self) -> bool:
        """Whether there is the same number of batches, without which there is nothing to put side by side."""
        return len(self.ours.batches) == len(self.theirs.batches)

    def fixed(self, path: str) -> bool:
        """Whether torch gives the same whatever the seed."""
        return _same(self.theirs.column(path), self.again.column(path))

    def identity(self, path: str) -> str | None:
        """The leaf that says which sample each of ``path`` is: labels, indices or names that both of torch's runs have
        once each, in any order. Of several the one that stands nearest."""
        samples = self.theirs.joined(path)
        if samples is None:
            return None
        found = [p for p in self.theirs.paths if self._names_samples(p, len(samples))]
        return max(found, key=lambda p: _shared(p, path), default=None)

    def _names_samples(self, path: str, n: int) -> bool:
        a, b = self.theirs.joined(path), self.again.joined(path)
        if a is None or b is None or a.ndim != 1 or a.dtype.kind not in "iuU" or len(a) != n or len(b) != n:
            return False
        return np.array_equal(np.sort(a), np.sort(b)) and len(np.unique(a)) == n

    def by_sample(self, path: str) -> tuple[Array, Array, Array] | None:
        """``path`` in all three runs, in one order of samples, if that can be told."""
        key = self.identity(path)
        if key is None:
            return None
        found = []
        for epoch in (self.theirs, self.again, self.ours):
            names, values = epoch.joined(key), epoch.joined(path)
            if names is None or values is None or len(names) != len(values):
                return None
            found.append(values[np.argsort(names, kind="stable")])
        names = self.ours.joined(key)
        wanted = self.theirs.joined(key)
        assert names is not None and wanted is not None
        return (found[0], found[1], found[2]) if np.array_equal(np.sort(names), np.sort(wanted)) else None


def same_batches(a: Run, b: Run) -> bool:
    """Whether two runs gave the same in every epoch, to the last bit and in the same order."""
    return len(a.epochs) == len(b.epochs) and all(
        one.paths == two.paths and all(_same(one.column(path), two.column(path)) for path in one.paths)
        for one, two in zip(a.epochs, b.epochs, strict=True)
    )


def _shared(a: str, b: str) -> int:
    """How far two places go together."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def pairs(theirs: Run, again: Run, ours: Run) -> list[Pair]:
    return [Pair(i, a, b, c) for i, (a, b, c) in enumerate(zip(theirs.epochs, again.epochs, ours.epochs, strict=False))]


def is_image(x: Any) -> bool:
    """Pixels [..., C, H, W]: what may differ within a promise. Everything else is exact."""
    if not isinstance(x, np.ndarray) or x.ndim < 3 or min(x.shape[-2:]) < 8:
        return False
    return x.dtype.kind == "f" or (x.dtype == np.uint8 and x.shape[-3] in (1, 3))


def structure_problems(theirs: Run, again: Run, ours: Run) -> Problems:
    """Types, keys, lengths, dtypes, shapes, the number of batches."""
    if len(theirs.epochs) != len(ours.epochs):
        return [f"the script has {len(theirs.epochs)} epochs with torch, {len(ours.epochs)} with gpupipe"]
    problems = []
    for pair in pairs(theirs, again, ours):
        if pair.theirs.length != pair.ours.length:
            problems.append(f"epoch {pair.number}: len() is {pair.ours.length}, torch {pair.theirs.length}")
        if not pair.comparable:
            count, wanted = len(pair.ours.batches), len(pair.theirs.batches)
            problems.append(f"epoch {pair.number}: {count} batches, torch {wanted}")
            continue
        forms = [[batch.form for batch in epoch.batches] for epoch in (pair.theirs, pair.again, pair.ours)]
        if forms[0] != forms[1]:
            forms = [sorted(run) for run in forms]
        if forms[0] != forms[1]:  # sizes themselves are random
            forms = [sorted(re.sub(r"\d+", "n", form) for form in run) for run in forms]
        for i, (theirs_, ours_) in enumerate(zip(forms[0], forms[2], strict=True)):
            if theirs_ != ours_:
                problems.append(f"epoch {pair.number}, batch {i}: {ours_}, torch {theirs_}")
                break
    return problems


def order_problems(theirs: Run, again: Run, ours: Run) -> Problems:
    """Targets, indices, names: which samples, in which order if that is fixed, each as often as with torch."""
    problems = []
    for pair in pairs(theirs, again, ours):
        if not pair.comparable:
            continue
        for path in pair.theirs.paths:
            column = pair.theirs.column(path)
            if any(is_image(x) for x in column):
                continue
            where = f"epoch {pair.number}, {path or 'the batch'}"
            if pair.fixed(path):
                if not _same(column, pair.ours.column(path)):
                    problems.append(f"{where}: {_shown(pair.ours.column(path))}, torch {_shown(column)}")
                continue
            a, b, c = (epoch.joined(path) for epoch in (pair.theirs, pair.again, pair.ours))
            if a is None or b is None or c is None:
                continue
            same_samples = a.ndim == 1 and a.dtype.kind in "iuUb" and np.array_equal(np.sort(a), np.sort(b))
            if same_samples and not np.array_equal(np.sort(a), np.sort(c)):
                problems.append(f"{where}: {_counts(c, a)}")
            aligned = pair.by_sample(path)
            if aligned is not None and _equal(aligned[0], aligned[1]) and not _equal(aligned[0], aligned[2]):
                problems.append(f"{where}: another value than torch for the same sample")
    return problems


def pixel_problems(theirs: Run, again: Run, ours: Run) -> Problems:
    """Pixels that do not depend on a seed, against what is promised of the pipeline."""
    problems = []
    for pair in pairs(theirs, again, ours):
        if not pair.comparable:
            continue
        known = ours.promises if pair.ours.promise is None else (pair.ours.promise,)
        promises = list(dict.fromkeys(known)) or [Promise()]
        for path in pair.theirs.paths:
            column, mine = pair.theirs.column(path), pair.ours.column(path)
            if not all(is_image(x) for x in column):
                continue
            if (aligned := pair.by_sample(path)) is not None:
                if not _equal(aligned[0], aligned[1]):
                    continue
                both = [(aligned[2], aligned[0])]
            elif pair.fixed(path):
                both = list(zip(mine, column, strict=False))
            else:
                continue
            both = [(got, wanted) for got, wanted in both if got.shape == wanted.shape]
            # Of several loaders in one run it is not known which one gave this: one promise must be kept.
            found = [[p for got, wanted in both for p in promise.broken(got, wanted)] for promise in promises]
            if all(found):
                problems.append(f"epoch {pair.number}, {path}: {min(found, key=len)[0]}")
    return problems


def drawing_problems(theirs: Sequence[Run], ours: Sequence[Run]) -> Problems:
    """What torch draws anew is drawn anew, and what it repeats is repeated.

    Args:
        theirs: of torch, the first and second run, and the first again: a run from the same seed repeats the first.
        ours: the first run, one after it without seeding, and one seeded as the first.
    """
    found = pairs(theirs[0], theirs[1], ours[0])
    names = {(pair.number, path): pair.identity(path) for pair in found for path in pair.theirs.paths}
    wanted, got = _repetitions(theirs, names), _repetitions(ours, names)
    problems = []
    for key in wanted.keys() & got.keys():
        if wanted[key] != got[key]:
            says = "the same" if got[key] else "different"
            problems.append(f"{key}: {says}, with torch {'the same' if wanted[key] else 'different'}")
    return sorted(problems)


_RUNS = ("the first run", "the next run without seeding", "the run from the same seed")


def _repetitions(runs: Sequence[Run], names: dict[tuple[int, str], str | None]) -> dict[str, bool]:
    """Of pairs of leaves that could be equal, whether they are: in the order in which they came, and sample by sample
    if it is known which is which."""
    marks: dict[tuple[int, int, str], tuple[str, str]] = {}
    for r, run in enumerate(runs):
        for e, epoch in enumerate(run.epochs):
            for path in epoch.paths:
                values, key = epoch.joined(path), names.get((e, path))
                if values is None or values.dtype.kind not in "iufb" or values.size < 8 or _constant(values):
                    continue
                marks[r, e, path] = _mark(values)
                samples = None if key is None or key == path else epoch.joined(key)
                if samples is not None and len(samples) == len(values):
                    marks[r, e, f"{path} sample by sample"] = _mark(values[np.argsort(samples, kind="stable")])
    found = {}
    items = list(marks.items())
    for i, ((r, e, path), (form, digest)) in enumerate(items):
        for (s, f, other), (form_2, digest_2) in items[i + 1 :]:
            if form != form_2:
                continue
            if path == other and r == s:
                found[f"{path} of epochs {e} and {f} of {_RUNS[r]}"] = digest == digest_2
            elif path == other and e == f:
                found[f"{path} of epoch {e} of {_RUNS[r]} and {_RUNS[s]}"] = digest == digest_2
            elif (r, e) == (s, f):
                found[f"{path} and {other} of epoch {e} of {_RUNS[r]}"] = digest == digest_2
    return found


def _mark(values: Array) -> tuple[str, str]:
    """(what else has this form may be equal, what is equal if it is equal)"""
    return f"{values.dtype}{values.shape}", hashlib.sha1(np.ascontiguousarray(values).tobytes()).hexdigest()


def _constant(values: Array) -> bool:
    return bool((values == values.reshape(-1)[0]).all())


def _same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f")
    return type(a) is type(b) and bool(a == b)


def _shown(column: list[Any]) -> str:
    values = [str(v) for x in column for v in (np.asarray(x).reshape(-1) if isinstance(x, np.ndarray) else [x])]
    return " ".join(values[:12]) + (" …" if len(values) > 12 else "")


def _counts(got: Array, wanted: Array) -> str:
    kept, times = np.unique(got, return_counts=True)
    missing = np.setdiff1d(wanted, got)
    return (
        f"{len(missing)} of {len(np.unique(wanted))} that torch gives are missing, up to {times.max()} times the same, "
        f"{len(np.setdiff1d(kept, wanted))} that torch does not give"
    )
