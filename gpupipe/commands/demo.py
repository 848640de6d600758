"""``gpupipe demo``"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from ..bench.machine import facts
from ..demo.page import NAMES, page
from ..demo.train import Demo, run as train
from ..errors import ConfigError
from .answer import tell
from .compare import print_comparison
from .console import console, spark
from .inputs import device_type


def run(folder: Path | None, *, epochs: int, out: Path, seed: int, device: str | None) -> int:
    where, _ = device_type(device)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: this is a file; name a folder")
    screen = console()
    with screen.status("starting") as status:

        def progress(text: str) -> None:
            status.update(text)
            if not screen.is_terminal:  # a log shows no spinner
                screen.print(text, style="dim")

        demo = train(folder, epochs=epochs, seed=seed, device=where, progress=progress)
    _print(demo)
    machine = facts()
    tell(report=out / "index.html", **_result(demo, machine))
    out.mkdir(parents=True, exist_ok=True)
    (out / "index.html").write_text(page(demo, machine), encoding="utf-8")
    (out / "result.json").write_text(json.dumps(_result(demo, machine), indent=1) + "\n", encoding="utf-8")
    screen.print(f"\n[bold]report:[/bold] {out / 'index.html'}   ({demo.seconds:.0f} s)", soft_wrap=True)
    if demo.comparison is None:
        screen.print(
            "DALI is not installed, so the reference ran alone: pip install nvidia-dali-cuda120", style="yellow"
        )
        return 0
    return 0 if demo.comparison.ok else 1


def _print(demo: Demo) -> None:
    screen = console()
    screen.print(
        f"[bold]{demo.source}[/bold]: {demo.train_images:,} images of {demo.classes} classes to train, "
        f"{demo.val_images:,} held out, batches of {demo.batch_size}"
    )
    table = Table(title="the same network, seeds, order, crops and flips", title_justify="left", title_style="bold")
    table.add_column("epoch", justify="right")
    for what in ("loss", "held out right", "images/s"):
        for curve in demo.curves:
            table.add_column(f"{what}\n{NAMES[curve.engine]}", justify="right")
    for i in range(len(demo.curves[0].epochs)):
        e = [curve.epochs[i] for curve in demo.curves]
        table.add_row(
            str(i + 1),
            *(f"{x.loss:.4f}" for x in e),
            *(f"{100 * x.accuracy:.1f} %" for x in e),
            *(f"{x.images_per_second:,.0f}" for x in e),
        )
    screen.print(table)
    for curve in demo.curves:
        screen.print(f"loss, {NAMES[curve.engine]:>9}  {spark(curve.losses)}")
    if demo.comparison is not None:
        a, b = (curve.losses for curve in demo.curves)
        apart = max(abs(x - y) for x, y in zip(a, b, strict=True))
        screen.print(f"the two losses differ by at most {apart:.1g}\n")
        print_comparison(demo.comparison, "pixels of the training pipeline")


def _result(demo: Demo, machine: dict[str, object]) -> dict[str, object]:
    return {
        "machine": machine,
        "images": {"train": demo.train_images, "held_out": demo.val_images, "classes": demo.classes},
        "pipeline": repr(demo.pipeline),
        "batch_size": demo.batch_size,
        "training": {curve.engine: [asdict(epoch) for epoch in curve.epochs] for curve in demo.curves},
        "pixels": None if demo.comparison is None else demo.comparison.to_dict(),
        "seconds": demo.seconds,
    }
