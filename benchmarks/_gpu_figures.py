"""The section of docs/figures.md on GPUs, from the result files that exist and from nothing else."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from _figure_tables import SHOWN

__all__ = ["NEVER", "draw", "gpu"]

NEVER = (
    "**No figures from a GPU yet.** The CUDA code is written from the documentation and sources of DALI and torch, and "
    "most of its tests passed on one H200. `make gpu` runs tests and benchmarks on a machine with a GPU and writes "
    "this section from the results."
)
EXPECT = """What to expect on a GPU, from the documentation of its parts:

- The loader delivers batches on the current stream without waiting for the device. If DALI does all of the work, it
  does not copy.
- torch does on the device what DALI cannot do exactly (hue, erasing, MixUp, CutMix).
- A batch's memory is kept until the stream that is current at the next `next()` has passed. If you queue work on
  another stream, copy the batch, or call `torch.cuda.current_stream().wait_stream(other)` before you ask for the next
  batch. `tensor.record_stream()` has no effect on DALI's memory.
- To capture a CUDA graph beside a running loader, use `capture_error_mode="thread_local"`, because DALI allocates in
  its own threads.
- JPEGs may differ by some levels, because the GPU's decoders are not libjpeg-turbo.
- `loader.close()` frees DALI's device memory, and waits for the device once."""


def gpu(results: Path) -> str:
    """Markdown of what was measured under ``results``; :data:`NEVER` where nothing was."""
    makers = (_decoders, _loader, _training, _recipes, _copy, _clips, _parity, _tests)
    parts = [text for make in makers if (text := make(results))]
    if not parts:
        return f"{NEVER}\n\n{EXPECT}"
    chart = ["![images per second on a GPU](../benchmarks/results/gpu_loader.png)"] if _chart(results).exists() else []
    missing = [name for name, make in _NAMED.items() if not make(results)]
    left = [f"Not measured on a GPU: {', '.join(missing)}."] if missing else []
    return "\n\n".join([*chart, *parts, *left, EXPECT])


def _decoders(results: Path) -> str:
    result = _load(results, "gpu_decoders")
    rows = [
        [setting, of, r["decoded_by"], f"{100 * r['equal']:.0f} %", f"{r['max']:.0f}", f"{r['mean']:.2f}"]
        for setting, found in result.get("decoders", {}).items()
        for of, r in found.items()
    ]
    races = [
        f"- {name}: **{r['bytes']}** bytes changed in {r['batches']} batches"
        for name, r in result.get("race", {}).items()
    ]
    if not rows and not races:
        return ""
    head = ["settings", "chroma, share of the decoding engines", "decoded by", "equal to Pillow", "max", "mean"]
    text = f"Who decodes the JPEGs, and how far from Pillow, in gray levels ({_machine(result)}):\n\n"
    load = "\n\nUnder matrix products on the consumer's stream:\n\n" + "\n".join(races) if races else ""
    return text + _table(head, rows) + load


def _load(results: Path, name: str) -> dict[str, Any]:
    SHOWN.add(name)
    file = results / f"{name}.json"
    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    machine = result.get("machine")
    return {} if machine is not None and not machine.get("gpus") else result  # of a CPU it says nothing here


def _chart(results: Path) -> Path:
    return results / "gpu_loader.png"


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _machine(result: dict[str, Any]) -> str:
    m = result["machine"]
    parts = [*map(str, m.get("gpus") or []), m.get("cpu"), f"{m.get('cores')} cores"]
    return ", ".join(p for p in parts if p) + f"; {m.get('date', '')[:10]}"


def _share(spread: dict[str, Any] | None) -> str:
    return "" if not spread else f"{spread['median']:.2f} ({spread['min']:.2f} to {spread['max']:.2f})"


def _loader(results: Path) -> str:
    result = _load(results, "gpu_loader")
    rows = []
    for stage, candidates in result.get("stages", {}).items():
        for name, c in candidates.items():
            if "failed" in c:
                rows.append([stage, name, "failed", "", "", ""])
                continue
            memory = f"{c['gpu_mb']:.0f}" if c.get("gpu_mb") is not None else ""
            speed = f"{c['median_images_per_second']:,.0f}"
            rows.append([stage, name, speed, _share(c["to_first"]), f"{c['cpu_ms_per_image']:.2f}", memory])
    if not rows:
        return ""
    s = result["settings"]
    head = ["stage", "loader", "images/s", "to the stage's first", "CPU ms/image", "GPU MB"]
    return (
        f"Loading alone, random resized crop to 224, flip, normalize; batch {s['batch_size']}, {s['workers']} threads "
        f"or workers ({_machine(result)}):\n\n" + _table(head, rows)
    )


