"""How far is each transform from torchvision, and DALI from the reference?

Prediction: the reference is equal to torchvision wherever torchvision is deterministic given its numbers; DALI is
within one gray level of the reference, apart from the borders of what interpolates.

Measured: every transform with certainty (p=1), on photographs of 320 x 320 pixels, with the numbers of one plan for
all three: DALI's CPU backend against the reference on PIL images; the reference against torchvision's functions on PIL
images and on uint8 tensors. In gray levels of 0 to 255.

    python benchmarks/transforms_table.py [FOLDER]    # writes results/transforms.json
    python benchmarks/transforms_table.py --stale     # measures only transforms that now run elsewhere, or are new
    python benchmarks/transforms_table.py --write     # writes docs/transforms.md from it
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import IMAGES, ROOT, Table, describe_files, heading, load, photographs, save
from _torchvision import Unknown, apply
from parity_cases import FINISH, PAGE
from PIL import Image

from gpupipe import DataLoader, datasets, engines, transforms as T
from gpupipe.errors import PipelineError
from gpupipe.kernels.apply import apply_sample, apply_tail, head_and_tail
from gpupipe.parity.difference import Difference, difference
from gpupipe.parity.tolerances import DECODE, TABLE, tolerance
from gpupipe.transforms.ops import Op
from gpupipe.transforms.ops.promise import CPU

MEASURES = (
    "benchmarks/_torchvision.py", "gpupipe/engines/dali/lowering", "gpupipe/kernels", "gpupipe/transforms",
    "tests/parity_cases.py",
)  # fmt: skip
PAGE_FILE = ROOT / "docs" / "transforms.md"
PICTURE = 320


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES if IMAGES.is_dir() else None)
    parser.add_argument("--write", action="store_true", help="write the page from the results")
    parser.add_argument("--stale", action="store_true", help="keep rows whose ops run where they ran then")
    parser.add_argument("--samples", type=int, default=96)
    args = parser.parse_args()
    if args.write:
        PAGE_FILE.write_text(page(load("transforms")))
        return
    known = load("transforms") if args.stale else {"settings": {"samples": args.samples}, "rows": {}}
    if args.samples != known["settings"]["samples"]:
        parser.error(f"--stale: the results have {known['settings']['samples']} samples")
    kept = {n: row for n, row in known["rows"].items() if n in PAGE and row["where"] == on_host(T.Compose(PAGE[n]))}
    with photographs(args.folder, count=128) as paths:
        pixels = np.stack([_square(path) for path in paths[: args.samples]])
        result: dict[str, Any] = {
            **heading(__doc__, {"samples": len(pixels), "size": PICTURE}),
            "files": describe_files(paths),
            "kept": sorted(kept),
            "rows": {},
        }
    table = Table("transform", "DALI equal", "max", "mean", "over 1", "PIL max", "tensor max", first=58)
    for name, steps in PAGE.items():
        row = result["rows"][name] = kept[name] if name in kept else measure(pixels, steps)
        dali, pil, tensor = (row[k] for k in ("dali/torch", "torch/pil", "torch/tensor"))
        cells = [f"{100 * dali['equal']:.0f} %", dali["max"], dali["mean"], f"{100 * dali['over_1']:.2f} %"]
        table.row(name, *(cells if "max" in dali else [dali["why"]] * 4), pil.get("max"), tensor.get("max"))
    print(save("transforms", result))


def _square(path: str) -> Any:
    with Image.open(path) as file:
        image = file.convert("RGB")
        side = min(image.size)
        return np.asarray(image.crop((0, 0, side, side)).resize((PICTURE, PICTURE), Image.Resampling.BICUBIC))


def measure(pixels: Any, steps: tuple[T.Transform, ...]) -> dict[str, Any]:
    on_pil = T.Compose(steps)
    on_tensor = on_pil if steps[:1] == FINISH[:1] else T.Compose([T.ToImage(), *steps])
    return {
        "dali/torch": engines_apart(pixels, on_pil),
        "torch/pil": {"why": "takes tensors only"} if on_pil is on_tensor else torchvision_apart(pixels, on_pil, False),
        "torch/tensor": torchvision_apart(pixels, on_tensor, True),
        "where": on_host(on_pil),
    }


def on_host(pipeline: T.Compose) -> str:
    """Return the ops that run on the host on a CPU."""
    from gpupipe.engines.dali.graph_end import graph_end

    end = graph_end(pipeline.skeleton, whole=False)
    return ", ".join(end.names(pipeline.skeleton)) if end.then_threads else ""


def engines_apart(pixels: Any, pipeline: T.Compose) -> dict[str, Any]:
    dataset = datasets.Arrays(pixels, transform=pipeline)
    found = Difference()
    common: dict[str, Any] = {"batch_size": 1, "device": "cpu", "seed": 1}
    try:
        loaders = [DataLoader(dataset, engine=e, **common) for e in ("null", "dali", engines.Torch())]
    except PipelineError as e:
        return {"why": str(e)}
    for plan, dali, reference in zip(*loaders, strict=True):
        found += difference(dali, reference, plan.ops, plan.sizes)
    for loader in loaders:
        loader.close()
    return found.to_dict()


def torchvision_apart(pixels: Any, pipeline: T.Compose, tensor: bool) -> dict[str, Any]:
    found = Difference()
    keys = np.arange(len(pixels), dtype=np.uint64)
    sizes = np.tile(np.array(pixels.shape[1:3]), (len(pixels), 1))
    ops, *_ = pipeline.resolve(1, 0, keys, sizes)
    head, tail = head_and_tail(ops)
    for i, image in enumerate(pixels):
        mine = tuple(op.take(slice(i, i + 1)) for op in tail)
        ours = apply_tail(torch.from_numpy(np.array(_pixels(image, head, i)))[None], mine)
        start = torch.from_numpy(image.copy()).permute(2, 0, 1) if tensor else Image.fromarray(image)
        try:
            theirs = apply(start, ops, i)
        except Unknown:
            return {"why": "no function takes these draws"}
        if isinstance(theirs, Image.Image):
            theirs = torch.from_numpy(np.array(theirs)).permute(2, 0, 1)
        found += difference(ours, theirs[None], _one(ops, i), sizes[i : i + 1])
    return found.to_dict()


def _pixels(image: Any, head: tuple[Op, ...], i: int) -> Any:
    return apply_sample(Image.fromarray(image), head, i)


def _one(ops: tuple[Op, ...], i: int) -> tuple[Op, ...]:
    return tuple(op.take(slice(i, i + 1)) for op in ops)


# ---- the page


def page(result: dict[str, Any]) -> str:
    s = result["settings"]
    lines = [
        "# Transforms",
        "",
        "gpupipe's transforms have the names, arguments and meanings of `torchvision.transforms.v2`, and the same",
        "distributions. What a transform draws is a function of seed, epoch, sample and its own name, so both engines",
        "and every replay apply the same.",
        "",
        "## How far each transform is from torchvision",
        "",
        f"Measured on {s['samples']} photographs of {s['size']}x{s['size']} pixels, every transform with p=1, in gray",
        "levels of 0 to 255. The first four columns compare the DALI engine on the CPU with the reference. The next",
        "two compare the reference with torchvision on PIL images and on uint8 tensors, given the same draws. *On the",
        "host* lists the ops that CPU threads run instead of DALI. [promises.md](promises.md) bounds each op.",
        "",
        "| transform | images equal | max | mean | off by more than 1 | torchvision, PIL | torchvision, tensors "
        "| on the host | why DALI differs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in result["rows"].items():
        dali = row["dali/torch"]
        theirs = [r["why"] if "why" in r else _short(r) for r in (row["torch/pil"], row["torch/tensor"])]
        why = dali.get("why") or (reason(T.Compose(PAGE[name]), result) if dali["max"] > 0 else "")
        lines.append(f"| {' | '.join([f'`{name}`', *_cells(dali), *theirs, row['where'], why])} |")
    return "\n".join([*lines, "", NOTES])


def reason(pipeline: T.Compose, result: dict[str, Any]) -> str:
    """Return why DALI differs from the reference, without reasons of decoding, which has no part in this."""
    images, size = result["settings"]["samples"], result["settings"]["size"]
    keys, sizes = np.arange(images, dtype=np.uint64), np.full((images, 2), size)
    promised = tolerance("dali/torch", pipeline.resolve(1, 0, keys, sizes)[0])
    words = "" if promised is None else promised.reason
    return "; ".join(part for part in words.split("; ") if part not in TABLE[DECODE].tolerances[CPU].reason)


def _cells(d: dict[str, Any]) -> list[str]:
    if "why" in d:
        return ["", "", "", ""]
    if d["max"] == 0:
        return ["all", "0", "0", "0"]
    border = f", border {d['border']['max']:.3g}" if d["border"]["max"] > d["interior"]["max"] else ""
    return [
        f"{100 * d['equal']:.0f} %",
        f"{d['interior']['max']:.3g}{border}",
        f"{d['mean']:.2g}",
        f"{100 * d['over_1']:.2g} %",
    ]


def _short(d: dict[str, Any]) -> str:
    return "equal" if d["max"] == 0 else f"max {d['max']:.3g}, mean {d['mean']:.2g}"


NOTES = """\
`python benchmarks/transforms_table.py --write` writes this page.

## What differs from torchvision

- `ColorJitter` draws the order of its four changes for each image, as torchvision does.
- `Lambda` runs on the host in both engines. The function keeps kind, size and data type of the image.
- `MixUp` and `CutMix` run in torch on the batch, with their targets, equally in both engines.
"""


if __name__ == "__main__":
    main()
