"""What single result files say, as tables and lines of Markdown."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


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
        f"({machine(result)}). SimCLR and DINO count images read; each becomes two and ten views. "
        "torchvision blurs SimCLR's views with a grouped convolution, which is slow on some processors. torchvision's "
        "DINO blurs with Pillow, and gpupipe's with the Gaussian itself.\n\n"
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
