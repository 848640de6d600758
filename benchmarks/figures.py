"""Write the figures of README.md and docs/ from the files in results/, and the promises from the code.

    python benchmarks/figures.py           # rewrite README.md and the pages in docs/
    python benchmarks/figures.py --check   # exit 1 if one of them is not up to date

No number on these pages is typed by hand.
"""

from __future__ import annotations

import argparse
import inspect
import re
import statistics
import sys
from pathlib import Path

import _common  # noqa: F401  (makes a source checkout importable)
from _figure_tables import (
    RESULTS,
    augmented,
    clips,
    decoders,
    kept,
    load,
    loaders,
    machine,
    peers,
    ratio,
    recipes,
    scaled,
    small,
    strictness,
    table,
)
from _gpu_figures import draw, gpu
from parity_measure import markdown

from gpupipe import datasets
from gpupipe.datasets.arrays import Arrays
from gpupipe.datasets.images import EncodedImages

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": ("headline",),
    "docs/claims.md": ("claims workers", "claims dali", "claims pinning"),
    "docs/figures.md": ("figures", "gpu"),
    "docs/machines.md": ("faults", "elastic", "frameworks"),
    "docs/promises.md": ("promises", "costs"),
    "docs/remote.md": ("stores", "blocks"),
    "docs/sources.md": ("classes", "pages", "formats", "variants"),
    "docs/tutorial.md": ("tutorial",),
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


def pages() -> str:
    """Speed of Parquet with compressed pages, by order."""
    if not (result := load("parquet_pages")):
        return ""
    rows = []
    for row in result["rows"]:
        speed = ratio({"median": row["ratio"], "min": row["least"], "max": row["most"]})
        rows.append([row["case"], speed, f"{row['images_per_second']:.0f}", f"{row['pages_per_image']:.3f}"])
    s, p = result["settings"], result["pages"]
    about = (
        f"{s['images']:,} photographs in pages of {p['images']:,.0f} ({p['largest'] / 1e6:.0f} MB), "
        f"`imagenet.train(224)` on DALI's CPU backend, batches of {s['batch']}, {s['workers']} workers, {s['rounds']} "
        f"rounds ({machine(result)}), relative to a folder of the same files:"
    )
    head = ["order", "speed relative to the folder", "images/s", "unpacked pages per image"]
    return f"{about}\n\n{table(head, rows)}"


def variants() -> str:
    """What is read of the files that other packages write."""
    if not (result := load("format_variants")):
        return ""
    return f"Of {len(result['variants'])} variants, {result['read']} pass all checks."


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


def faults() -> str:
    """What became of samples when Ray Train lost and got machines."""
    result = load("ray_faults")
    if result is None:
        return ""
    rows = []
    for name, found in result["faults"].items():
        workers = " to ".join(map(str, found["ranks"]))
        equal = f"{found['equal_batches']} of {found['batches']}"
        seconds = [f"{max(found[key]):.1f}" for key in ("seconds_to_next_batch", "loader_seconds_after")]
        rows.append([name, workers, str(found["lost"]), str(found["twice"]), equal, *seconds])
    head = ["fault", "workers", "lost", "twice", "equal batches", "seconds to the next batch", "of these, the loader"]
    about = f"Ray {result['ray']} ({machine(result)}), `python benchmarks/ray_faults.py`:"
    return f"{about}\n\n{table(head, rows)}"


def elastic() -> str:
    """What became of samples when torchrun and torchft lost and got processes."""
    rows = []
    for name, file, key in (("torchrun", "torchrun_elastic", "elastic"), ("torchft", "torchft_members", "members")):
        if (result := load(file)) is None:
            continue
        found = result[key]
        waits = found.get("seconds_to_next_batch") or [found["longest_wait"]]
        version = result.get("torch") or result["torchft"]
        rows.append([
            f"{name} {version}, `{file}.py`", " to ".join(map(str, found["ranks"])), str(found["lost"]),
            str(found["twice"]), f"{found['equal_batches']} of {found['batches']}", f"{max(waits):.1f}",
        ])  # fmt: skip
    if not rows:
        return ""
    head = ["launcher, in `benchmarks/`", "processes", "lost", "twice", "equal batches", "longest wait in seconds"]
    return f"Measured on one machine whose cores other work shared:\n\n{table(head, rows)}"


