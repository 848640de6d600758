"""Measurements of DALI on a device against DALI on the CPU and the reference, for every transform and recipe.

They are the basis of promises for a GPU: ``benchmarks/gpu_parity.py`` collects them, the tests in ``tests/gpu`` check
them, and the promises of the ops (:mod:`gpupipe.transforms.ops.promise`) are written from them by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from parity_cases import CASES, RECIPES, Make
from PIL import Image

from gpupipe.datasets import Arrays, Dataset, ImageFolder
from gpupipe.engines import Dali
from gpupipe.errors import ConfigError
from gpupipe.loader.dataloader import DataLoader
from gpupipe.parity import tolerances
from gpupipe.parity.difference import Difference, difference
from gpupipe.testing.photos import photograph
from gpupipe.transforms.ops import by_view
from gpupipe.transforms.ops.promise import CPU, CUDA, GRAPH

__all__ = [
    "CASES", "DECODERS", "INPUTS", "RECIPES", "apart", "arrays", "batches", "folder", "hostile", "jpegs", "markdown",
    "measure", "rows", "rows_of",
]  # fmt: skip

Kind = Literal["photographs", "noise", "blocks"]
Chroma = Literal["4:2:0", "4:2:2", "4:4:4"]
INPUTS: tuple[Kind, ...] = ("photographs", "noise", "blocks")
"""Kinds of input. Photographs give means; noise, and black and white blocks, give the largest differences."""

DECODERS: dict[str, dict[str, Any]] = {
    f"{'hardware' if load else 'hybrid'}, {'fancy' if fancy else 'plain'} upsampling": {
        "hw_decoder_load": load,
        "jpeg_fancy_upsampling": fancy,
    }
    for load in (0.0, 1.0)
    for fancy in (True, False)
}
"""Ways to decode a JPEG on a GPU."""


def arrays(kind: Kind, make: Make, count: int = 24) -> Dataset:
    """Return a dataset of pixels u8[count, 163, 211, 3], which need no decoding, with a pipeline.

    No size is a simple multiple of another, which would put many positions exactly between two pixels.
    """
    shape = (count, 163, 211, 3)
    rng = np.random.default_rng(0)
    pixels: npt.NDArray[np.uint8]
    if kind == "photographs":
        pixels = np.stack([photograph(*shape[1:3], seed) for seed in range(count)])
    elif kind == "noise":
        pixels = rng.integers(0, 256, shape, np.uint8)
    else:
        blocks = (rng.integers(0, 2, (count, 21, 27, 1), np.uint8) * np.uint8(255)).repeat(8, axis=1).repeat(8, axis=2)
        pixels = np.ascontiguousarray(np.broadcast_to(blocks[:, : shape[1], : shape[2]], shape))
    return Arrays(pixels, np.arange(count), transform=make())


def hostile() -> dict[str, list[npt.NDArray[np.uint8]]]:
    """Return pictures u8[H, W, 3] by kind that differ most after an op: hard edges, and few rows or columns."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:163, :211]
    points = (y % 7 == 0) & (x % 5 == 0)
    dithered = np.asarray(Image.fromarray(photograph(163, 211, 0)).convert("1"))
    bits = {
        "dither": [dithered],
        "checkerboard": [(x // n + y // n) % 2 for n in (1, 2, 3, 5)],
        "stripes": [axis // n % 2 for n in (1, 2, 3) for axis in (x, y)],
        "points": [points, ~points],
        "narrow": [rng.integers(0, 2, size) for size in ((400, 3), (3, 400), (163, 2), (1, 200), (200, 1), (5, 5))],
    }
    found = {name: [np.repeat(255 * p.astype(np.uint8)[:, :, None], 3, 2) for p in made] for name, made in bits.items()}
    colors = rng.integers(0, 256, (163, 211, 3), np.uint8)
    return {**found, "noise": [colors, np.where(colors > 127, np.uint8(255), np.uint8(0))]}


def jpegs(folder: Path, count: int = 24, chroma: Chroma | None = None) -> Path:
    """Write JPEG files of many sizes to ``folder``/class/.

    They have all chroma subsamplings, and some are gray or progressive. With ``chroma``, all are baseline color images
    with that subsampling.
    """
    (folder / "class").mkdir(parents=True)
    for i in range(count):
        image = Image.fromarray(photograph(200 + 37 * (i % 5), 260 + 41 * (i % 4), i))
        gray, progressive = chroma is None and i % 8 == 7, chroma is None and i % 6 == 5
        subsampling = {} if gray else {"subsampling": chroma or ("4:2:0", "4:4:4", "4:2:2")[i % 3]}
        file = folder / "class" / f"{i:03d}.jpg"
        quality = 75 + i % 24
        (image.convert("L") if gray else image).save(file, quality=quality, progressive=progressive, **subsampling)
    return folder


def folder(root: Path, make: Make) -> Dataset:
    """Return the files of :func:`jpegs` as a dataset with a pipeline."""
    return ImageFolder(root, make())


def batches(dataset: Dataset, engine: Any, device: str, batch_size: int = 8) -> list[tuple[Any, ...]]:
    """Return all batches of one epoch on the CPU, each a tuple of [B, C, H, W] per view; plans with "null"."""
    found = []
    with DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=0 if engine == "torch" else 4,
        seed=7,
        engine=engine,
        device=device,
    ) as loader:
        for batch in loader:
            images = batch[0] if isinstance(batch, list) else batch
            views = images if isinstance(images, tuple) else (images,)
            found.append(tuple(x.cpu() if hasattr(x, "cpu") else x for x in views))
    return found


def apart(
    dataset: Dataset, one: Sequence[tuple[Any, ...]], two: Sequence[tuple[Any, ...]], batch_size: int = 8
) -> Difference:
    """Return the difference between two runs of :func:`batches` over the dataset, all views together."""
    found = Difference()
    for (plan,), a, b in zip(batches(dataset, "null", "cpu", batch_size), one, two, strict=True):
        for ops, x, y in zip(by_view(plan.ops), a, b, strict=True):
            found += difference(x, y, ops, plan.sizes)
    return found


def measure(dataset: Dataset, device: str, **options: Any) -> dict[str, Difference]:
    """Compare DALI on ``device`` with the reference and with DALI on the CPU.

    ``options`` are those of :class:`gpupipe.engines.Dali`.
    """
    there = batches(dataset, Dali(**options), device)
    return {
        "reference": apart(dataset, there, batches(dataset, "torch", "cpu")),
        "cpu": apart(dataset, there, batches(dataset, "dali", "cpu")),
    }


@cache
def rows_of(make: Make) -> tuple[str, ...]:
    """Return the rows of the table of tolerances that apply to a pipeline, except decoding."""
    found: list[str] = []
    for ops in by_view(make().skeleton):
        try:
            found += tolerances.rows_of(ops)
        except ConfigError as e:
            found.append(str(e))
    return tuple(dict.fromkeys(found))


def rows(measured: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the measurement for every row of the table, from the case with the fewest other rows.

    Args:
        measured: case, input, then ``Difference.to_dict()`` against the reference.

    Returns:
        ``rows``: for each row the case, its other rows, the largest difference over all inputs, and the mean and the
            share above one level for photographs. ``unmeasured``: rows of the table without a case.
    """
    exact = {"crop", "flip"}
    out: dict[str, Any] = {}
    for name, found in measured.items():
        keys = rows_of(CASES.get(name) or RECIPES[name])
        for key in keys:
            others = [k for k in keys if k not in exact | {key}]
            if key in out and (len(out[key]["others"]), -out[key]["max"]) < (len(others), 0):
                continue
            values = list(found.values())
            worst = {where: max(v[where]["max"] for v in values) for where in ("interior", "border")}
            photo = found.get("photographs", values[0])
            entry = {
                "case": name, "others": others, "max": worst["interior"], "border_max": worst["border"],
                "mean": photo["interior"]["mean"], "over_1": photo["interior"]["over_1"],
                "border_mean": photo["border"]["mean"], "border_over_1": photo["border"]["over_1"],
            }  # fmt: skip
            if key not in out or len(others) < len(out[key]["others"]) or entry["max"] > out[key]["max"]:
                out[key] = entry
    return {"rows": out, "unmeasured": [k for k in tolerances.TABLE if k not in out and k != tolerances.DECODE]}


def markdown() -> str:
    """Return the table of promises for the documentation."""
    lines = [
        '| DALI against the reference | CPU | CPU, `graph="whole"` | at the border of the image | GPU | why |',
        "|---|---|---|---|---|---|",
    ]
    for row in tolerances.TABLE.values():
        cpu, graph, cuda = (row.of(*where) for where in (CPU, GRAPH, CUDA))
        border = graph.border if graph else None
        bounds = [tolerance.interior if tolerance else "not measured" for tolerance in (cpu, graph)]
        reasons = dict.fromkeys(t.reason for t in (cpu, graph) if t and t.reason)
        cells = [row.what, *bounds, border or "", cuda or "not measured", "; ".join(reasons)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "The reference against torchvision on PIL images, CPU: equal.", ""]
    lines += ["| `scaled=True` against a full decode, both in the reference | CPU | why |", "|---|---|---|"]
    lines += [
        f"| resize, {name}, of an image decoded smaller | {t.interior} | {t.reason} |"
        for name, t in tolerances.SCALED.items()
    ]
    return "\n".join(lines) + "\n"
