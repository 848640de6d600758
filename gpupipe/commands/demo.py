"""``gpupipe demo``"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..bench.machine import facts
from ..demo.page import page
from ..demo.run import Demo, run as run_demo
from ..demo.train import NAMES
from ..errors import ConfigError
from ..parity.drawing import create_folder_of
from ..printable import printable
from .answer import tell
from .compare import print_comparison
from .console import console, spark
from .inputs import device_type


def run(folder: Path | None, *, epochs: int, out: Path, seed: int, device: str | None) -> int:
    where, _ = device_type(device)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: this is a file; name a folder")
    create_folder_of(out / "index.html")
    screen = console()
    with screen.status("starting") as status:

        def progress(text: str) -> None:
            status.update(text)
            if not screen.is_terminal:  # a log shows no spinner
                screen.print(text, style="dim")

        demo = run_demo(folder, epochs=epochs, seed=seed, device=where, progress=progress)
    machine, following = facts(), _following(folder)
    result = _result(demo, machine, following)
    tell(report=out / "index.html", **result)
    (out / "index.html").write_text(page(demo, machine, following), encoding="utf-8")
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    _print(demo)
    screen.print(f"\n[bold]report[/bold]  {out / 'index.html'}   ({demo.seconds:.0f} s)", soft_wrap=True)
    for command, what in following:
        screen.print(Text.assemble(("next    ", "bold"), (command, "cyan"), f"   {what}"), soft_wrap=True)
    if demo.comparison is None:
        screen.print(
            "DALI is not installed, so the reference ran alone: pip install nvidia-dali-cuda120", style="yellow"
        )
    return 0 if demo.ok else 1


def _following(folder: Path | None) -> list[tuple[str, str]]:
    """Return commands to run next, and what they do."""
    if folder is None:
        first = ("gpupipe demo PHOTOS", "the same with your own images, one folder per class")
    else:
        first = (
            f"gpupipe bench imagenet.train {shlex.quote(printable(str(folder)))}",
            "times all engines and loaders on these images",
        )
    return [first, ("gpupipe why train.py", "what to change in your training script")]


def _print(demo: Demo) -> None:
    screen = console()
    screen.print(Rule("gpupipe demo", align="left", style="dim"))
    screen.print(f"{demo.about}: {printable(demo.source)}\n")
    table = Table(title="the same network, seeds, order, crops and flips", title_justify="left", title_style="bold")
    table.add_column("engine")
    for i in range(len(demo.curves[0].epochs)):
        table.add_column(f"loss of\nepoch {i + 1}", justify="right")
    table.add_column("held out\nright", justify="right")
    table.add_column("loss of every step")
    for curve in demo.curves:
        losses = (f"{epoch.loss:.4f}" for epoch in curve.epochs)
        table.add_row(
            NAMES[curve.engine], *losses, f"{100 * curve.epochs[-1].accuracy:.1f} %", spark(_thinned(curve.losses))
        )
    screen.print(table)
    if demo.comparison is not None and not demo.comparison.ok:
        print_comparison(demo.comparison, "pixels of the training pipeline")
    checks = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    checks.add_column(no_wrap=True)
    checks.add_column(style="bold", no_wrap=True)
    checks.add_column(overflow="fold")
    for ok, name, text in demo.findings():
        checks.add_row(Text("✓", "green") if ok else Text("✗", "bold red"), name, Text(printable(text, lines=True)))
    screen.print(checks)


def _thinned(values: list[float], most: int = 40) -> list[float]:
    """Return at most ``most`` of the values, evenly spaced."""
    return values[:: -(-len(values) // most)]


def _result(demo: Demo, machine: dict[str, object], following: list[tuple[str, str]]) -> dict[str, object]:
    return {
        "machine": machine,
        "source": demo.source,
        "images": {"train": demo.train_images, "held_out": demo.held_out_images, "classes": len(demo.classes)},
        "pipeline": repr(demo.pipeline),
        "batch_size": demo.batch_size,
        "training": {curve.engine: [asdict(epoch) for epoch in curve.epochs] for curve in demo.curves},
        "losses_apart": demo.apart,
        "pixels": None if demo.comparison is None else demo.comparison.to_dict(),
        "bad_file": {**asdict(demo.bad_file), "replaced": demo.bad_file.replaced},
        "resume": asdict(demo.resumed),
        "speed": demo.speed.to_dict(),
        "next": [command for command, _ in following],
        "seconds": demo.seconds,
    }
