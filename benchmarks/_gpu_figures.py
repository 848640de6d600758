"""The README's section on GPUs, from the result files that exist and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["NEVER", "draw", "gpu"]

NEVER = (
    "**Never measured on a GPU.** The code for CUDA is written from DALI's and torch's documentation, with tests. "
    "`make gpu` runs the tests and the benchmarks on a machine with a GPU, and writes this section from their results."
)
EXPECT = """What to expect on a GPU, from the documentation of its parts:

- Batches are handed out on the current stream, without waiting for the device and, where DALI does all of it, without a
  copy.
- What DALI cannot do exactly (hue, elastic fields, noise, erasing, MixUp, CutMix) is done by torch on the device.
- A batch's memory is kept until the stream that was current at the next `next()` has passed. Work that is queued on
  another stream needs a copy, or `torch.cuda.current_stream().wait_stream(other)` before the next batch is asked for;
  `tensor.record_stream()` does nothing for memory that is DALI's.
- CUDA graphs are captured beside a running loader with `capture_error_mode="thread_local"`, because DALI allocates in
  threads of its own.
- JPEGs may be some levels off: the GPU's decoders are not libjpeg-turbo.
- `loader.close()` gives DALI's device memory back, and waits for the device once to do so."""


def gpu(results: Path) -> str:
    """Markdown of what was measured under ``results``; :data:`NEVER` where nothing was."""
    parts = [text for make in (_loader, _training, _recipes, _copy, _parity, _tests) if (text := make(results))]
    if not parts:
        return f"{NEVER}\n\n{EXPECT}"
    chart = ["![images per second on a GPU](benchmarks/results/gpu_loader.png)"] if _chart(results).exists() else []
    missing = [name for name, make in _NAMED.items() if not make(results)]
    left = [f"Not measured on a GPU: {', '.join(missing)}."] if missing else []
    return "\n\n".join([*chart, *parts, *left, EXPECT])


def _load(results: Path, name: str) -> dict[str, Any]:
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
    return f"Copies to the GPU; the bus alone gives {bus}:\n\n" + _table(head, rows) if rows else ""


def _parity(results: Path) -> str:
    result = _load(results, "gpu_parity")
    rows = [
        [row, r["case"], f"{r['max']:.3g}", f"{r['mean']:.3g}", f"{100 * r['over_1']:.3g} %"]
        for row, r in sorted(result.get("rows", {}).items())
        if not r["others"]
    ]
    if not rows:
        return ""
    head = ["operation", "measured by", "max", "mean", "over 1"]
    lacking = ", ".join(result.get("unmeasured", []))
    rest = f"\n\nNot measured: {lacking}." if lacking else ""
    return (
        "DALI on the GPU against the reference, in grey levels; the largest of photographs, noise and blocks, means of "
        f"photographs ({_machine(result)}):\n\n" + _table(head, rows) + rest
    )


def _tests(results: Path) -> str:
    found = _load(results, "gpu_tests").get("versions")
    if not found:
        return ""
    return (
        f"The GPU tests ran on {found['gpu']} with torch {found['torch']} built for CUDA {found['torch_cuda']} and "
        f"DALI {found['dali']} in one process."
    )


_NAMED = {
    "loading": _loader,
    "training": _training,
    "recipes": _recipes,
    "copies": _copy,
    "differences": _parity,
}


def draw(results: Path) -> Path | None:
    """The chart of the first stage of ``gpu_loader.json``; ``None`` where there is nothing to draw, or with what."""
    result = _load(results, "gpu_loader")
    stage = {n: c for n, c in result.get("stages", {}).get("main", {}).items() if "failed" not in c}
    if not stage:
        return None
    from gpupipe.bench.charts import pyplot
    from gpupipe.errors import MissingDependency

    try:
        plt = pyplot()
    except MissingDependency as e:
        print(e)
        return None
    names = sorted(stage, key=lambda n: stage[n]["median_images_per_second"])
    figure, axes = plt.subplots(figsize=(8, 0.7 * len(names) + 1.6), layout="constrained")
    axes.barh(names, [stage[n]["median_images_per_second"] for n in names], color="#76b900", height=0.62)
    axes.set_xlabel("images/s")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(_machine(result), loc="left", fontsize=10)
    figure.savefig(_chart(results), dpi=150)
    plt.close(figure)
    return _chart(results)
