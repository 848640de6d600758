"""``gpupipe why``"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import NoReturn

from rich.table import Table

from ..errors import ConfigError
from ..why.explain import TORCHS_OWN, Explained, explain
from ..why.watch import Begin, Made, Watched, run_script
from .answer import tell, write_now
from .console import console, pairs, print_error
from .inputs import check_file


def run(script: Path, arguments: Sequence[str] | None, *, seconds: float) -> NoReturn:
    """Run the script up to its loaders, print what was found, and end the process.

    The process ends at once, so that nothing runs that the script has planned for its end, such as saving a checkpoint.
    """
    check_file(script, "script")
    out = sys.stdout

    def done(watched: Watched) -> NoReturn:
        watched.stopped = True
        found = [explain(made, seconds=seconds) for made in watched.made]
        with redirect_stdout(out):
            end(_report(script, found, watched))

    def iterate(watched: Watched, made: Made, begin: Begin) -> NoReturn:
        try:
            done(watched)
        except BaseException:  # an error of ours must not start the training
            traceback.print_exc()
            end(1)

    run_script(script, arguments or [], iterate, done)


def end(code: int) -> NoReturn:
    """End the process at once, with the answer of the command and without anything of the script."""
    write_now(code)
    # os._exit() below would leave the script's workers behind.
    for child in multiprocessing.active_children():
        child.kill()
    for stream in (sys.__stdout__, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()  # type: ignore[union-attr]
    os._exit(code)


def _report(script: Path, found: Sequence[Explained], watched: Watched) -> int:
    screen = console()
    if not found:
        return ended_early(script, watched, "made a DataLoader")
    _print_error_of_script(watched)
    tell(loaders=found, stopped_at=watched.reached, error=None if watched.error is None else repr(watched.error))
    for number, one in enumerate(found, 1):
        screen.print(_table(number, one))
    if watched.error is not None:
        where = f"the script ended with {type(watched.error).__name__}"
    elif watched.reached:
        where = f"stopped at {watched.reached}, where the script begins to iterate over a loader"
    else:
        where = "the script ended without iterating over a loader"
    screen.print(f"{where}; loaders that it would make later are not listed", style="dim", soft_wrap=True)
    return 0


def ended_early(script: Path, watched: Watched, before: str) -> int:
    """Print that a script ended before it did what was waited for, and why. Returns the exit code."""
    _print_error_of_script(watched)
    error = watched.error
    if error is None or isinstance(error, SystemExit):
        how = "normally" if error is None else "with SystemExit"
        text = f"{script} ended {how} before it {before}; give it the arguments that it needs"
    else:
        text = f"{script} raised {type(error).__name__} before it {before}; run python {script} first"
    print_error(ConfigError(text))
    return 2


def _print_error_of_script(watched: Watched) -> None:
    """Print what Python prints if an exception ends a script."""
    error = watched.error
    if not isinstance(error, SystemExit):
        traceback.print_exception(error, file=sys.stderr)
    elif not isinstance(error.code, int):
        print(error.code, file=sys.stderr)


def _table(number: int, one: Explained) -> Table:
    plain = one.engine == TORCHS_OWN
    rows = [
        ("dataset", one.dataset + ("" if one.samples is None else f", {one.samples:,} samples")),
        ("engine", one.engine if plain else f"{one.engine} ({one.why})"),
        *(("reason", f"{reason.text} [{reason.code}]; see docs/warnings.md#{reason.code}") for reason in one.reasons),
        *(("warning", text) for text in one.warnings),
        *(("note", text) for text in one.remarks),
    ]
    if one.rates:
        names = {"gpupipe": TORCHS_OWN if plain else "gpupipe", "torch": TORCHS_OWN, "reference": "reference engine"}
        rates = ", ".join(f"{names[name]} {rate:,.0f}" for name, rate in one.rates.items())
        ratio = "" if one.ratio is None else f"; ratio {one.ratio:.2f}"
        rows.append(("samples/s", rates + ratio))
    if one.not_measured:
        rows.append(("not measured", one.not_measured))
    rows.append(("change", str(one.change)))
    made = "gpupipe.DataLoader" if one.uses_gpupipe else "torch's DataLoader"
    return pairs(rows, f"loader {number}: {one.at}, {made}, batches of {one.batch_size}, {one.num_workers} workers")
