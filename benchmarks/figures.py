"""Write the figures of README.md and docs/ from the files in results/, and the promises from the code.

    python benchmarks/figures.py           # rewrite README.md and the pages in docs/
    python benchmarks/figures.py --check   # exit 1 if one of them is not up to date

No number on these pages is typed by hand.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import _common  # noqa: F401  (makes a source checkout importable)
from _gpu_figures import draw, gpu
from parity_measure import markdown

from gpupipe import datasets
from gpupipe.datasets.arrays import Arrays
from gpupipe.datasets.images import EncodedImages

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {
    "README.md": ("headline",),
    "docs/claims.md": ("claims workers", "claims dali", "claims pinning"),
    "docs/figures.md": ("figures", "gpu"),
    "docs/machines.md": ("faults", "elastic", "decoding", "frameworks"),
    "docs/promises.md": ("promises", "costs"),
    "docs/remote.md": ("stores", "blocks"),
    "docs/sources.md": ("classes", "pages", "formats", "variants"),
    "docs/tutorial.md": ("tutorial",),
}
"""Texts for the pages, by the names of the marks around them."""


def load(name: str) -> dict[str, Any] | None:
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def machine(result: dict[str, Any]) -> str:
    m = result["machine"]
    gpus = m.get("gpus") or []
    memory = m.get("memory_gb")
    parts = [m.get("cpu"), f"{m.get('cores')} cores", f"{memory:.0f} GB" if memory else "", *map(str, gpus)]
    return ", ".join(p for p in parts if p) + f"; {m.get('date', '')[:10]}"


def ratio(r: dict[str, float]) -> str:
    return f"**{r['median']:.2f}** ({r['min']:.2f} to {r['max']:.2f})"


def speed_row(name: str, c: dict[str, Any], *ratios: dict[str, float] | None) -> list[str]:
    """The row of a candidate: its images per second, ratios, CPU time and memory."""
    beside = ["" if r is None else ratio(r) for r in ratios]
    return [name, f"{c['median_images_per_second']:.0f}", *beside, f"{c['cpu_ms_per_image']:.2f}", f"{c['pss_mb']:.0f}"]


def candidates(result: dict[str, Any], other: str, key: str) -> str:
    """Speed of each loader, compared with torch's and with ``other``, whose ratios are ``key``."""
    ratios = result["ratios"]
    rows = [speed_row(n, c, ratios[n]["to_torchvision"], ratios[n][key]) for n, c in result["candidates"].items()]
    return table(["loader", "images/s", "relative to torch + torchvision", other, "CPU ms/image", "MB"], rows)


def loaders(result: dict[str, Any]) -> str:
    s, f = result["settings"], result["files"]
    text = (
        f"**Loading only.** Random resized crop to 224, flip, normalize, float32; {f['files']} photographs of "
        f"{f['mean_megapixels']:.2f} megapixels on average, repeated; batch size {s['batch_size']}, {s['workers']} "
        f"threads or workers, {s['rounds']} rounds ({machine(result)}). Memory is the proportional set size (PSS) of "
        "the process tree with full queues, including batches that wait in shared memory.\n\n"
    )
    return text + candidates(result, "relative to DALI by hand", "to_by_hand")


def recipes(result: dict[str, Any]) -> str:
    rows = []
    for name, found in result["recipes"].items():
        speed = [f"{c['median_images_per_second']:.0f}" for c in found["candidates"].values()]
        ours, reference, _ = found["ratios"].values()
        rows.append([name, *speed, ratio(ours), f"{reference['median']:.2f}"])
    names = list(next(iter(result["recipes"].values()))["candidates"])
    s = result["settings"]
    text = (
        f"**Whole recipes**, images/s: batch size {s['batch_size']}, {s['workers']} threads or workers "
        f"({machine(result)}). SimCLR counts images read; each becomes two views.\n\n"
    )
    return text + table(["recipe", *names, "DALI / torchvision", "reference / torchvision"], rows)


def clips(result: dict[str, Any]) -> str:
    rows = [
        [
            name,
            *(
                ratio(result[work][name][key])
                for work in ("random", "sequential")
                for key in ("to_pyav", "to_pyav_by_cpu_time")
            ),
            f"{result['random'][name]['pss_mb']:.0f}",
        ]
        for name in result["random"]
    ]
    files = result["files"]
    text = (
        f"**Clips** of 16 frames at 224, relative to PyAV in torch's DataLoader: "
        f"{'generated' if files['made'] else 'recorded'} H.264 videos of {files['frames']['mean']:.0f} frames, "
        f"{' or '.join(files['sizes'])} pixels, a key frame every {files['frames_between_entries']:.0f} "
        f"({machine(result)}).\n\n"
    )
    columns = ["random clips", "by CPU time", "consecutive clips", "by CPU time"]
    return text + table(["loader", *columns, "MB"], rows)