def frameworks() -> str:
    """Which frameworks train, share, resume and warn."""
    result = load("frameworks")
    if result is None:
        return ""
    rows = []
    for name, found in result["frameworks"].items():
        marks = []
        for part in (found["whole"], found["parts"]):
            exact = (
                "error" not in part and not part["lost"] + part["twice"] and part["equal_batches"] == part["batches"]
            )
            marks.append("exact" if exact else "**no**")
        seen = found["careless"] if isinstance(found["careless"], list) else []
        otherwise = "; ".join("an error" if said.startswith("error") else said for said in seen) or "none"
        rows.append([f"{name} {found['version']}", *marks, otherwise, found["shard"], found["state"]])
    head = ["framework", "trains, shares", "resumes", "warning otherwise", "for the shard", "for the state"]
    return table(head, rows)


def blocks() -> str:
    """Mixing of a shuffle by blocks, and the requests that it saves."""
    result = load("block_shuffle")
    if result is None:
        return ""
    rows = []
    for row in result["mixing"]:
        held = row["held_bytes"]
        name = f"{row['blocks']} of 8 MiB, {held / 2**20:,.0f} MiB held" if held else "`shuffle=True`"
        rows.append([name, f"{row['displacement']:.2f}", *(f"{n:.0f}" for n in row["classes"].values())])
    s, kinds = result["settings"], list(result["mixing"][0]["classes"])
    head = ["blocks mixed at a time", "mean displacement", *(f"classes per batch, {kind}" for kind in kinds)]
    about = (
        f"Batches of {s['batch']} out of {s['samples']:,} samples of {s['classes']:,} classes, "
        f"{s['mean_bytes'] / 1e3:.0f} kB each; displacement as a share of the dataset:"
    )
    read = [
        [r["order"], r["fetch"], f"{r['requests_per_sample']:.2f}", f"{r['bytes_to_all']:.2f}"]
        for r in result["reading"]
    ]
    cache = f"{100 * result['reading'][0]['cache_to_all']:.0f} %"
    reading = f"One epoch from a store, with a cache for {cache} of the data:"
    columns = ["order", "`fetch`", "requests per sample", "bytes loaded / all bytes"]
    return f"{about}\n\n{table(head, rows)}\n\n{reading}\n\n{table(columns, read)}"


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
        "image_peers_cpu",
        "recipes_cpu",
        "training_equal",
        "video_index",
        "video_clips_cpu",
        "recorded_clips_cpu",
        "decoded_cache_cpu",
        "scaled_cpu",
        "plan_cost",
        "orders_cpu",
        "buckets_cpu",
        "coco_index",
        "index_scale",
        "memory_epochs_cpu",
        "faults",
        "soak",
        "interrupts",
        "augment_cpu",
        "fuzz_decoders",
        "strict",
    )
    results = {name: load(name) for name in names}
    parts = [loaders(r) for n in names[:2] if (r := results[n])]
    shown = {
        "image_peers_cpu": peers,
        "recipes_cpu": recipes,
        "decoded_cache_cpu": kept,
        "scaled_cpu": scaled,
        "video_clips_cpu": clips,
        "recorded_clips_cpu": clips,
        "augment_cpu": augmented,
        "fuzz_decoders": decoders,
    }
    parts += [show(r) for name, show in shown.items() if (r := results[name])]
    lines = [small(results), *([strictness(r)] if (r := results["strict"]) else [])]
    return "\n\n".join([*parts, "\n".join(lines)])


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


