"""The table: what came of every script, and what share of them keeps which promise."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from .. import corpus  # noqa: F401 - fills SCRIPTS
from .judge import CHECKS, Judge, Verdict
from .script import SCRIPTS, Script
from .tree import make_tree

__all__ = ["main"]

Found = list[tuple[Script, Verdict]]


def main() -> None:
    typer.run(run)


def run(
    names: Annotated[list[str] | None, typer.Argument(help="Scripts or families; all if none is named.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes; as each script says by default.")] = None,
    why: Annotated[bool, typer.Option("--why", help="Also say what failed, in words.")] = False,
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
    found = _judge(chosen, workers)
    seconds = time.monotonic() - start
    console.print(_results(found))
    if why:
        for script, verdict in found:
            for check in CHECKS:
                for problem in verdict.problems[check][:4]:
                    console.print(f"{script.name} {check}: {problem}", markup=False, soft_wrap=True)
    console.print(_totals(found), f"{len(found)} scripts in {seconds:.0f} s with torch {torch.__version__}")
    if missing:
        console.print(f"left out for packages that are not installed: {', '.join(missing)}")


def _judge(chosen: list[Script], workers: int | None) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPUPIPE_CACHE"] = f"{folder}/cache"
        judge = Judge(make_tree(Path(folder) / "tree", 1), workers)
        scripts = track(chosen, "scripts", console=Console(stderr=True), transient=True)
        return [(script, judge.verdict(script)) for script in scripts]


def _results(found: Found) -> Table:
    table = Table("script", "family", "same as torch", "on DALI", "images", "expected", "warning")
    for script, verdict in found:
        same, dali = ("[red]no[/]" if verdict.problems[check] else "yes" for check in ("same", "dali"))
        engine = f"[yellow]{verdict.engine}[/]" if verdict.problems["engine"] else verdict.engine
        warning = "[red]wrong[/]" if verdict.problems["warning"] else "yes" if verdict.messages else ""
        table.add_row(script.name, script.family, same, dali, engine, script.engine, warning)
    return table


def _totals(found: Found) -> Table:
    n = len(found)
    table = Table("", "scripts", "share", show_header=True)
    for what, count in (
        ("the same as torch, in every bit", sum(not v.problems["same"] for _, v in found)),
        ("the same with DALI, within its promises", sum(not v.problems["dali"] for _, v in found)),
        ("DALI makes all images", sum(s.engine == "dali" for s, _ in found)),
        ("DALI makes some images", sum(s.engine == "some" for s, _ in found)),
    ):
        table.add_row(what, str(count), f"{count / n:.0%}")
    return table
