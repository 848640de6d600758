"""Write the figures of README.md and docs/ from the files in results/, and the promises from the code.

    python benchmarks/figures.py           # rewrite README.md and the pages in docs/
    python benchmarks/figures.py --check   # exit 1 if one of them is not up to date, or a result is not of a commit
    python benchmarks/figures.py --check --strict   # also if code that a result depends on has changed since
    python benchmarks/figures.py --still recipes_cpu --because "only names changed"   # in place of a measurement

No number between the marks of these pages is typed by hand.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path

import _common  # noqa: F401  (makes a source checkout importable)
from _figure_tables import (
    RESULTS,
    SHOWN,
    WALL,
    clips,
    decoders,
    kept,
    live,
    load,
    loaders,
    machine,
    peers,
    ratio,
    recipes,
    small,
    table,
)
from _freshness import confirm, judge
from _gpu_figures import draw, gpu
from format_cases import CASES
from parity_measure import markdown

from gpupipe import datasets
from gpupipe.datasets.arrays import Arrays
from gpupipe.datasets.images import EncodedImages

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": ("promise", "headline"),
    "docs/figures.md": ("figures", "gpu"),
    "docs/promises.md": ("promises", "costs"),
    "docs/remote.md": ("stores",),
    "docs/sources.md": ("classes", "hugging-face", "formats"),
}
"""Texts for the pages, by the names of the marks around them."""


def classes() -> str:
    """Table of the dataset classes from their docstrings: the first sentence, packages, and what is not supported."""
    rows = []
    for name in sorted(datasets.__all__, key=str.lower):
        kind = getattr(datasets, name)
        if isinstance(kind, type) and issubclass(kind, (EncodedImages, Arrays)):
            text = re.sub(r":class:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", inspect.getdoc(kind) or "").replace("``", "`")
            parts = [" ".join(part.split()) for part in text.split("\n\n")]
            extras = sorted({f"`{extra}`" for extra in re.findall(r"gpupipe-loader\[\w+\]", text)})
            lacks = next((part.removeprefix("Not supported: ") for part in parts if part.startswith("Not supp")), "")
            first = re.split(r"(?<=[.])\s", parts[0])[0]
            rows.append([f"`{name}`", first.rstrip("."), ", ".join(extras), lacks.rstrip(".")])
    return table(["class", "reads", "needs", "not supported"], rows)


def formats() -> str:
    """Speed of each format compared with files, and of other libraries compared with gpupipe on the same shards."""
    parts = []
    if result := load("sources_cpu"):
        rows = []
        for name, seconds in result["seconds_to_a_dataset"].items():
            if name not in ("files", *CASES):  # the result is older than the removal of this format
                continue
            speed = (ratio(found["ratios"][name]) for found in result["engines"].values())
            memory = next(iter(result["engines"].values()))["candidates"][name]["uss_mb"]
            rows.append([name, *speed, f"{memory:.0f}", *(f"{seconds[k] * 1e3:.0f}" for k in ("built", "opened"))])
        s, f = result["settings"], result["files"]
        about = (
            f"The same {f['files']} photographs in every format, `imagenet.train(224)`, batches of {s['batch_size']}, "
            f"{s['workers']} workers, {s['rounds']} rounds ({machine(result)}): speed relative to single files, "
            "private memory, and the time to create the dataset without an index and with one."
        )
        head = ["format", "DALI", "reference engine", "MB", "ms without index", "ms with it"]
        parts.append(f"{about}\n\n{table(head, rows)}")
    if result := load("peers_cpu"):
        rows = []
        for peer, found in result["peers"].items():
            it, ours = (found["candidates"][name] for name in (peer, "gpupipe"))
            numbers = [f"{c['median_images_per_second']:.0f}" for c in (it, ours)]
            numbers += [f"{c['cpu_ms_per_image']:.2f}" for c in (it, ours)]
            numbers += [f"{c['uss_mb']:.0f}" for c in (it, ours)]
            rows.append([peer, found["format"], ratio(found["ratios"]["gpupipe"]), *numbers])
        s = result["settings"]
        about = (
            "Other libraries' loaders, used as their documentation shows, and gpupipe on the same shards "
            f"({s['rounds']} rounds, {machine(result)}):"
        )
        head = ["library", "format", "gpupipe / library"]
        head += [
            f"{what}, {whose}" for what in ("images/s", "CPU ms", "private MB") for whose in ("library", "gpupipe")
        ]
        parts.append(f"{about}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def hugging_face() -> str:
    """CPU time of a table that its own package reads, beside gpupipe's reader of the same files."""
    result = load("hugging_face_cpu")
    if result is None:
        return ""
    rows = []
    for case in result["cases"]:
        pairs = zip(case["live"]["rounds"], case["reader"]["rounds"], strict=True)
        ratios = [a / b for a, b in pairs]
        spread = {"median": case["live"]["of reader"], "min": min(ratios), "max": max(ratios)}
        times = (f"{1e3 * case[way]['cpu']:.2f}" for way in ("live", "reader"))
        rows.append([f"{case['workers']}", ratio(spread), *times])
    s, f = result["settings"], result["files"]
    about = (
        f"CPU time per photograph of {f['mean_kilobytes']:.0f} kB, batches of 64, {s['rounds']} rounds in turns "
        f"({machine(result)}; `benchmarks/hugging_face.py`):"
    )
    head = ["workers", "`DataLoader(dataset)` / `DataLoader(HuggingFace(dataset))`", "ms, first", "ms, second"]
    return f"{about}\n\n{table(head, rows)}"


