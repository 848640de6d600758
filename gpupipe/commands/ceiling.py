"""``gpupipe ceiling``"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

from ..errors import ConfigError
from ..why.ceiling import Ceiling, Replay
from ..why.watch import Begin, Made, Watched, run_script
from .answer import tell
from .console import console, pairs
from .why import end, ended_early


def run(script: Path, arguments: Sequence[str], *, epochs: int, seconds: float, loader: int | None) -> NoReturn:
    """Run the script until a loader has given batches for ``seconds`` and again from memory, print the difference, and
    end the process.

    Args:
        loader: number of the loader, in the order in which the script makes them, counted from 1; ``None``: the first
            one that gives enough batches.
    """
    if not script.is_file():
        raise ConfigError(f"{script}: no such file")
    out = sys.stdout

    def done(found: Ceiling) -> NoReturn:
        try:
            with redirect_stdout(out):
                _report(found, epochs)
        except BaseException:  # an error of ours must not go on with the training
            traceback.print_exc()
            end(1)
        end(0)

    def iterate(watched: Watched, made: Made, begin: Begin) -> Iterator[Any]:
        if loader is not None and watched.made.index(made) != loader - 1:
            return begin()
        return Replay(made, begin(), done, seconds=seconds)

    def ended(watched: Watched) -> NoReturn:
        end(ended_early(script, watched, "had taken enough batches of a loader"))

    run_script(script, arguments, iterate, ended)


def _report(found: Ceiling, epochs: int) -> None:
    hours = found.hours(epochs)
    tell(ceiling=found, saves=found.saves, epochs=epochs, hours=hours)
    rows = [
        ("with its loader", f"{1e3 * found.seconds:,.1f} ms a step, over {found.batches} steps"),
        ("from memory", f"{1e3 * found.perfect:,.1f} ms a step"),
        ("a perfect loader saves", f"{found.saves:.0%}" + ("" if hours is None else f", {_of(*hours, epochs)}")),
    ]
    if found.bottleneck is not None:
        rows.append(("the loop waits for", f"{found.bottleneck['stage']}: {found.bottleneck['next_step']}"))
    made = "gpupipe.DataLoader" if found.uses_gpupipe else "torch's DataLoader"
    console().print(pairs(rows, f"{made}, {found.at}"))


def _of(saved: float, whole: float, epochs: int) -> str:
    """Return a text such as "1.7 of 9.0 hours"."""
    unit, factor = next(((u, f) for u, f in (("hours", 1.0), ("minutes", 60.0)) if whole * f >= 1), ("seconds", 3600.0))
    return f"{saved * factor:.1f} of {whole * factor:.1f} {unit} in {epochs} epoch{'s' * (epochs != 1)}"