def kept(result: dict[str, Any]) -> str:
    text = f"**Cached decoded images**, `cache=` ({machine(result)}). Files are in the page cache.\n\n"
    return text + candidates(result, "relative to no cache", "to_plain")


def peers(result: dict[str, Any]) -> str:
    text = (
        f"**Beside other loaders** of the same photographs ({machine(result)}). FFCV reads a file of its own format, "
        "whose JPEG mode encodes the photographs again, and resizes with OpenCV's area filter; SPDL decodes, crops and "
        "resizes with FFmpeg. The pixels of both differ from torchvision's.\n\n"
    )
    return text + candidates(result, "relative to DALI by hand", "to_by_hand")


def augmented(result: dict[str, Any]) -> str:
    s = result["settings"]
    text = (
        "**Augmenting a batch in memory**, `gpupipe.augment` relative to torchvision's transforms called for one image "
        f"after the other; {s['threads']} thread, medians of {s['rounds']} rounds ({machine(result)}).\n\n"
    )
    rows = [
        [
            name,
            " x ".join(map(str, c["batch"])),
            f"{c['torchvision_ms']:.1f}",
            f"{c['gpupipe_ms']:.1f}",
            ratio(c["ratio"]),
        ]
        for name, c in result["cases"].items()
    ]
    return text + table(["transforms", "batch", "torchvision, ms", "gpupipe, ms", "relative time"], rows)


def sliceable(result: dict[str, Any]) -> str:
    rows = [
        speed_row(name, c, c["to_untouched"], c.get("to_torchvision"))
        for found in result["sets"].values()
        for name, c in found.items()
    ]
    with_dali = [found[f"{base}, sliceable, gpupipe-dali"]["to_untouched"] for base, found in result["sets"].items()]
    least, most = (f"{pick(r['median'] for r in with_dali):.2f}" for pick in (min, max))
    text = (
        f"**Sliceable JPEGs** of `gpupipe pack --sliceable`, relative to their originals ({machine(result)}). On a CPU "
        f"with DALI they load {least} to {most} times as fast. A GPU's decoding engines, which were not measured, "
        "should gain in proportion to the pixels left out.\n\n"
    )
    head = [
        "files, loader",
        "images/s",
        "relative to originals",
        "relative to torch + torchvision",
        "CPU ms/image",
        "MB",
    ]
    return text + table(head, rows)


def floor(result: dict[str, Any]) -> str:
    sets = result["sets"]
    all_steps = {
        "**whole files, all steps**": "untouched",
        "**sliceable, all steps**": "sliceable",
        "**sliceable, all steps, fastest decoder**": "floor",
    }
    steps = [step for step in next(iter(sets.values()))["ms"] if step not in all_steps.values()]
    rows = [[step, *(f"{found['ms'][step]:.2f}" for found in sets.values())] for step in steps]
    for name, key in all_steps.items():
        to = [
            f", torchvision / this {ratio(f['to_torchvision'][key])}" if "to_torchvision" in f else ""
            for f in sets.values()
        ]
        rows.append([name, *(f"{found['ms'][key]:.2f}{more}" for found, more in zip(sets.values(), to, strict=True))])
    text = (
        "Each step alone, CPU ms per image in one thread: a lower bound for any loader made of these steps "
        f"({machine(result)}).\n\n"
    )
    return text + table(["step", *sets], rows)


def scaled(result: dict[str, Any]) -> str:
    rows = [
        [
            f"{work}: {name}",
            f"{c['median_images_per_second']:.0f}",
            ratio(c["to_unscaled"]),
            f"{c['to_unscaled_by_cpu_time']:.2f}",
            ratio(c["to_torchvision"]) if "to_torchvision" in c else "",
        ]
        for work, found in result["sets"].items()
        for name, c in found.items()
        if name.endswith(", scaled")
    ]
    text = f"**Large photographs decoded smaller**, `scaled=True`: 224 pixels, float32 ({machine(result)}).\n\n"
    return text + table(
        ["work", "images/s", "relative to a full decode", "by CPU time", "relative to torch + torchvision"], rows
    )