def _training(results: Path) -> str:
    result = _load(results, "gpu_training")
    rows = [
        [stage, name, f"{r['median_images_per_second']:,.0f}", f"{100 * r['median_stall_share']:.1f} %"]
        for stage, found in result.get("stages", {}).items()
        for name, r in found.items()
    ]
    if not rows:
        return ""
    head = ["step", "batches from", "images/s", "stall"]
    return (
        "ResNet-50 in training, bfloat16, channels last. Stall is the share of a step above that of one batch replayed "
        f"({_machine(result)}):\n\n" + _table(head, rows)
    )


def _recipes(results: Path) -> str:
    result = _load(results, "recipes_gpu")
    rows = [
        [recipe, name, f"{c['median_images_per_second']:,.0f}", _share(found["ratios"].get(name))]
        for recipe, found in result.get("recipes", {}).items()
        for name, c in found["candidates"].items()
    ]
    head = ["recipe", "loader", "images/s", "to torch + torchvision"]
    return f"Recipes ({_machine(result)}):\n\n" + _table(head, rows) if rows else ""


def _copy(results: Path) -> str:
    result = _load(results, "gpu_copy")
    rows = [
        [batch, way, f"{r['gigabytes_per_second']:.1f}", f"{r['milliseconds_added_to_compute']:.2f}"]
        for batch, found in result.get("batches", {}).items()
        for way, r in found["ways"].items()
    ]
    head = ["batch", "way", "GB/s", "ms added to compute"]
    bus = f"{result['bus']['gigabytes_per_second']:.1f} GB/s" if rows else ""
    text = f"Copies to the GPU; the bus alone gives {bus}:\n\n"
    return text + _table(head, rows) if rows else ""


def _clips(results: Path) -> str:
    result = _load(results, "video_clips_gpu")
    rows = [
        [which, name, f"{r['median_clips_per_second']:,.0f}", _share(r.get("to_pyav"))]
        for which in ("random", "sequential")
        for name, r in result.get(which, {}).items()
    ]
    head = ["clips", "loader", "clips/s", "to PyAV"]
    text = f"Clips of 16 frames at 224, H.264 ({_machine(result)}):\n\n" if rows else ""
    return text + _table(head, rows) if rows else ""


def _parity(results: Path) -> str:
    result = _load(results, "gpu_parity")
    rows = [
        [
            row, r["case"], f"{r['max']:.3g}", f"{r['mean']:.3g}", f"{100 * r['over_1']:.3g} %",
        ]
        for row, r in sorted(result.get("rows", {}).items())
    ]  # fmt: skip
    if not rows:
        return ""
    head = ["operation", "measured by", "max", "mean", "over 1"]
    lacking = ", ".join(result.get("unmeasured", []))
    rest = f"\n\nNot measured: {lacking}." if lacking else ""
    return (
        "DALI on the GPU against the reference, in gray levels; the largest of photographs, noise and blocks, means of "
        f"photographs ({_machine(result)}):\n\n" + _table(head, rows) + rest
    )


def _tests(results: Path) -> str:
    result = _load(results, "gpu_tests")
    found = result.get("measured", {}).get("versions")
    counts = Counter(outcome.partition(":")[0] for outcome in result.get("outcomes", {}).values())
    if not counts:
        return ""
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    if found:
        text += (
            f"; on {found['gpu']}, with torch {found['torch']} built for CUDA {found['torch_cuda']} and DALI "
            f"{found['dali']} in one process"
        )
    return f"The GPU tests: {text}."


_NAMED = {
    "decoding": _decoders,
    "loading": _loader,
    "training": _training,
    "recipes": _recipes,
    "copies": _copy,
    "clips": _clips,
    "differences": _parity,
}


def draw(results: Path) -> Path | None:
    """The chart of the first stage of ``gpu_loader.json``; ``None`` where there is nothing to draw, or with what."""
    result = _load(results, "gpu_loader")
    stage = {n: c for n, c in result.get("stages", {}).get("main", {}).items() if "failed" not in c}
    if not stage:
        return None
    try:
        import matplotlib
    except ImportError:
        print("charts need matplotlib: pip install matplotlib")
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = sorted(stage, key=lambda n: stage[n]["median_images_per_second"])
    figure, axes = plt.subplots(figsize=(8, 0.7 * len(names) + 1.6), layout="constrained")
    axes.barh(names, [stage[n]["median_images_per_second"] for n in names], color="#76b900", height=0.62)
    axes.set_xlabel("images/s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(_machine(result), loc="left", fontsize=10)
    figure.savefig(_chart(results), dpi=150)
    plt.close(figure)
    return _chart(results)
