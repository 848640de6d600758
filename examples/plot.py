"""Draw the metrics of runs: a panel for each column of ``metrics.csv``, a line for each run.

python examples/plot.py runs/imagenet                              # writes runs/imagenet/metrics.png
python examples/plot.py runs/imagenet runs/other --out both.png
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from common import Help


def columns_of(run: Path) -> dict[str, list[float]]:
    """Return the numbers of each column of a run, by epoch."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else {})}


def draw(runs: list[Path], out: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("matplotlib is not installed; pip install matplotlib") from None
    found = {run: columns_of(run) for run in runs}
    names = list(dict.fromkeys(name for columns in found.values() for name in columns if name not in ("epoch", "step")))
    figure = Figure(figsize=(4 * min(3, len(names)), 3 * -(-len(names) // 3)), layout="constrained")
    axes = [*figure.subplots(-(-len(names) // 3), min(3, len(names)), squeeze=False).flat]
    for ax in axes:
        ax.set_axis_off()
    for name, ax in zip(names, axes, strict=False):
        ax.set_axis_on()
        ax.set(title=name.replace("_", " "), xlabel="epoch")
        ax.grid(alpha=0.3)
        for run, columns in found.items():
            ax.plot(columns["epoch"], columns.get(name, [float("nan")] * len(columns["epoch"])), ".-", label=run.name)
    if len(runs) > 1:
        axes[0].legend()
    figure.savefig(out, dpi=100)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    p.add_argument("runs", nargs="+", type=Path, help="run folders")
    p.add_argument("--out", type=Path, help="PNG, SVG or PDF; metrics.png in the first folder if it is not given")
    args = p.parse_args()
    for run in args.runs:
        if not (run / "metrics.csv").exists():
            raise SystemExit(f"there is no {run / 'metrics.csv'}")
    draw(args.runs, args.out or args.runs[0] / "metrics.png")


if __name__ == "__main__":
    main()