def buckets_lines(result: dict[str, Any] | None) -> list[str]:
    """What buckets cost and save."""
    if result is None:
        return []
    plans, padding = result["plans"], {row["buckets"]: row["ratio"] for row in result["padding"]}
    lines = [
        f"- Buckets: {plans['samples']:,} images divided by aspect ratio in **{plans['seconds']:.1f} s** of CPU time "
        f"and {plans['grown_mb']:.0f} MB; the first plan of an epoch takes {1e3 * plans['first_plan_seconds']:.0f} ms.",
        "- Tokens with padding, relative to those without: "
        f"{padding[0]:.2f} in a random order, {padding[4]:.2f} with 4 buckets, **{padding[16]:.2f}** with 16.",
    ]
    for name, what in (("loading", "loading only"), ("training", "with a small network that is trained")):
        found = result["speeds"]["images_per_second"][name]
        parts = []
        for key in (key for key in found if key != "one shape"):
            ratios = [v / one for v, one in zip(found[key], found["one shape"], strict=True)]
            parts.append(f"{key} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        lines.append(f"- Images per second on a CPU relative to batches of one shape, {what}: {', '.join(parts)}.")
    return lines


def small(results: dict[str, dict[str, Any] | None]) -> str:
    """One line for each of the other questions."""
    lines = []
    training = results["training_equal"]
    if training:
        d, n = training["difference"], training["settings"]["seeds"]
        dali, reference = (training["accuracy"][k] for k in ("dali", "torch"))
        lines.append(
            f"- A small network trained on DALI's batches and on the reference's, {n} seeds each: accuracy "
            f"{100 * dali['mean']:.1f} % and {100 * reference['mean']:.1f} %; **{100 * d['mean']:+.1f}** points apart, "
            f"standard error {100 * d['standard_error']:.1f}; standard deviation over seeds "
            f"{100 * reference['standard_deviation']:.1f}."
        )
    video = results["video_index"]
    for r in video["results"] if video else []:
        m = r["median"]
        lines.append(
            f"- Index of {r['videos']:,} videos with {r['frames'] / 1e6:.0f} million frames: opened, verified and "
            f"first plan made in **{m['open_and_first_plan_s'] * 1e3:.0f} ms**."
        )
    plan = results["plan_cost"]
    if plan:
        lines.append(
            f"- gpupipe's own work (order, random numbers, delivery; null engine, `imagenet.train(224)`, one core): "
            f"**{plan['samples_per_second']:,.0f} samples/s**."
        )
    orders = results["orders_cpu"]
    if orders:
        each = ", ".join(f"{r['us_per_plan']:.0f} us for {r['batch_size']}" for r in orders["plans"])
        settings, ratios = orders["settings"], orders["mixture"]["ratios"]
        found = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
        lines.append(
            f"- `loader.plan_at` at {settings['draws']:,} random steps of 14 million samples, by batch size: {each}. A "
            f"mixture of two halves of a folder, relative to the folder: {ratio(found)}."
        )
    lines += buckets_lines(results["buckets_cpu"])
    coco = results["coco_index"]
    if coco:
        first, second, other = (coco["ways"][way] for way in ("first opening", "second opening", "pycocotools"))
        lines.append(
            f"- Annotations as large as COCO's ({coco['settings']['images']:,} images, {coco['settings']['objects']:,} "
            f"polygons): opened in {first['seconds']:.0f} s, then {second['seconds']:.0f} s, and **{first['mb']:.0f} "
            f"MB** are kept; pycocotools takes {other['seconds']:.0f} s and keeps {other['mb']:,.0f} MB."
        )
    index = results["index_scale"]
    for r in index["results"] if index else []:
        m = r["median"]
        lines.append(
            f"- Index of {r['samples']:,} files in {r['folders']:,} folders: opened, verified and first plan made in "
            f"**{m['open_and_first_plan_s'] * 1e3:.0f} ms**, with {m['uss_growth_mb']:.0f} MB of private memory."
        )
    memory = results["memory_epochs_cpu"]
    for name, e in (memory["engines"] if memory else {}).items():
        lines.append(
            f"- Memory of the {name} engine after epoch {memory['settings']['epochs']} relative to epoch 2 "  # type: ignore[index]
            f"({memory['settings']['images']:,} images per epoch): **{e['growth']['own']:.2f}**."  # type: ignore[index]
        )
    faults = results["faults"]
    for r in faults["speed_with_1_percent_bad"] if faults else []:
        first = "" if r["known"] == "to the index" else " (first epoch; later epochs know the bad files)"
        lines.append(
            f"- With 1 % of the files truncated, known {r['known']}, the {r['engine']} engine keeps "
            f"**{r['ratio']['median']:.2f}** of its speed{first}."
        )
    soak = results["soak"]
    if soak:
        events = {"breaks": "breaks", "resumes": "resumes", "files_spoilt": "files damaged meanwhile"}
        events |= {"workers_killed": "workers killed", "signals": "signals"}
        met = ", ".join(f"{soak[name]} {words}" for name, words in events.items() if soak.get(name))
        lines.append(
            f"- {soak['epochs']} epochs with bad files, {met}: "
            f"**{len(soak['unlike_the_plan'])}** of {soak['batches']:,} batches differ from the plan; memory of the "
            f"last quarter relative to the second {soak['memory_of_the_last_quarter_over_the_second']:.2f}."
        )
    interrupts = results["interrupts"]
    if interrupts:
        counts = interrupts["counts"]
        lines.append(
            f"- {interrupts['trials']} signals at random moments, {interrupts['together']} trials at once: "
            f"**{counts['not_ended']}** did not end the run, {counts['left']} left something behind, {counts['said']} "
            f"printed more than a traceback; from signal to exit {interrupts['median_seconds']:.2f} s (median), "
            f"{interrupts['worst_seconds']:.2f} s (worst)."
        )
    return "\n".join(lines)


def decoders(result: dict[str, Any]) -> str:
    """The counts of the campaign of damaged files."""
    rows = []
    for kind, found in result["summary"].items():
        for what, words in (("given", "DALI"), ("kept", "Pillow")):
            n = found[what]
            if n["files"]:
                counts = (n[k] for k in ("files", "crash", "hang", "wrong", "lenient", "alone"))
                speed = f"{result['images_per_second'][kind]['ratio']:.1f}"
                rows.append([kind, words, *(f"{count:,}" for count in counts), speed])
    head = ["damaged files", "gpupipe decodes with", "tried", "process crashed", "hung", "other pixels"]
    head += ["delivered, Pillow refuses", "refused, Pillow delivers", "speed, Pillow / DALI"]
    text = (
        "**Damaged files.** What DALI's own decoders do with damaged files that the index does not catch, which is why "
        "Pillow decodes most formats; and how fast one thread of each decodes good files "
    )
    return f"{text}({machine(result)}).\n\n{table(head, rows)}"


def strictness(result: dict[str, Any]) -> str:
    """Cost and findings of ``strict=True``."""
    cost, parts = result["cost"], []
    for how, counts in result["found"].items():
        named = counts.get("named by strict", 0)
        silent = counts.get("not noticed, other pixels", 0)
        parts.append(f"{how} {100 * named / max(named + silent, 1):.0f} %")
    ms = cost["seconds_per_file"]["probe_strict"] * 1e3
    return (
        f"- `strict=True` takes {ms:.1f} ms per file when the index is built, **{cost['probe_ratio']:.0f}** times as "
        f"long as without. Of visible damage that neither the index nor Pillow catches, it finds: {', '.join(parts)}. "
        f"Of {result['files']['files']} good photographs it refuses {result['good_files_refused']}."
    )


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
    found, read, packed = result["variants"], result["read"], result["read after gpupipe pack"]
    names = ", ".join(sorted(name for name, row in found.items() if "refused" in row))
    failed = len(found) - read - packed
    return (
        f"Of {len(found)} variants, {read} pass all checks as they are, and {packed} ({names}) after the `gpupipe pack`"
        f" command that their error names; {failed or 'none'} failed."
    )


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


def decoding() -> str:
    """What decoding in Ray actors costs and carries."""
    result = load("remote_decoding")
    if result is None:
        return ""
    rows = []
    for name, found in result["candidates"].items():
        sent = f"{found['bytes_per_image'] / 1e3:.0f} KB" if "bytes_per_image" in found else "none"
        numbers = (found["images_per_second"], found["cpu_ms_per_image"], found["own_cpu_ms_per_image"])
        shown = [f"{numbers[0]:,.0f}", *(f"{n:.2f}" for n in numbers[1:])]
        rows.append([name, *shown, ratio(found["cpu_of_local"]), sent])
    head = ["decoded by", "images/s", "CPU ms per image", "of these, training process", "CPU relative to local", "sent"]
    about = (
        f"`imagenet.train(224)`, batches of {result['batch']}, photographs of {result['files']['mean_megapixels']:.2f} "
        f"megapixels, actors on the same machine ({machine(result)}), `python benchmarks/remote_decoding.py`:"
    )
    carried = [
        [name, f"{found['windows']:,.0f}", f"{found['jpeg']:,.0f}"] for name, found in result["networks"].items()
    ]
    killed, stopped = (result["faults"][kind]["cost_seconds"] for kind in ("killed", "stopped"))
    second = {name: found["cpu_ms_per_image"] for name, found in result["second_job"].items()}
    return (
        f"{about}\n\n{table(head, rows)}\n\n"
        f"The longest wait for a batch grew by {killed:.1f} s when an actor was killed, and by {stopped:.1f} s when "
        f"one was stopped. A second job with another seed costs {second['no cache']:.2f} CPU ms per image, and "
        f"{second['cache']:.2f} with `cache=` of the decoders. From the measured bytes, a network carries:\n\n"
        + table(["network", "images/s as windows", "images/s as JPEG"], carried)
    )


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
        "sliceable_cpu",
        "sliceable_floor_cpu",
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
        "sliceable_cpu": sliceable,
        "sliceable_floor_cpu": floor,
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
        for pick, which in ((min, "least"), (max, "most")):
            name = pick(found, key=lambda name: found[name]["median"])
            rows.append([f"whole recipes, {which}: {name}", "torchvision", ratio(found[name])])
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
        "decoding": decoding,
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
