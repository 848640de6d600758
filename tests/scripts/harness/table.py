"""The table: what came of every script, and what share of them keeps which promise."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import gpupipe

from .. import corpus  # noqa: F401 - fills SCRIPTS
from .judge import CHECKS, Judge, Verdict
from .script import SCRIPTS, Script
from .tree import make_tree

__all__ = ["main"]

DIFFERENCES = ("structure", "order", "pixels", "draws", "distribution")
"""Checks whose failure is a silent difference: the script ran, and did something else than with torch."""

Found = list[tuple[Script, Verdict]]


def main() -> None:
    typer.run(run)


def run(
    names: Annotated[list[str] | None, typer.Argument(help="Scripts or families; all if none is named.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Leave the distributions out.")] = False,
    why: Annotated[bool, typer.Option("--why", help="Also say what failed, in words.")] = False,
    itself: Annotated[
        bool, typer.Option("--itself", help="Torch's loader in gpupipe's place: nothing may differ from itself.")
    ] = False,
) -> None:
    """Run the scripts with torch's DataLoader and with gpupipe's, and print what came of each."""
    chosen = [s for s in SCRIPTS.values() if not names or s.name in names or s.family in names]
    missing = [s.name for s in chosen if not all(importlib.util.find_spec(package) for package in s.needs)]
    chosen = [s for s in chosen if s.name not in missing]
    if not chosen:
        raise typer.BadParameter(
            f"no script or family of these names; families: {sorted({s.family for s in SCRIPTS.values()})}"
        )
    console = Console(width=None if os.isatty(1) else 160)
    start = time.monotonic()
    found = _judge(chosen, torch.utils.data.DataLoader if itself else gpupipe.DataLoader, fast)
    seconds = time.monotonic() - start
    console.print(_results(found), _fallbacks(found))
    if why:
        for script, verdict in found:
            for check in CHECKS:
                for problem in verdict.problems.get(check, [])[:4]:
                    console.print(f"{script.name} {check}: {problem}", markup=False, soft_wrap=True)
    console.print(_totals(found), f"{len(found)} scripts in {seconds:.0f} s with torch {torch.__version__}")
    if missing:
        console.print(f"left out for packages that are not installed: {', '.join(missing)}")


def _judge(chosen: list[Script], loader_class: Any, fast: bool) -> Found:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPUPIPE_CACHE"] = f"{folder}/cache"

        @cache
        def tree(copies: int) -> Path:
            return make_tree(Path(folder) / f"copies{copies}", copies)

        judge = Judge(tree, loader_class)
        for script in track(chosen, "scripts", console=Console(stderr=True), transient=True):
            verdict = judge.verdict(script)
            if not fast:
                verdict.problems["distribution"] = judge.distribution(script)
            found.append((script, verdict))
    return found


def _results(found: Found) -> Table:
    table = Table("script", "family", "torch", "gpupipe", "engine", "expected", "differences", "warning")
    for script, verdict in found:
        table.add_row(script.name, script.family, "ok", *_row(script, verdict))
    return table


def _row(script: Script, verdict: Verdict) -> tuple[str, ...]:
    """(gpupipe, engine, expected, differences, warning)"""
    if not verdict.runs:
        return "[red]raises[/]", "", script.engine, "", ""
    bad = [check for check in DIFFERENCES if verdict.problems.get(check)]
    engine = f"[yellow]{verdict.engine}[/]" if verdict.problems.get("engine") else verdict.engine
    warning = "[red]wrong[/]" if verdict.problems.get("warning") else "ok" if verdict.messages else ""
    return "ok", engine, script.engine, f"[red]{', '.join(bad)}[/]" if bad else "none", warning


def _fallbacks(found: Found) -> Table:
    table = Table("script", "falls back, with this warning")
    for script, verdict in found:
        if verdict.runs and "torch" in verdict.engines:
            table.add_row(script.name, "\n".join(verdict.messages) or "(none)")
    return table


def _totals(found: Found) -> Table:
    n = len(found)
    silent = Counter(check for _, v in found for check in DIFFERENCES if v.problems.get(check))
    affected = sum(any(v.problems.get(check) for check in DIFFERENCES) for _, v in found)
    table = Table("", "scripts", "share", show_header=True)
    for what, count in (
        ("run with one import changed", sum(v.runs for _, v in found)),
        ("run on DALI", sum(v.runs and set(v.engines) == {"dali"} for _, v in found)),
        ("expected on DALI", sum(s.engine == "dali" for s, _ in found)),
        (f"differ silently {dict(silent) if silent else ''}", affected),
        ("warn not as they should", sum(bool(v.problems.get("warning")) for _, v in found)),
    ):
        table.add_row(what, str(count), f"{count / n:.0%}")
    return table
