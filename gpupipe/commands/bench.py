"""``gpupipe bench``"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.live import Live
from rich.table import Table

from ..bench.candidates import OTHERS, Candidates, build, usual
from ..bench.limits import LIMITS
from ..bench.machine import cores, cpu_model, facts, gpus
from ..bench.measure import Batches, Result, alternate
from ..bench.peers import PILLOW, TORCHVISION
from ..bench.with_model import ALONE, Training, limited_by, name_with, open_model
from ..datasets.images import EncodedImages
from ..datasets.video.files import VideoFiles
from ..errors import ConfigError
from .answer import tell
from .console import console, spark
from .inputs import device_type, open_media, open_pipeline

_WHAT = {
    "dali": "DALI engine",
    "torch": "reference engine",
    "null": "plans only",
    **{name: peer.title for name, peer in OTHERS.items()},
    "read": "limit: reading files",
    "decode": "limit: decoding",
    "augment": "limit: transforms of kept images",
    "pageable": "limit: copying from pageable memory",
    "pinned": "limit: pinning and copying",
    "ring": "limit: copying through the ring",
    ALONE: "model alone",
}
_BY = {
    "model": "the model",
    "loader": "the loader",
    "both": "both, which share the processor",
    "disturbed": "disturbed: set OMP_NUM_THREADS=1 or use more --rounds",
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
    model: str | None = None,
) -> int:
    where, kind = device_type(device)
    composed, dataset = open_pipeline(pipeline), open_media(folder, frames=frames, stride=stride)
    what, clips = f"{dataset.medium.noun}s", dataset.medium.moves
    batch_size = batch_size or (4 if clips else 64)
    workers = num_workers or cores()
    if engines is not None:
        names = [name.strip() for name in engines.split(",") if name.strip()]
    else:
        names = usual(clips)
    names += LIMITS if limits else ()
    training = None if model is None else Training(open_model(model), where)
    screen = console()
    machine = ", ".join(gpus()) if kind == "cuda" else f"{cpu_model()}, {cores()} cores"
    of = f"{batch_size} clips of {frames} frames {stride} apart" if clips else str(batch_size)
    title = f"{pipeline}, batches of {of}, {workers} workers, {where}"
    with build(
        names,
        dataset,
        composed,
        batch_size=batch_size,
        num_workers=workers,
        device=where,
        required=engines is not None,
    ) as candidates:
        _say_left_out(candidates, asked=engines is not None)
        baseline = candidates.baseline
        parts: list[tuple[dict[str, Batches], str]] = [(dict(candidates.start), baseline)]
        if training is not None:  # afterwards, because loaders of torch keep their workers for one epoch at a time
            trained = [name for name in candidates.start if name != "null" and name not in LIMITS]
            if not trained:
                raise ConfigError("--model needs a loader of samples, not plans only")
            with_model = {name_with(name): training.with_loader(candidates.start[name]) for name in trained}
            source = baseline if baseline in trained else trained[0]
            parts.append(({ALONE: training.alone(candidates.start[source]), **with_model}, ALONE))
        result = Result(baseline, {name: [] for start, _ in parts for name in start})
        last = ""

        def progress(name: str, round_: int, rate: float) -> None:
            nonlocal last
            # Round 0 is the warm-up, which does not count.
            if round_:
                result.rates[name].append(rate)
            last = f"{f'round {round_} of {rounds}' if round_ else 'warming up'}: {_title(name)} {rate:,.0f} {what}/s"
            live.update(_table(result, title, last, what, candidates.pixels))

        synchronize = _synchronize if kind == "cuda" else lambda: None
        first = _table(result, title, "starting", what, candidates.pixels)
        with Live(first, console=screen, transient=True, refresh_per_second=4) as live:
            for start, against in parts:
                alternate(
                    start,
                    rounds=rounds,
                    seconds=seconds,
                    warm_up=2 * workers + 2,
                    baseline=against,
                    synchronize=synchronize,
                    progress=progress,
                )
    screen.print(_table(result, title, "", what, candidates.pixels))
    if training is not None:
        screen.print(_training_table(result, f"training {model}", what))
    differ = [f"pixels of {_WHAT[name]}: {text}" for name, text in candidates.pixels.items() if text]
    notes = [
        f"{machine}. {what}/s: median of the rounds, files from the page cache.",
        "ratio: within each round, median and range.",
        *differ,
        *(["The others equal torchvision's on Pillow; for gpupipe see gpupipe compare."] if differ else ()),
    ]
    screen.print("\n".join(notes), style="dim")
    settings = {
        "pipeline": pipeline,
        "batch_size": batch_size,
        **({"frames": frames, "stride": stride} if clips else {}),
        "num_workers": workers,
        "rounds": rounds,
        "seconds": seconds,
        "device": where,
        **({} if model is None else {"model": model}),
    }
    tell(
        question="How fast are the engines side by side?",
        machine=facts(),
        settings=settings,
        files=_about(dataset),
        left_out=candidates.left_out,
        pixels=candidates.pixels,
        **({} if training is None else {"training": _training(result)}),
        **result.to_dict(),
    )
    return 0


def _about(dataset: EncodedImages | VideoFiles) -> dict[str, float]:
    """Return facts about the files of a dataset."""
    files = dataset.index_summary()
    return {
        "count": files.count,
        "mean_kilobytes": round(files.total_bytes / max(files.count, 1) / 1e3, 1),
        "mean_megapixels": round(float(np.prod(dataset.sizes, axis=1, dtype=np.float64).mean()) / 1e6, 3),
    }


def _synchronize() -> None:
    import torch

    torch.cuda.synchronize()


def _say_left_out(candidates: Candidates, *, asked: bool) -> None:
    """Print why candidates are missing. Loaders that are not installed share one line, and Pillow alone is measured in
    the place of torchvision."""
    screen = console()
    if TORCHVISION in candidates.start and not asked:
        candidates.start.pop(PILLOW, None)
    for name, why in candidates.left_out.items():
        if name not in candidates.missing or name == TORCHVISION:
            screen.print(f"left out: {_title(name)}: {why}", style="yellow", soft_wrap=True)
    missing = [_title(name) for name in candidates.missing if name != TORCHVISION]
    if missing:
        screen.print(f"not installed: {', '.join(missing)}", style="dim", soft_wrap=True)


def _title(name: str) -> str:
    loader = name.removesuffix(name_with(""))
    return _WHAT[name] if loader == name else f"{_WHAT[loader]}, with the model"


def _table(result: Result, title: str, caption: str, what: str, pixels: dict[str, str]) -> Table:
    """Return the table of loaders and limits."""
    table = Table(title=title, title_justify="left", title_style="bold", caption=caption, caption_justify="left")
    table.add_column("loader", no_wrap=True)
    for name in (f"{what}/s", "spread", "rounds", f"ratio to {_WHAT[result.baseline]}"):
        table.add_column(name, justify="right")
    differ = any(pixels.get(name) for name in result.rates)
    if differ:
        table.add_column("pixels")
    for name, rates in result.rates.items():
        if name not in _WHAT or name == ALONE:
            continue
        note = ["differ" if pixels.get(name) else ""] if differ else []
        if not rates:
            table.add_row(_WHAT[name], *[""] * 4, *note)
            continue
        ratio = ""
        if name != "null" and result.ratios(name):
            median, low, high = result.ratio(name)
            ratio = "1" if name == result.baseline else f"{median:.2f}  ({low:.2f} to {high:.2f})"
        table.add_row(
            _WHAT[name], f"{result.median(name):,.0f}", f"{100 * result.spread(name):.0f} %", spark(rates), ratio, *note
        )
    return table


def _training(result: Result) -> dict[str, dict[str, object]]:
    """Return speed with the model, and what limits it, by loader."""
    found: dict[str, dict[str, object]] = {}
    for name in result.rates:
        if name_with(name) in result.rates:
            by, share = limited_by(result, name)
            found[name] = {"median": result.median(name_with(name)), "of_model": share, "limited_by": by}
    return found


def _training_table(result: Result, title: str, what: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("loader")
    for name in (f"{what}/s", "of the model alone"):
        table.add_column(name, justify="right")
    table.add_column("limited by")
    table.add_row("none: a batch from memory", f"{result.median(ALONE):,.0f}", "1", "the model")
    for name in _training(result):
        by, share = limited_by(result, name)
        table.add_row(_WHAT[name], f"{result.median(name_with(name)):,.0f}", f"{share:.2f}", _BY[by])
    return table