def stores() -> str:
    """Speed relative to local files, the cost of requests, and what got lost."""
    result = load("remote")
    if result is None:
        return ""
    rows = []
    for name, found in result["conditions"].items():
        remote, local = found["candidates"]["tar-samples"], found["candidates"]["tar"]
        more = remote["cpu_ms_per_image"] - local["cpu_ms_per_image"]
        epoch = found["epoch"]
        counts = (f"{epoch[key]}" for key in ("lost", "twice", "bad"))
        rows.append([name, ratio(found["ratio_to_local"]), f"{more:.2f}", *counts])
    s = result["settings"]
    about = (
        f"Tar files on a store on the same machine, read by ranges, `imagenet.train(224)` on DALI, batches of "
        f"{s['batch_size']}, {s['workers']} workers, {s['rounds']} rounds ({machine(result)}). The store shares the "
        "cores; CPU time is the loader's alone. The last three columns count the samples of an epoch:"
    )
    head = ["answers", "speed relative to local files", "more CPU ms per image", "lost", "twice", "bad"]
    return f"{about}\n\n{table(head, rows)}"


def costs() -> str:
    """Cost of each op on a CPU, and its difference from the reference there."""
    result = load("op_costs")
    if result is None:
        return ""

    def cell(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    def levels(value: int | None) -> str:
        return "" if value is None else str(value) if value else "equal"

    rows = [
        [name, cell(row["pil"]["dali"]), cell(row["pil"]["host"])]
        + [levels(row["pil"].get(f"{who}_apart")) for who in ("dali", "host")]
        for name, row in result["rows"].items()
    ]
    s = result["settings"]
    about = f"{s['images']} photographs of {s['size']} x {s['size']} pixels, minimum of {s['rounds']} rounds"
    head = ["op, of PIL images", "DALI, ms", "host, ms", "DALI, levels", "host, levels"]
    return f"{about} ({machine(result)}).\n\n{table(head, rows)}"


def figures() -> str:
    names: tuple[str, ...] = ("compare_loaders_cpu", "compare_loaders_gpu")
    names += (
        "live_loaders_cpu",
        "image_peers_cpu",
        "recipes_cpu",
        "training_equal",
        "video_clips_cpu",
        "recorded_clips_cpu",
        "decoded_cache_cpu",
        "plan_cost",
        "index_scale",
        "memory_epochs_cpu",
        "faults",
        "soak",
        "interrupts",
        "fuzz_decoders",
    )
    results = {name: load(name) for name in names}
    parts = [loaders(r) for n in names[:2] if (r := results[n])]
    shown = {
        "live_loaders_cpu": live,
        "image_peers_cpu": peers,
        "recipes_cpu": recipes,
        "decoded_cache_cpu": kept,
        "video_clips_cpu": clips,
        "recorded_clips_cpu": clips,
        "fuzz_decoders": decoders,
    }
    parts += [show(r) for name, show in shown.items() if (r := results[name])]
    return "\n\n".join([*parts, small(results)])


def promise() -> str:
    """The first line of the promises."""
    text = "**Fast.** DALI decodes and augments, also without a GPU."
    loading, video = load("compare_loaders_cpu"), load("video_clips_cpu")
    if loading and video:
        images = loading["ratios"]["gpupipe, DALI engine"]["to_torchvision"]["median"]
        clips = video["random"]["gpupipe, DALI engine"]["to_pyav"]["median"]
        text += f" On {loading['machine']['cores']} CPU cores, it loads images **{images:.1f}** times and video clips"
        text += f" **{clips:.1f}** times as fast as torch's loader."
    return text


def headline() -> str:
    """The most important figures."""
    intro, rows, notes = [], [], []
    if loading := load("compare_loaders_cpu"):
        m, s = loading["machine"], loading["settings"]
        chart = "benchmarks/results/compare_loaders_cpu.png"
        intro.append(f"![images per second on a CPU, relative to torch's DataLoader]({chart})")
        notes.append(f"Images or clips per second, median and range of {s['rounds']} rounds on {m['cores']} CPU cores")
        notes[0] += f" ({m['cpu']})."
        ours = loading["ratios"]["gpupipe, DALI engine"]
        rows.append(["loading only", "torch's DataLoader with torchvision", ratio(ours["to_torchvision"])])
        rows.append(["loading only", "the same DALI graph written by hand", ratio(ours["to_by_hand"])])
    if own := load("live_loaders_cpu"):
        longest = max(own["cases"], key=lambda case: (case["epoch"], case["workers"]))
        name = f"a Dataset of your own, {longest['workers']} workers"
        rows.append([name, "torch's DataLoader, the same code", f"**{longest['live'][WALL]:.2f}**"])
    if whole := load("recipes_cpu"):
        found = {name: next(iter(recipe["ratios"].values())) for name, recipe in whole["recipes"].items()}
        least = min(found, key=lambda name: found[name]["median"])
        rows.append(["whole recipes: train", "torchvision", ratio(found["train"])])
        rows.append([f"whole recipes, least: {least}", "torchvision", ratio(found[least])])
        if loading and machine(whole) != machine(loading):
            notes.append(f"Recipes: {machine(whole)}.")
    if video := load("video_clips_cpu"):
        for work, words in (("random", "random clips"), ("sequential", "consecutive clips")):
            rows.append([words, "PyAV in torch's DataLoader", ratio(video[work]["gpupipe, DALI engine"]["to_pyav"])])
    if training := load("training_equal"):
        d, n = training["difference"], training["settings"]["seeds"]
        notes.append(
            f"A small network trained on DALI's batches is {100 * d['mean']:+.1f} points of accuracy apart from one "
            f"trained on the reference's ({n} seeds each, standard error {100 * d['standard_error']:.1f})."
        )
    return "\n\n".join([*intro, table(["gpupipe on DALI", "compared with", "speed ratio"], rows), " ".join(notes)])


def written(page: str, names: tuple[str, ...]) -> str:
    """Replace the text between the marks of a page."""
    make = {
        "promise": promise,
        "headline": headline,
        "figures": figures,
        "gpu": lambda: gpu(RESULTS),
        "promises": markdown,
        "classes": classes,
        "formats": formats,
        "hugging-face": hugging_face,
        "stores": stores,
        "costs": costs,
    }
    for name in names:
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        before, start, end, after = re.split(pattern, page, maxsplit=1, flags=re.DOTALL)
        page = f"{before}{start}{make[name]().strip()}\n{end}{after}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is not up to date")
    parser.add_argument("--strict", action="store_true", help="with --check: exit 1 also if a result is outdated")
    parser.add_argument("--still", nargs="+", metavar="NAME", default=[], help="results that changes do not concern")
    parser.add_argument("--because", metavar="REASON", help="with --still: why they do not")
    args = parser.parse_args()
    if bool(args.still) != bool(args.because):
        parser.error("--still and --because need each other")
    for name in args.still:
        confirm(RESULTS / f"{name}.json", args.because)
    if not args.check:
        draw(RESULTS)
    old = []
    for name, marks in PAGES.items():
        now = (ROOT / name).read_text()
        new = written(now, marks)
        if new != now:
            old.append(name)
            if not args.check:
                (ROOT / name).write_text(new)
    if args.check:
        check(old, strict=args.strict)


def check(old: list[str], *, strict: bool) -> None:
    """Exit with an error if pages or results are not what they should be."""
    wrong, outdated = judge(RESULTS, {*SHOWN, "transforms"})  # transforms_table.py writes a page as well
    errors = [f"{', '.join(old)}: not up to date; run python benchmarks/figures.py"] if old else []
    errors += [*wrong, *(outdated if strict else [])]
    if outdated and not strict:
        print("measure again:", *outdated, sep="\n  ")
    if errors:
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    main()