def tutorial() -> str:
    """What each change of the tutorial gains."""
    if not (result := load("tutorial_cpu")):
        return ""
    files, settings = result["files"], result["settings"]
    rows = [
        [title, f"{step['median_images_per_second']:.0f}", ratio(step["ratio"])]
        for title, step in result["steps"].items()
    ]
    text = (
        f"{files['files']} photographs of {files['mean_megapixels']:.2f} megapixels on average, median and range of "
        f"{settings['rounds']} rounds ({machine(result)}):\n\n"
    )
    return text + table(["change", "images/s", "relative to torch's loader"], rows)


_NOT_CLAIMED = "Not measured on a quiet machine yet: `python benchmarks/claims.py`."


def claimed_workers() -> str:
    """Speed by number of workers."""
    if not (result := load("claims_cpu")):
        return _NOT_CLAIMED
    found, settings = result["loaders"]["candidates"], result["settings"]
    rows = []
    for workers in sorted({int(name.split()[1]) for name in found}):
        names = [f"torch {workers}", f"gpupipe {workers}"]
        rates = [f"{found[name]['median']:.0f}" if name in found else "" for name in names]
        rows.append([str(workers), *rates])
    text = (
        f"Images per second, batches of {settings['batch_size']}, median of {settings['rounds']} rounds "
        f"({machine(result)}):\n\n"
    )
    return text + table(["num_workers", "torch's loader", "gpupipe on DALI"], rows)


def claimed_dali() -> str:
    """Speed of DALI beside torch's loader, each with its best number of workers."""
    if not (result := load("claims_cpu")):
        return _NOT_CLAIMED
    found = result["loaders"]["candidates"]
    best = {
        loader: max((one["median"], name) for name, one in found.items() if name.startswith(loader))
        for loader in ("torch", "gpupipe")
    }
    ours, theirs = best["gpupipe"], best["torch"]
    ratios = [a / b for a, b in zip(*(found[name]["images_per_second"] for _, name in (ours, theirs)), strict=True)]
    spread = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return (
        f"On this CPU, DALI's CPU backend in gpupipe makes {ours[0]:.0f} images per second with its best number of "
        f"threads, and torch's loader {theirs[0]:.0f} with its best number of workers: {ratio(spread)} times as many."
    )


def claimed_pinning() -> str:
    """Speed of the copy within the host."""
    if not (result := load("claims_cpu")):
        return _NOT_CLAIMED
    copies = result["copies"]
    rates = copies["gigabytes_per_second"]
    return (
        f"On this CPU, copying a batch of {copies['megabytes']:.0f} MB within the host takes {rates['fresh']:.1f} GB/s "
        f"to fresh memory and {rates['reused']:.1f} GB/s to memory that was used before, "
        f"{ratio(copies['reused_to_fresh'])} of the time."
    )


def written(page: str, names: tuple[str, ...]) -> str:
    """Replace the text between the marks of a page."""
    make = {
        "headline": headline,
        "figures": figures,
        "gpu": lambda: gpu(RESULTS),
        "promises": markdown,
        "classes": classes,
        "pages": pages,
        "formats": formats,
        "variants": variants,
        "stores": stores,
        "blocks": blocks,
        "faults": faults,
        "frameworks": frameworks,
        "elastic": elastic,
        "costs": costs,
        "claims workers": claimed_workers,
        "claims dali": claimed_dali,
        "claims pinning": claimed_pinning,
        "tutorial": tutorial,
    }
    for name in names:
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        before, start, end, after = re.split(pattern, page, maxsplit=1, flags=re.DOTALL)
        page = f"{before}{start}{make[name]().strip()}\n{end}{after}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is not up to date")
    args = parser.parse_args()
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
    if args.check and old:
        sys.exit(f"{', '.join(old)}: not up to date; run python benchmarks/figures.py")


if __name__ == "__main__":
    main()
