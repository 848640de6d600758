"""Console output that all commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import BadSample
from ..printable import printable, quantity

_SHOWN = 20
"""Number of bad samples to list."""
_BARS = "▁▂▃▄▅▆▇█"


def console(*, stderr: bool = False) -> Console:
    """Return a console for the terminal. Without one it is 110 columns wide, because a pipe has no width."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 110
    return Console(stderr=stderr, width=width, highlight=False)


@contextmanager
def libraries_silenced() -> Iterator[None]:
    """Discard what C libraries write to standard error; Python's own output stays visible.

    libtiff prints hundreds of lines about a file whose fault we report in one.
    """
    theirs = sys.stderr
    try:
        number = theirs.fileno()
        kept = os.dup(number)
    except (OSError, ValueError, AttributeError):  # C libraries do not write to a stream without a file
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with os.fdopen(kept, "w", buffering=1, closefd=False) as stream:
        theirs.flush()
        os.dup2(nowhere, number)
        sys.stderr = stream
        try:
            yield
        finally:
            stream.flush()
            os.dup2(kept, number)
            sys.stderr = theirs
            os.close(nowhere)
            os.close(kept)


def print_error(error: Exception) -> None:
    console(stderr=True).print(Text(f"error: {printable(str(error), lines=True)}", style="red"), soft_wrap=True)


def print_note(text: str) -> None:
    """Print a note to standard error, where it disturbs no program that reads the answer."""
    console(stderr=True).print(Text(f"note: {printable(text)}", style="yellow"), soft_wrap=True)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what runs in the last line of the terminal. A pipe or a file gets nothing."""
    stream = sys.stderr
    on_terminal = stream.isatty()

    def say(text: str) -> None:
        if on_terminal:
            stream.write(f"\r\x1b[Kgpupipe: {printable(text)}")
            stream.flush()

    yield say
    if on_terminal:
        stream.write("\r\x1b[K")


def pairs(rows: Sequence[tuple[str, str]], title: str | None = None) -> Table:
    """Return a two-column table of names and values."""
    shown = None if title is None else printable(title, lines=True)
    table = Table(title=shown, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(printable(value, lines=True)))
    return table


def bad_samples(out: Console, bad: Sequence[BadSample], prefix: bytes, what: str) -> None:
    """Print the first bad samples, with paths below ``prefix``; nothing if there are none.

    ``what`` follows their number in the title.
    """
    if not bad:
        return
    table = Table(title=quantity(len(bad), what), title_justify="left", title_style="bold yellow")
    for column in ("number", "kind", "file", "reason"):
        table.add_column(column, overflow="fold", justify="right" if column == "number" else "left")
    for sample in bad[:_SHOWN]:
        shown = sample.path.removeprefix(os.fsdecode(prefix))
        table.add_row(str(sample.index), sample.kind, Text(printable(shown)), Text(printable(sample.reason)))
    out.print(table)
    if len(bad) > _SHOWN:
        out.print(f"... and {len(bad) - _SHOWN:,} more")


def spark(values: Sequence[float]) -> str:
    """Return a line of bars, scaled from the smallest to the largest of ``values``."""
    if not values:
        return ""
    low, high = min(values), max(values)
    return "".join(_BARS[int((v - low) / (high - low) * 7.999) if high > low else 0] for v in values)
