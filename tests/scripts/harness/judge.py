"""A script run with torch's loader and with gpupipe's, and what came of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import compare
from .distributions import Sample, apart
from .layouts import any_checksum
from .record import Epoch, Run, play
from .script import Args, Script

__all__ = ["CHECKS", "Judge", "Verdict"]

CHECKS = ("runs", "structure", "order", "pixels", "draws", "distribution", "engine", "warning")
"""In the order in which they are reported. README.md says what each asks."""


@dataclass
class Verdict:
    """What came of one script; a check is passed if ``problems`` has nothing under its name."""

    problems: dict[str, list[str]] = field(default_factory=dict)
    engines: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    """What gpupipe's run warned of, and torch's did not."""

    @property
    def runs(self) -> bool:
        return not self.problems.get("runs")

    @property
    def engine(self) -> str:
        return " + ".join(dict.fromkeys(self.engines)) or "none"


Torchs = dict[tuple[str, int], list[Run]]


class Judge:
    """Runs scripts on trees of data, and remembers what came of each.

    Args:
        tree: the folder of data for so many copies of each picture.
        loader_class: what takes the place of torch's ``DataLoader``.
        torchs: torch's runs by script and copies; several judges of one tree may share them.
    """

    def __init__(self, tree: Callable[[int], Path], loader_class: Any, torchs: Torchs | None = None):
        self.tree = tree
        self.loader_class = loader_class
        self._torchs: Torchs = {} if torchs is None else torchs
        self._runs: dict[str, tuple[list[Run], list[Run]]] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._distributions: dict[str, list[str]] = {}

    def verdict(self, script: Script) -> Verdict:
        """All checks but the distributions."""
        if script.name not in self._verdicts:
            self._verdicts[script.name] = self._judge(script)
        return self._verdicts[script.name]

    def _judge(self, script: Script) -> Verdict:
        theirs, ours = self._play(script)
        verdict = Verdict(engines=ours[0].engines, messages=_new_messages(theirs, ours))
        if error := next((run.error for run in ours if run.error), ""):
            verdict.problems["runs"] = [error]
            return verdict
        three = theirs[0], theirs[1], ours[0]
        verdict.problems |= {
            "structure": compare.structure_problems(*three),
            "order": compare.order_problems(*three),
            "pixels": compare.pixel_problems(*three),
            "draws": compare.drawing_problems([theirs[0], theirs[1], theirs[0]], ours),
            "engine": _engine_problems(script, verdict),
            "warning": _warning_problems(script, verdict),
        }
        return verdict

    def _play(self, script: Script) -> tuple[list[Run], list[Run]]:
        """Torch's runs and ours: from a seed, then on from there, then ours from the seed again."""
        if script.name not in self._runs:
            seeds = (0, 1)
            if (script.name, 1) not in self._torchs:
                self._torchs[script.name, 1] = self._series(script, torch.utils.data.DataLoader, seeds)
            theirs = self._torchs[script.name, 1]
            if error := next((run.error for run in theirs if run.error), ""):
                raise RuntimeError(f"{script.name} does not run with torch, so there is nothing to compare: {error}")
            self._runs[script.name] = theirs, self._series(script, self.loader_class, (*seeds, 0))
        return self._runs[script.name]

    def _series(self, script: Script, loader_class: Any, seeds: tuple[int, ...]) -> list[Run]:
        runs: list[Run] = []
        for i, seed in enumerate(seeds):
            if i != 1:
                _seed_everything(seed)
            args = Args(self.tree(1), seed, script.workers)
            runs.append(self._one(script, args, loader_class))
            if runs[-1].error:
                break
        return runs

    def _one(self, script: Script, args: Args, loader_class: Any) -> Run:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in worker processes: on few cores, threads of torch wait for each other
        try:
            with any_checksum():
                return play(script, args, loader_class)
        finally:
            torch.set_num_threads(threads)

    def _large(self, script: Script, loader_class: Any) -> Run:
        _seed_everything(7)
        return self._one(script, Args(self.tree(COPIES), 7, min(script.workers, 1)), loader_class)

    def distribution(self, script: Script) -> list[str]:
        """Whether what is random is as random as torch's, over several hundred images."""
        if script.name not in self._distributions:
            self._distributions[script.name] = self._compare_distributions(script)
        return self._distributions[script.name]

    def _compare_distributions(self, script: Script) -> list[str]:
        theirs, ours = self._play(script)
        verdict = self.verdict(script)
        if not verdict.runs or verdict.problems["structure"]:
            return []  # nothing to compare, or not the same things
        if all(compare.same_batches(a, b) for a, b in zip(theirs, ours, strict=False)):
            return []  # the numbers that torch draws were drawn, from a seed and on from there
        pairs = compare.pairs(theirs[0], theirs[1], ours[0])
        random_paths = {
            (pair.number, path)
            for pair in pairs
            for path in pair.theirs.paths
            if not pair.fixed(path) and _is_random(pair, path)
        }
        if not random_paths:
            return []
        if (script.name, COPIES) not in self._torchs:
            self._torchs[script.name, COPIES] = [self._large(script, torch.utils.data.DataLoader)]
        large = self._large(script, self.loader_class)
        if large.error:
            return [f"with {COPIES} copies of every picture: {large.error}"]
        many = [*theirs, *self._torchs[script.name, COPIES]], [*ours[:2], large]
        names = {(pair.number, path): pair.identity(path) for pair in pairs for path in pair.theirs.paths}
        problems = []
        for path in dict.fromkeys(path for _, path in sorted(random_paths)):
            epochs = [number for number, p in sorted(random_paths) if p == path]
            if (sides := _pooled(many, epochs, path, names)) is not None:
                problems += [f"{path or 'the batch'}: {problem}" for problem in apart(*sides)]
        return problems


