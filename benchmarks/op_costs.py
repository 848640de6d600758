"""What does each op cost on a CPU, in DALI's graph and image by image on the host?

Prediction: DALI is cheaper where it computes in one pass what Pillow does in several (contrast, blur, JPEG), and the
host where it has vector instructions for bytes and DALI computes in floats (resize, warps, histograms).

Measured: photographs of 224 x 224 pixels, in CPU milliseconds of one thread per image, the least of several rounds:
DALI's graph with the op, less one without; and the forms of :mod:`gpupipe.kernels`. Beside them how far both are
from the reference on these photographs, and the costs by which a CPU's graph ends now.

    python benchmarks/op_costs.py [FOLDER]            # writes results/op_costs.json
    python benchmarks/op_costs.py --write             # and then the costs that gpupipe uses, out of that file
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import IMAGES, Table, describe_files, heading, load, photographs, save
from PIL import Image

from gpupipe import transforms as T
from gpupipe.engines.dali import lowering
from gpupipe.engines.dali.graph import MEDIA, DecoderOptions, build_graph
from gpupipe.engines.dali.graph_end import GraphEnd
from gpupipe.engines.dali.lowering import LOWERINGS, lacks
from gpupipe.engines.dali.lowering.registry import COSTS
from gpupipe.kernels.apply import apply_batch, apply_sample, head_and_tail
from gpupipe.kernels.picture import chw
from gpupipe.kernels.registry import FAST_FORMS, FORMS
from gpupipe.reading.reader import Feed
from gpupipe.transforms.ops import Op

MEASURES = ("gpupipe/engines/dali/lowering", "gpupipe/kernels")
SIDE = 224
COSTS_FILE = Path(lowering.__file__).with_name("costs.json")
VARIANTS = ("Resize, bicubic", "Warp, nearest")
"""Cases that are measured in addition to the one by which the graph ends."""

CASES: dict[str, T.Transform | T.Compose] = {
    "Crop": T.RandomCrop(192, padding=8),
    "Resize": T.Resize((225, 225)),
    "Resize, bicubic": T.Resize((225, 225), "bicubic"),
    "Flip": T.RandomHorizontalFlip(1.0),
    "Gray": T.Grayscale(3),
    "Brightness": T.ColorJitter(brightness=0.4),
    "Contrast": T.ColorJitter(contrast=0.4),
    "Saturation": T.ColorJitter(saturation=0.4),
    "Hue": T.ColorJitter(hue=0.1),
    "ChannelPermutation": T.RandomPhotometricDistort((1, 1), (1, 1), (1, 1), (0, 0), 1.0),
    "Invert": T.RandomInvert(1.0),
    "Posterize": T.RandomPosterize(4, 1.0),
    "Solarize": T.RandomSolarize(128, 1.0),
    "Sharpness": T.RandomAdjustSharpness(2, 1.0),
    "AutoContrast": T.RandomAutocontrast(1.0),
    "Equalize": T.RandomEqualize(1.0),
    "Blur, 23 pixels": T.GaussianBlur(23),
    "Warp, nearest": T.RandomRotation(30),
    "Warp, bilinear": T.RandomAffine(15, (0.1, 0.1), (0.9, 1.1), 10, "bilinear"),
    "Perspective": T.RandomPerspective(p=1.0),
    "ToDtype and Normalize": T.Compose([T.ToTensor(), T.Normalize((0.5,), (0.25,))]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES if IMAGES.is_dir() else None)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="only copy the costs of the last run to gpupipe")
    args = parser.parse_args()
    if args.write:
        write(load("op_costs")["rows"])
        return
    torch.set_num_threads(1)
    with photographs(args.folder, count=32) as paths:
        pixels = [_square(path) for path in paths[:32]]
        result: dict[str, Any] = {
            **heading(__doc__, {"images": len(pixels), "size": SIDE, "rounds": args.rounds}),
            "files": describe_files(paths),
            "rows": {},
        }
    nothing, _ = in_graph(pixels, T.Compose([]), args.rounds)
    table = Table("op", "DALI", "host", "of tensors: DALI", "host", "used: DALI", "host", "of tensors", first=26)
    for name, step in CASES.items():
        row: dict[str, Any] = {}
        for kind, before in (("pil", []), ("tensor", [T.PILToTensor()])):
            steps = [*step] if isinstance(step, T.Compose) else [*before, step]
            pipeline = T.Compose(steps)
            has_it = not any(lacks(op, False) for op in pipeline.skeleton)
            host, by_host = on_host(pixels, pipeline, args.rounds)
            row[kind] = {"dali": None, "host": host, "host_apart": apart(by_host, pixels, pipeline, args.rounds - 1)}
            if has_it:
                dali, by_dali = in_graph(pixels, pipeline, args.rounds)
                row[kind] |= {"dali": dali - nothing, "dali_apart": apart(by_dali, pixels, pipeline, args.rounds - 1)}
        found = [LOWERINGS[type(op)].cost for op in T.Compose([step]).skeleton if type(op) in LOWERINGS]
        row["used"] = [sum(cost[k] for cost in found) for k in range(3)]
        result["rows"][name] = row
        cells = [row[kind][who] for kind in ("pil", "tensor") for who in ("dali", "host")]
        table.row(name, *("none" if cell is None else f"{cell:.2f}" for cell in [*cells, *row["used"]]))
    print(save("op_costs", result))


def write(rows: dict[str, Any]) -> None:
    """Replace the costs of every op with a case. Two digits suffice, because a machine's noise is 15 %."""
    costs = dict(COSTS)
    for name, row in rows.items():
        op = name.partition(",")[0]
        if op not in costs or row["pil"]["dali"] is None or name in VARIANTS:
            continue
        measured = row["pil"]["dali"], row["pil"]["host"], row["tensor"]["host"]
        costs[op] = [max(float(f"{cost:.2g}"), 0.01) for cost in measured]
    lines = (f"  {json.dumps(op)}: {json.dumps(cost)}" for op, cost in sorted(costs.items()))
    COSTS_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _square(path: str) -> Any:
    with Image.open(path) as file:
        return np.array(file.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def _ops(pixels: list[Any], pipeline: T.Compose, epoch: int) -> tuple[Op, ...]:
    keys, sizes = np.arange(len(pixels), dtype=np.uint64), np.tile([SIDE, SIDE], (len(pixels), 1))
    return pipeline.resolve(1, epoch, keys, sizes)[0]


def apart(images: list[Any], pixels: list[Any], pipeline: T.Compose, epoch: int) -> int | None:
    """Gray levels between what an engine made in that round and the reference, at most; ``None`` of floats."""
    if images[0].dtype != np.uint8:
        return None
    ops = _ops(pixels, pipeline, epoch)
    found = 0
    for row, (image, given) in enumerate(zip(images, pixels, strict=True)):
        want: Any = apply_sample(Image.fromarray(given), ops, row)
        image = image if image.shape == want.shape else image.transpose(1, 2, 0)  # CHW
        found = max(found, int(np.abs(image.astype(int) - want).max()))
    return found


def in_graph(pixels: list[Any], pipeline: T.Compose, rounds: int) -> tuple[float, list[Any]]:
    """CPU milliseconds per image, feeding included, and the images of the last round."""
    graph = build_graph(
        pipeline,
        end=GraphEnd(len(pipeline.skeleton)),
        feed=Feed("pixels"),
        decoder=DecoderOptions(),
        batch_size=len(pixels),
        num_threads=1,
        prefetch=1,
        device_id=None,
    )
    graph.pipe.build()
    best = float("inf")
    for epoch in range(rounds):
        ops = _ops(pixels, pipeline, epoch)
        began = time.process_time()
        graph.pipe.feed_input(MEDIA, pixels)
        for one in graph.inputs:
            array = one.array(ops)
            if one.name:
                graph.pipe.feed_input(one.name, array)
        graph.pipe._run_once()
        images, *_ = graph.pipe.outputs()
        best = min(best, time.process_time() - began)
    return best / len(pixels) * 1e3, [np.array(image) for image in images]


def on_host(pixels: list[Any], pipeline: T.Compose, rounds: int) -> tuple[float, list[Any]]:
    """Measure the forms of the host."""
    forms, best = {**FORMS, **FAST_FORMS}, float("inf")
    for epoch in range(rounds):
        head, tail = head_and_tail(_ops(pixels, pipeline, epoch))
        made: list[Any] = []
        began = time.thread_time()
        for row, image in enumerate(pixels):
            made.append(apply_sample(image, head, row, forms))
            if tail:
                made[-1] = apply_batch(chw(made[-1])[None], tail, "contiguous_format")[0].numpy()
        best = min(best, time.thread_time() - began)
    return best / len(pixels) * 1e3, made


if __name__ == "__main__":
    main()
