"""``gpupipe ceiling``"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

from ..loader.ceiling import Ceiling, Replay
from ..why.watch import Begin, Made, Watched, run_script
from .answer import tell
from .console import console, pairs
from .inputs import check_file
from .why import end, ended_early


def run(script: Path, arguments: Sequence[str] | None, *, epochs: int, seconds: float, loader: int | None) -> NoReturn:
    """Run the script until a loader has given batches for ``seconds`` and again from memory, print the difference, and
    end the process.

    Args:
        loader: number of the loader, in the order in which the script makes them, counted from 1; ``None``: the first
            one that gives enough batches.
    """
    check_file(script, "script")
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
        return Replay(made.at, lambda: (made.loader, begin()), done, seconds=seconds)

    def ended(watched: Watched) -> NoReturn:
        end(ended_early(script, watched, "had taken enough batches of a loader"))

    run_script(script, arguments or [], iterate, ended)


def _report(found: Ceiling, epochs: int) -> None:
    tell(ceiling=found, saves=found.saves, epochs=epochs, hours=found.hours(epochs))
    made = "gpupipe.DataLoader" if found.uses_gpupipe else "torch's DataLoader"
    console().print(pairs(found.rows(epochs), f"{made}, {found.at}"))
