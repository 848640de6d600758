"""What single result files say, as tables and lines of Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
WALL = "torch's wall"
"""How many times as fast as torch's loader a way is, in results of live loaders."""
SHOWN: set[str] = set()
"""Results that pages have asked for."""


def load(name: str) -> dict[str, Any] | None:
    SHOWN.add(name)
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


def live(result: dict[str, Any]) -> str:
    s = result["settings"]
    rows = []
    for case in result["cases"]:
        ways = [case[way] for way in ("torch", "live", "planned")]
        speeds = [f"**{way[WALL]:.2f}**" for way in ways[1:]]
        rows.append([str(case["epoch"]), str(case["workers"]), *speeds, *(f"{1e3 * way['cpu']:.2f}" for way in ways)])
    text = (
        "**A Dataset of your own**, which opens files by Pillow and calls torchvision's transforms, and the same files "
        "as torchvision's `ImageFolder`, which is planned. Each epoch counts from `iter()` to its end: batches of 64, "
        f"median of {s['rounds']} rounds ({machine(result)}).\n\n"
    )
    head = ["images an epoch", "workers", "own Dataset / torch", "`ImageFolder` / torch", "CPU ms/image: torch"]
    return text + table([*head, "own Dataset", "`ImageFolder`"], rows)


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
    plan = results["plan_cost"]
    if plan:
        lines.append(
            f"- gpupipe's own work (order, random numbers, delivery; null engine, `imagenet.train(224)`, one core): "
            f"**{plan['samples_per_second']:,.0f} samples/s**."
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
