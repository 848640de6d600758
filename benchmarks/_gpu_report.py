"""The one file that a run on a GPU leaves behind, and the line that it ends with."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import ROOT

__all__ = ["NAME", "Outcome", "Report", "facts"]

NAME = "gpu_report.json"
RESULTS = ("gpu_decoders", "gpu_tests", "gpu_loader", "gpu_parity", "gpu_training", "gpu_copy", "video_clips_gpu",
           "recipes_gpu", "memory_epochs_gpu")  # fmt: skip
"""The files that steps write."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a step."""

    wrong: tuple[str, ...] = ()
    """(name, reason) of each failed process."""
    left_out: tuple[str, ...] = ()
    """(name, reason) of each process that this machine cannot run, and of tests that ran out of time."""
    seconds: float = 0.0

    def __str__(self) -> str:
        return "; ".join([*self.wrong, *self.left_out]) or "ok"


class Report:
    """Everything that is known so far; written again after every step.

    Args:
        folder: where the steps leave their results, and the report goes.
        keep: whether it is written at all.
    """

    def __init__(self, folder: Path, *, keep: bool = True):
        self._folder, self._keep = folder, keep
        self._began = time.time()
        self._steps: dict[str, Outcome] = {}
        self._facts: dict[str, Any] | None = None

    @property
    def passed(self) -> bool:
        return not any(outcome.wrong for outcome in self._steps.values())

    def add(self, step: str, outcome: Outcome) -> None:
        self._steps[step] = outcome
        if self._keep:
            (self._folder / NAME).write_text(json.dumps(self.to_dict(), indent=1, default=str) + "\n")

    def to_dict(self) -> dict[str, Any]:
        if self._facts is None:
            self._facts = asked_facts()
        results = {name: found for name in RESULTS if (found := self._result(name))}
        return {
            "verdict": self.verdict(),
            **self._facts,
            "steps": {name: dataclasses.asdict(outcome) for name, outcome in self._steps.items()},
            "tests": tests(results.get("gpu_tests", {})),
            "results": results,
        }

    def lines(self) -> list[str]:
        """The end of a run."""
        rows = [f"{name:10} {outcome.seconds:6.0f} s  {outcome}" for name, outcome in self._steps.items()]
        if not self._keep:
            return [*rows, "", f"{self.verdict()}  (tried out on the CPU; nothing was kept)"]
        path = self._folder / NAME
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        return [*rows, "", self.verdict(), f'{shown} holds everything: please attach it to a new issue "GPU report".']

    def verdict(self) -> str:
        """``PASS`` and what was measured, or ``FAIL`` and the first step that failed, with the reason."""
        for name, outcome in self._steps.items():
            if outcome.wrong:
                return f"FAIL  {name}: {self._first_failed(name) or outcome.wrong[0]}"
        results = {name: self._result(name) for name in ("gpu_tests", "gpu_decoders", "gpu_loader")}
        return "PASS  " + (", ".join(measured(results)) or ", ".join(self._steps))

    def _first_failed(self, step: str) -> str | None:
        """The first test that failed, and the last line of its error."""
        if step not in ("tests", "reference", "contract"):
            return None
        failed = tests(self._result("gpu_tests"))["failed"]
        return next((f"{name}: {brief(why)}" for name, why in failed.items()), None)

    def _result(self, name: str) -> dict[str, Any]:
        file = self._folder / f"{name}.json"
        # What lies there of another run, on another machine, says nothing of this one.
        if not self._keep or not file.exists() or file.stat().st_mtime < self._began:
            return {}
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def tests(result: dict[str, Any]) -> dict[str, Any]:
    """Count passed, skipped and failed tests of ``tests/gpu``, with reasons."""
    outcomes: dict[str, str] = result.get("outcomes", {})
    counts = Counter(outcome.partition(":")[0] for outcome in outcomes.values())
    failed = {name: why.partition(": ")[2] for name, why in outcomes.items() if why.startswith("failed")}
    return {"counts": dict(counts), "failed": failed}


def brief(why: str) -> str:
    """The line of pytest's report that says what is wrong."""
    lines = why.splitlines()
    said = [line[1:].strip() for line in lines if line.startswith("E ")]
    return next((line for line in said if line), "") or (lines or [""])[-1]


def measured(results: dict[str, dict[str, Any]]) -> list[str]:
    """The most telling numbers."""
    said = []
    counts = Counter(tests(results["gpu_tests"])["counts"])
    if asked := counts["passed"] + counts["failed"]:
        said.append(f"tests {counts['passed']} of {asked}")
    races = results["gpu_decoders"].get("race", {}).values()
    if batches := sum(race["batches"] for race in races):
        changed = sum(race["bytes"] for race in races)
        said.append(f"{changed or 'no'} byte{'s' if changed > 1 else ''} changed in {batches:,} batches")
    settings = results["gpu_decoders"].get("decoders", {}).values()
    # Pixels of the JPEG engine may equal the CPU's, and then tell nothing.
    if by := sorted({row["decoded_by"] for of in settings for row in of.values()} - {"GPU or CPU"}):
        said.append(f"decoded by the {' and the '.join(by)}")
    return said + _speed(results["gpu_loader"].get("stages", {}).get("main", {}))


def _speed(main: dict[str, Any]) -> list[str]:
    ours, hand = (main.get(name, {}) for name in ("gpupipe, DALI engine", "DALI by hand"))
    if "median_images_per_second" not in ours:
        return []
    speed = f"{ours['median_images_per_second']:,.0f} images/s"
    if "to_first" not in hand:
        return [speed]
    return [f"{speed} = {1 / hand['to_first']['median']:.2f} of DALI by hand"]


# ---- the machine


def asked_facts() -> dict[str, Any]:
    """Return :func:`facts` from its own process, because a GPU's memory belongs to the steps."""
    code = "import json, _gpu_report; print(json.dumps(_gpu_report.facts()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"machine": {"failed": done.stderr.strip().splitlines()[-1:]}}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def facts() -> dict[str, Any]:
    """Machine, versions, what ``gpupipe doctor`` finds, and whether the card has engines that decode JPEG."""
    from gpupipe.bench import machine
    from gpupipe.commands.doctor import look
    from gpupipe.commands.findings import examine

    return {
        "machine": machine.facts(),
        "driver": machine.driver(),
        "versions": machine.versions(),
        "doctor": [dataclasses.asdict(finding) for finding in examine(look())],
        "jpeg_engines": jpeg_engines(),
    }


def jpeg_engines() -> bool | None:
    """Whether the first card has some: the driver shows how busy they are. ``None`` if it does not say."""
    try:
        command = ["nvidia-smi", "-q", "-d", "UTILIZATION", "-i", "0"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^\s*JPEG\s*:\s*(.+?)\s*$", said, re.MULTILINE)
    return None if found is None else "%" in found[1]
