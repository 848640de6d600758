"""``gpupipe bench``"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.live import Live
from rich.table import Table

from ..bench.candidates import ENGINES, build
from ..bench.limits import LIMITS
from ..bench.machine import cores, cpu_model, facts, gpus
from ..bench.measure import Result, alternate
from ..bench.torchs_loader import TITLES, usual
from ..printable import quantity
from .answer import tell
from .console import console, spark
from .inputs import device_type, open_media, open_pipeline

_WHAT = {
    "dali": "DALI engine",
    "torch": "reference engine",
    "null": "plans only",
    **TITLES,
    "read": "limit: reading files",
    "decode": "limit: decoding",
    "augment": "limit: transforms of kept images",
    "pageable": "limit: copying from pageable memory",
    "pinned": "limit: pinning and copying",
    "ring": "limit: copying through the ring",
}


def run(
    pipeline: str,
    folder: Path,
    *,
    batch_size: int | None,
    frames: int,
    stride: int,
    num_workers: int | None,
    rounds: int,
    seconds: float,
    engines: str | None,
    limits: bool,
    device: str | None,
) -> int:
    where, kind = device_type(device)
    composed, dataset = open_pipeline(pipeline), open_media(folder, frames=frames, stride=stride)
    what, clips = f"{dataset.medium.noun}s", dataset.medium.moves
    batch_size = batch_size or (4 if clips else 64)
    workers = num_workers or cores()
    names = [*ENGINES, *([] if clips else [usual()])]
    if engines is not None:
        names = [name.strip() for name in engines.split(",") if name.strip()]
    names += LIMITS if limits else ()
    screen = console()
    machine = ", ".join(gpus()) if kind == "cuda" else f"{cpu_model()}, {cores()} cores"
    of = f"{batch_size} clips of {frames} frames {stride} apart" if clips else str(batch_size)
    title = f"{pipeline}, batches of {of}, {quantity(workers, 'worker')}, {where}"
    required = engines is not None
    with build(
        names, dataset, composed, batch_size=batch_size, num_workers=workers, device=where, required=required
    ) as candidates:
        for name, why in candidates.left_out.items():
            screen.print(f"left out: {_WHAT[name]}: {why}", style="yellow", soft_wrap=True)
        result = Result(candidates.baseline, {name: [] for name in candidates.start})

        def progress(name: str, round_: int, rate: float) -> None:
            # Round 0 is the warm-up, which does not count.
            if round_:
                result.rates[name].append(rate)
            last = f"{f'round {round_} of {rounds}' if round_ else 'warming up'}: {_WHAT[name]} {rate:,.0f} {what}/s"
            live.update(_table(result, title, last, what))

        first = _table(result, title, "starting", what)
        with Live(first, console=screen, transient=True, refresh_per_second=4) as live:
            alternate(
                candidates.start,
                rounds=rounds,
                seconds=seconds,
                warm_up=2 * workers + 2,
                baseline=candidates.baseline,
                synchronize=_synchronize if kind == "cuda" else lambda: None,
                progress=progress,
            )
    screen.print(_table(result, title, "", what))
    screen.print(
        f"{machine}. {what}/s: median of the rounds, files from the page cache.\n"
        "ratio: within each round, median and range.",
        style="dim",
    )
    settings: dict[str, Any] = {"pipeline": pipeline, "batch_size": batch_size}
    if clips:
        settings |= {"frames": frames, "stride": stride}
    summary = dataset.index_summary()
    tell(
        question="How fast are the engines side by side?",
        machine=facts(),
        settings=settings | {"num_workers": workers, "rounds": rounds, "seconds": seconds, "device": where},
        files={
            "count": summary.count,
            "mean_kilobytes": round(summary.total_bytes / max(summary.count, 1) / 1e3, 1),
            "mean_megapixels": round(float(np.prod(dataset.sizes, axis=1, dtype=np.float64).mean()) / 1e6, 3),
        },
        left_out=candidates.left_out,
        **result.to_dict(),
    )
    return 0


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()


def _table(result: Result, title: str, caption: str, what: str) -> Table:
    """Return the table of loaders and limits."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),  # a terminal of 80 columns shows every row in one line
    )
    table.add_column("loader", no_wrap=True)
    for name in (f"{what}/s", "spread", "rounds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"ratio to {_WHAT[result.baseline]}", justify="right", min_width=len("10.00 (10.00 to 10.00)"))
    for name, rates in result.rates.items():
        if not rates:
            table.add_row(_WHAT[name])
            continue
        ratio = ""
        if name != "null" and result.ratios(name):
            median, low, high = result.ratio(name)
            ratio = "1" if name == result.baseline else f"{median:.2f} ({low:.2f} to {high:.2f})"
        table.add_row(
            _WHAT[name], f"{result.median(name):,.0f}", f"{100 * result.spread(name):.0f} %", spark(rates), ratio
        )
    return table
