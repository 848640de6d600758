"""How fast is gpupipe beside DALI written by hand, and beside torch's DataLoader with torchvision?

Prediction: gpupipe's DALI engine reaches at least 0.97 of the same graph written by hand, and at least 1.5 times
torch's DataLoader with torchvision on PIL; its reference engine is as fast as the latter.

Measured: RandomResizedCrop(224), flip and normalize to float32 NCHW; the candidates take turns in one run, each in a
process of its own, in steady state (see ``_candidates.py``), files in the page cache. Judge the ratios, which are made
within a round, and not the images per second, which move with the machine.

    python benchmarks/compare_loaders.py [FOLDER]     # measures; writes results/compare_loaders_<cpu|gpu>.json
    python benchmarks/compare_loaders.py --draw       # draws the chart from the JSON
"""

from __future__ import annotations

import argparse

from _candidates import measured
from _common import RESULTS, Table, load, photographs, result_name
from _loaders import Job
from _round_arguments import parsed, parser

MEASURES = ("benchmarks/_by_hand.py", "benchmarks/_loaders.py", "gpupipe/engines", "gpupipe/kernels", "gpupipe/reading")
BASE, HAND, OURS = "torch DataLoader + torchvision", "DALI by hand", "gpupipe, DALI engine"

JOBS = {
    "cpu": [
        Job(OURS, "gpupipe-dali"),
        Job(HAND, "dali-by-hand"),
        Job("DALIGenericIterator", "dali-iterator"),
        Job("gpupipe, reference engine", "gpupipe-torch"),
        Job(BASE, "torchvision"),
    ],
    "cuda": [
        Job(OURS, "gpupipe-dali"),
        Job(HAND, "dali-by-hand"),
        Job("DALIGenericIterator", "dali-iterator"),
        Job("gpupipe, reference engine, ring", "gpupipe-torch", staging="ring"),
        Job("gpupipe, reference engine, pin_memory", "gpupipe-torch", staging="pin_memory"),
        Job("gpupipe, reference engine, pageable", "gpupipe-torch", staging="pageable"),
        Job(BASE, "torchvision"),
    ],
}


def measure(args: argparse.Namespace, paths: list[str]) -> None:
    others = {"to_torchvision": BASE, "to_by_hand": HAND}
    result = measured(__doc__, "compare_loaders", JOBS[args.device], args, paths, others)
    table = Table("images/s", *(f"round {i + 1}" for i in range(args.rounds)))
    for name, row in result["candidates"].items():
        table.row(name, *row["images_per_second"])


def draw(args: argparse.Namespace) -> None:
    """Bars of the ratio to torch's DataLoader: the middle round, with the whole range as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    measured = result_name("compare_loaders", args)
    result = load(measured)
    names = sorted(result["ratios"], key=lambda name: result["ratios"][name]["to_torchvision"]["median"])
    rows = [result["ratios"][name]["to_torchvision"] for name in names]
    middle = [row["median"] for row in rows]
    reach = [[m - row["min"] for m, row in zip(middle, rows, strict=True)]]
    reach.append([row["max"] - m for m, row in zip(middle, rows, strict=True)])
    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.45 * len(names)), layout="constrained")
    colors = ["#76b900" if name.startswith("gpupipe") else "#9aa0a6" for name in names]
    axes.barh(names, middle, xerr=reach, color=colors, ecolor="#333333", capsize=3)
    for i, (name, m) in enumerate(zip(names, middle, strict=True)):
        speed = result["candidates"][name]["median_images_per_second"]
        axes.text(0.02, i, f"{m:.2f}  ({speed:,.0f} images/s)", va="center", fontsize=9)
    settings, where = result["settings"], "GPU" if args.device == "cuda" else "CPU"
    axes.axvline(1, color="#333333", linewidth=0.8)
    axes.set_xlabel(
        f"speed relative to {BASE}; line: slowest to fastest of {settings['rounds']} rounds\n"
        f"{where}, batch {settings['batch_size']}, {settings['workers']} threads or workers",
        fontsize=8,
    )
    path = RESULTS / f"{measured}.png"
    figure.savefig(path, dpi=110)
    print(path)


def main() -> None:
    given = parser(__doc__, rounds=9, seconds=3.0, epoch=50_000)
    given.add_argument("--draw", action="store_true", help="only draw what was measured before")
    args = parsed(given)
    if args.draw:
        draw(args)
        return
    with photographs(args.folder, count=256) as paths:
        measure(args, paths)


if __name__ == "__main__":
    main()
