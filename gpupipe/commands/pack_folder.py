"""``gpupipe pack --sliceable``: pack a folder into a folder."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ..datasets.folder import IMG_EXTENSIONS
from ..datasets.index.progress import Progress
from ..errors import DatasetError
from ..pack.folder import FolderWriter, Written, find, pack_folder
from ..pack.journal import NAME, Journal
from ..pack.sliceable import Sliceable
from ..printable import quantity
from .answer import tell
from .console import console, pairs
from .pack_request import Request, placed, stopped

_SHOWN = 3


def run(request: Request) -> int:
    """Run the command; see :func:`gpupipe.commands.pack.run`."""
    if not os.path.isdir(os.path.expanduser(request.source)):
        raise DatasetError(f"{request.source}: no such folder")
    source, destination = placed(request.source, request.destination)
    form = Sliceable()
    with Progress("Looking for images") as progress:
        samples, others = find(source, IMG_EXTENSIONS, progress)
    if not samples:
        raise DatasetError(
            f"{source}: no images here or in folders below; supported extensions are {', '.join(IMG_EXTENSIONS)}"
        )
    writer, started = FolderWriter(destination), time.monotonic()
    about = {"source": os.path.realpath(source), "form": str(form)}
    with closing(Journal(destination, about, Written)) as journal, closing(writer):
        try:
            with Progress("Packing", len(samples)) as progress:
                written, now = pack_folder(
                    source, samples, form, writer, journal, processes=request.processes, progress=progress
                )
        except KeyboardInterrupt:
            return stopped()
    _report(console(), Path(destination), written, others, now, time.monotonic() - started)
    return 0


def _report(out: Console, folder: Path, written: list[Written], others: int, now: int, seconds: float) -> None:
    made = [w for w in written if not w.kind]
    bytes_before, bytes_after = sum(w.size for w in made), sum(w.written for w in made)
    grown = f", {100 * (bytes_after / bytes_before - 1):+.2f} %" if bytes_before else ""
    tell(
        destination=folder,
        rewritten=len(made),
        copied=[{"name": w.name, "kind": w.kind, "reason": w.reason} for w in written if w.kind],
        written=now,
        seconds=seconds,
    )
    rows = [
        ("rewritten", f"{quantity(len(made), 'image')}, {decimal(bytes_before)} to {decimal(bytes_after)}{grown}"),
        ("copied", f"{quantity(len(written) - len(made), 'image')} unchanged"),
        ("left out", f"{quantity(others, 'other file')}" if others else "nothing"),
        ("this time", f"{now:,} in {seconds:.1f} s" + (f", {now / seconds:,.0f} images/s" if now else "")),
        ("journal", str(folder / NAME)),
    ]
    out.print(pairs(rows, title=str(folder)))
    kept = defaultdict(list)
    for w in written:
        if w.kind:
            kept[w.kind].append(w)
    if kept:
        table = Table(title="copied unchanged", title_justify="left", title_style="bold yellow")
        for column in ("kind", "images", "such as", "reason"):
            table.add_column(column, overflow="fold", justify="right" if column == "images" else "left")
        for kind, some in sorted(kept.items(), key=lambda item: -len(item[1])):
            names = "\n".join(w.name.encode(errors="replace").decode() for w in some[:_SHOWN])
            table.add_row(kind, f"{len(some):,}", Text(names), Text(some[0].reason))
        out.print(table)
        out.print("They are still decoded as a whole; the journal lists all of them.", style="dim")
