"""``gpupipe compare``"""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from ..bench.machine import cores
from ..errors import ConfigError
from ..parity.compare import Comparison, compare
from ..parity.drawing import create_folder_of, sheet
from ..printable import printable, quantity
from .answer import tell
from .console import console
from .inputs import device_type, open_pipeline, open_samples

_STYLES = {"ok": "green", "not ok": "bold red", "not measured": "yellow"}


def run(
    pipeline: str,
    folder: Path,
    *,
    samples: int,
    frames: int,
    stride: int,
    device: str | None,
    out: Path | None,
    seed: int,
) -> int:
    where, _ = device_type(device)
    if out is not None:
        if out.suffix != ".png":
            raise ConfigError(f"compare writes a .png sheet, not {str(out)!r}")
        create_folder_of(out)
    composed = open_pipeline(pipeline)
    dataset = open_samples(folder, frames=frames, stride=stride)
    one = dataset.medium.picture
    screen = console()
    with screen.status("comparing") as status:
        found = compare(
            dataset,
            composed,
            samples=samples,
            device=where,
            seed=seed,
            num_workers=cores(),
            progress=lambda step: status.update(f"comparing after {step}"),
        )
    tell(**{"pipeline": pipeline, **found.to_dict()})
    print_comparison(found, f"{pipeline}: DALI against the reference on {where}", one)
    if out is not None:
        what = f"the {one}s that differ most" if found.worst else f"all {one}s are equal"
        sheet(found.worst, f"{pipeline}: {what}").save(out, "PNG")
        screen.print(f"drawn: {out}", soft_wrap=True)
    elif found.steps[-1].difference.max > 0:
        screen.print(f"--out worst.png draws the {one}s that differ most", style="dim")
    return 0 if found.ok else 1


def print_comparison(found: Comparison, title: str, one: str = "image") -> None:
    """Print the table, broken promises and omitted samples. ``one`` names what is compared."""
    screen = console()
    images = quantity(found.steps[-1].difference.images, one)
    table = Table(title=f"{title}, {images}", title_justify="left", title_style="bold")
    table.add_column("after", overflow="fold")
    for name in ("equal", "max", "border", "mean", "over 1"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("promised", overflow="fold")
    table.add_column("")
    for step in found.steps:
        d = step.difference
        table.add_row(
            step.name,
            f"{100 * d.equal:.3g} %",
            _levels(d.interior.max),
            _levels(d.border.max) if d.border.values else "",
            _levels(d.mean),
            f"{100 * d.over_1:.3f} %" if d.over_1 else "0 %",
            "" if step.promised is None else str(step.promised).replace("; ", "\n"),
            Text(step.verdict, style=_STYLES[step.verdict]),
        )
    screen.print(table)
    screen.print(
        f"Gray levels of 0 to 255. equal: {one}s with all values equal. max: largest difference; border: largest "
        "difference where a filter reaches over the edge of a reduced image. over 1: values off by more than 1 level.",
        style="dim",
    )
    if found.columns:
        unlike = len(found.unlike_targets)
        text = f"{', '.join(found.columns)}: {f'differ for {unlike} of {images}' if unlike else 'equal'}"
        screen.print(Text(text, style="red" if unlike else "green"), soft_wrap=True)
    for step in found.steps:
        for broken in step.broken:
            screen.print(Text(f"not ok after {step.name}: {broken}", style="red"), soft_wrap=True)
        if step.broken and step.worst:
            screen.print(Text(f"       most in {step.worst}", style="red"), soft_wrap=True)
    if found.left_out:
        screen.print(f"left out, because an engine could not read them: {quantity(len(found.left_out), 'sample')}")
        for sample in found.left_out[:5]:
            screen.print(Text(f"  {printable(sample.path)}: {sample.kind}: {printable(sample.reason)}"), soft_wrap=True)


def _levels(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.0e}" if value < 1e-3 else f"{value:.3g}"
