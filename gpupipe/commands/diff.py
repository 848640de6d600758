"""``gpupipe diff``: compare what two runs read."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from ..lock.differences import Difference, differences
from ..lock.record import Lock
from ..printable import printable
from .answer import tell
from .console import console

_TITLES = {
    "version": "versions",
    "setting": "settings",
    "dataset": "dataset",
    "order": "order: other samples",
    "sample": "samples: other sizes or targets",
    "draws": "draws: other numbers",
    "pixels": "pixels: same numbers, other values",
}


def run(before: Path, after: Path, *, most: int) -> int:
    """Print the differences. Return 1 if the runs read something else, 0 if only versions differ or nothing does."""
    a, b = Lock.load(before), Lock.load(after)
    found = differences(a, b)
    tell(differences=found, samples=a.count)
    screen = console()
    for kind, title in _TITLES.items():
        mine = [each for each in found if each.kind == kind]
        if mine:
            screen.print(_table(mine[:most], f"{title} ({len(mine):,})" if len(mine) > most else title))
            if len(mine) > most:
                screen.print(f"... and {len(mine) - most:,} more")
    if all(each.kind == "version" for each in found):
        samples = sum(map(len, a.steps.values()))
        screen.print(f"both runs read the same: {a.count:,} samples, {samples} of them compared pixel by pixel")
        return 0
    return 1


def _table(found: list[Difference], title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for name in ("", "before", "after"):
        table.add_column(name, overflow="fold")
    for each in found:
        table.add_row(*(Text(printable(text, lines=True)) for text in (each.where, each.before, each.after)))
    return table
