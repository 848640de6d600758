"""``gpupipe why``"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NoReturn

from rich.table import Table

from ..errors import ConfigError
from ..why.explain import TORCHS_OWN, Explained, explain, with_range
from ..why.replay import StepTimes, replayed
from ..why.watch import Begin, Made, Watched, run_script
from .answer import tell, write_now
from .console import console, pairs, print_error, print_note, progress
from .inputs import check_file


def run(script: Path, arguments: Sequence[str] | None, *, seconds: float) -> NoReturn:
    """Run the script up to its loaders, print what was found, and end the process.

    If something is measured, the loop that the script begins then runs for some seconds. The process ends at once, so
    that nothing runs that the script has planned for its end, such as saving a checkpoint.
    """
    check_file(script, "script")
    for option in ("--json", "--seconds", "--help"):
        if option in (arguments or ()):
            print_note(f"{option} stands after {script}, so the script gets it; put it before, if gpupipe should")
    out, told = sys.stdout, False

    def tell_once(watched: Watched) -> None:
        nonlocal told
        if not told:
            told, watched.stopped = True, True
            with progress() as say:
                found = [explain(made, seconds=seconds, progress=say) for made in watched.made]
            watched.stopped = False
            with redirect_stdout(out):
                _print_loaders(found)

    def stop(watched: Watched, times: StepTimes | None = None) -> NoReturn:
        with _errors_end():
            with redirect_stdout(out):
                _print_end(watched, times, measured=seconds > 0)
            end(0)

    def iterate(watched: Watched, made: Made, begin: Begin) -> Iterator[Any]:
        with _errors_end():
            tell_once(watched)
        if not seconds:
            stop(watched)
        return replayed(made, begin, seconds, lambda times: stop(watched, times))

    def ended(watched: Watched) -> NoReturn:
        if not watched.made:
            end(_print_no_loader(script, watched))
        tell_once(watched)
        _print_error_of_script(watched)
        stop(watched)

    run_script(script, arguments or [], iterate, ended)


@contextmanager
def _errors_end() -> Iterator[None]:
    """End the process after an error of ours, which must not go on with the training."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
        end(1)


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


def _print_loaders(found: Sequence[Explained]) -> None:
    tell(loaders=found)
    for number, one in enumerate(found, 1):
        console().print(_table(number, one))


def _print_end(watched: Watched, times: StepTimes | None, *, measured: bool) -> None:
    """Print what a perfect loader would save, and where the script stopped."""
    saves = None if times is None else times.saves
    error = None if watched.error is None else repr(watched.error)
    tell(stopped_at=watched.reached, error=error, step=times, perfect_loader_saves=saves)
    screen = console()
    if times is None and watched.reached and measured:
        screen.print("the loop took too few batches to see what a perfect loader would save", soft_wrap=True)
    if times is not None:
        screen.print(str(times), soft_wrap=True)
        where = f"stopped in the loop over the loader of {times.at}"
    elif watched.error is not None:
        where = f"the script ended with {type(watched.error).__name__}"
    elif watched.reached:
        where = f"stopped at {watched.reached}, where the script begins to iterate over a loader"
    else:
        where = "the script ended without iterating over a loader"
    screen.print(f"{where}; loaders that it would make later are not listed", style="dim", soft_wrap=True)


def _print_no_loader(script: Path, watched: Watched) -> int:
    """Print that a script ended before it made a loader, and why. Returns the exit code."""
    _print_error_of_script(watched)
    error = watched.error
    if error is None or isinstance(error, SystemExit):
        how = "ended normally" if error is None else "ended with SystemExit"
        help = "give it the arguments that it needs"
    else:
        how, help = f"raised {type(error).__name__}", f"run python {script} first"
    print_error(ConfigError(f"{script} {how} before it made a DataLoader; {help}"))
    return 2


def _print_error_of_script(watched: Watched) -> None:
    """Print what Python prints if an exception ends a script."""
    error = watched.error
    if isinstance(error, SystemExit):
        if not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    elif error is not None:
        traceback.print_exception(error, file=sys.stderr)


def _table(number: int, one: Explained) -> Table:
    plain = one.engine == TORCHS_OWN
    rows = [
        ("dataset", one.dataset + ("" if one.samples is None else f", {one.samples:,} samples")),
        ("engine", one.engine if plain else f"{one.engine} ({one.why})"),
        *(("reason", f"{reason.text} [{reason.code}]") for reason in one.reasons),
        *(("warning", text) for text in one.warnings),
        *(("note", text) for text in one.remarks),
    ]
    if one.rates:
        names = {"gpupipe": TORCHS_OWN if plain else "gpupipe", "torch": TORCHS_OWN, "reference": "reference engine"}
        rates = ", ".join(f"{names[name]} {rate:,.0f}" for name, rate in one.rates.items())
        ratio = "" if one.ratio is None else f"; ratio {with_range(one.ratios)}"
        rows.append(("samples/s", rates + ratio))
    if one.compared:
        rows.append(("as torch", one.compared))
    if one.not_measured:
        rows.append(("not measured", one.not_measured))
    rows.append(("change", str(one.change)))
    made = "gpupipe.DataLoader" if one.uses_gpupipe else "torch's DataLoader"
    return pairs(rows, f"loader {number}: {one.at}, {made}, batches of {one.batch_size}, {one.num_workers} workers")
