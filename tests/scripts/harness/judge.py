"""A script run with torch's loader and with gpupipe's, and what came of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from by_reference import by_reference

import gpupipe

from .compare import differences, unlike
from .layouts import any_checksum
from .loaders import Live
from .record import Run, play
from .script import Args, Script

__all__ = ["CHECKS", "Judge", "Verdict"]

CHECKS = ("same", "dali", "engine", "warning")
"""In the order in which they are reported. README.md says what each asks."""


@dataclass
class Verdict:
    """What came of one script; a check is passed if ``problems`` has nothing under its name."""

    problems: dict[str, list[str]] = field(default_factory=dict)
    engines: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    """What gpupipe's run warned of, and torch's did not."""

    @property
    def engine(self) -> str:
        return " + ".join(dict.fromkeys(self.engines)) or "none"


class Judge:
    """Runs scripts on a tree of data, and remembers what came of each."""

    def __init__(self, tree: Path, workers: int | None = None):
        self._tree, self._workers = tree, workers
        self._verdicts: dict[str, Verdict] = {}

    def verdict(self, script: Script) -> Verdict:
        if script.name not in self._verdicts:
            self._verdicts[script.name] = self._judge(script)
        return self._verdicts[script.name]

    def _judge(self, script: Script) -> Verdict:
        theirs = self.play(script, torch.utils.data.DataLoader)
        if theirs.error:
            raise RuntimeError(f"{script.name} does not run with torch: {theirs.error}")
        with by_reference():
            live = self.play(script, Live)
        found = self.play(script, gpupipe.DataLoader)
        messages = tuple(text for text in found.messages if text not in theirs.messages)
        verdict = Verdict(engines=live.engines, messages=messages)
        verdict.problems["same"] = [live.error] if live.error else differences(live, theirs, exact=True)
        if found.error:
            verdict.problems["dali"] = [found.error]
        else:
            verdict.problems["dali"] = (
                differences(found, theirs, exact=False) if found.is_live else unlike(found, theirs)
            )
        verdict.problems["engine"] = _engine_problems(script, verdict)
        verdict.problems["warning"] = [
            f"{len(text.splitlines())} lines: {text}" for text in messages if "\n" in text.strip()
        ]
        return verdict

    def play(self, script: Script, loader_class: Any) -> Run:
        """Run a script from seed 0."""
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - scripts draw from it
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in worker processes: on few cores, threads of torch wait for each other
        workers = script.workers if self._workers is None else self._workers
        try:
            with any_checksum():
                return play(script, Args(self._tree, 0, workers), loader_class)
        finally:
            torch.set_num_threads(threads)


def _engine_problems(script: Script, verdict: Verdict) -> list[str]:
    kinds = set(verdict.engines)
    found = kinds.pop() if len(kinds) == 1 else "some" if kinds - {"torch"} else "torch"
    return [] if found == script.engine else [f"its images come from {verdict.engine}, expected: {script.engine}"]