COPIES = 4
"""Of each of 36 pictures: with two epochs 288 images, and 144 of the first two runs, which were seeded otherwise."""


def _is_random(pair: compare.Pair, path: str) -> bool:
    """Whether a leaf that changes from run to run does so in more than its order."""
    if (aligned := pair.by_sample(path)) is not None:
        return not np.array_equal(aligned[0], aligned[1])
    values = pair.theirs.joined(path)
    return values is not None and values.dtype.kind in "iufb"


def _pooled(
    many: tuple[list[Run], list[Run]], epochs: list[int], path: str, names: dict[tuple[int, str], str | None]
) -> tuple[Sample, Sample] | None:
    """torch's samples and ours, some epochs of all runs in one; ``None`` if they do not fit into one array."""
    sides = []
    for runs in many:
        chosen = [(e, run.epochs[e]) for run in runs for e in epochs if e < len(run.epochs)]
        found = [x for _, epoch in chosen if (x := epoch.joined(path)) is not None]
        if len(found) != len(runs) * len(epochs) or len({x.shape[1:] for x in found}) != 1:
            return None
        sizes = [len(x) for _, epoch in chosen for x in epoch.column(path)]
        pictures = [_names(epoch, names.get((e, path))) for e, epoch in chosen]
        known = [p for p, x in zip(pictures, found, strict=True) if p is not None and len(p) == len(x)]
        all_known = np.concatenate(known) if len(known) == len(found) else None
        sides.append(Sample(np.concatenate(found), np.repeat(np.arange(len(sizes)), sizes), all_known))
    if sides[0].values.shape[1:] != sides[1].values.shape[1:]:
        return None
    return sides[0], sides[1]


def _names(epoch: Epoch, path: str | None) -> Any:
    return None if path is None else epoch.joined(path)


def _seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - scripts draw from it


def _new_messages(theirs: list[Run], ours: list[Run]) -> tuple[str, ...]:
    known = {text for run in theirs for text in run.messages}
    return tuple(text for text in ours[0].messages if text not in known)


def _engine_problems(script: Script, verdict: Verdict) -> list[str]:
    if script.engine == "dali" and set(verdict.engines) != {"dali"}:
        return [f"it ran on {verdict.engine}, and should on dali"]
    unknown = set(verdict.engines) - {"dali", "torch"}
    return [f"repr says engine {', '.join(sorted(unknown)) or 'nothing'}"] if unknown or not verdict.engines else []


_INSIDE = re.compile(r"\b0x[0-9a-f]{4,}|\b(?:StandIn|Standing|Pending|Unread|Traced|Looked|InspectionError)\w*")
"""Addresses, and what gpupipe hands to scripts in place of images."""


def _warning_problems(script: Script, verdict: Verdict) -> list[str]:
    """One line per loader that names every reason if torch's loader took over, nothing otherwise."""
    messages = verdict.messages
    if "torch" not in verdict.engines and not script.because:
        return [f"it warned without a reason: {text}" for text in messages]
    problems, loaders = [], max(verdict.engines.count("torch"), 1)
    if not 1 <= len(set(messages)) == len(messages) <= loaders:
        problems.append(
            f"{len(messages)} warnings when torch took over {loaders} loaders, and it must be one for each, none "
            f"twice: {' | '.join(messages)}"
        )
    problems += [f"the warning has {len(text.splitlines())} lines" for text in messages if "\n" in text.strip()]
    problems += [
        f"the warning names {found[0]}, which no user knows" for text in messages if (found := _INSIDE.search(text))
    ]
    everything = " ".join(messages).lower()
    missing = [word for word in script.because if word.lower() not in everything]
    return problems + ([f"the warning does not name {', '.join(missing)}: {everything}"] if missing else [])
