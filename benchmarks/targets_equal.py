"""Do masks, boxes and keypoints follow their image as in torchvision, and what does that cost?

Prediction: no mask pixel differs in 2,000 random pipelines of crops, padding, resizes, flips, warps, windows of
`RandomIoUCrop`, canvases of `RandomZoomOut`, and `FixedSizeCrop`; boxes and keypoints are equal in float32 without
warps, and within 1e-3 pixels with them. A mask takes less time than with torchvision's functions, and 20 boxes take at
most a quarter.

Measured: gpupipe's numbers given to torchvision's v2 functionals, on `tv_tensors` and on PIL masks, in three formats of
boxes and all clamping modes. Times are medians of alternating rounds on one thread: crop, resize, flip of a mask of
480 x 640 pixels to 224 x 224, and of 20 boxes.

    python benchmarks/targets_equal.py      # writes results/targets_equal.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _common import Table, heading, save
from _target_pipelines import DETECTION, PLAIN, WARPS, F, Step, case, compare, tv_tensors

from gpupipe.kernels.moving import Moves
from gpupipe.transforms.ops import Crop, Flip, Resize


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pipelines", type=int, default=2000)
    p.add_argument("--rounds", type=int, default=300)
    args = p.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {**heading(__doc__, args), "differences": {}, "microseconds": {}}
    table = Table("pipelines", "mask pixels", "boxes", "keypoints", "with boxes")
    plain = PLAIN + DETECTION
    for name, steps in {"crop, pad, resize, flip, detection": plain, "with warps": plain + WARPS}.items():
        found = [compare(rng, case(rng, names=steps)) for rng in map(np.random.default_rng, range(args.pipelines))]
        row = result["differences"][name] = {
            "pipelines": len(found),
            "mask_pixels": sum(d.pixels for d in found),
            "boxes": max(d.boxes for d in found if d.boxes is not None),
            "keypoints": max(d.points for d in found if d.points is not None),
            "with_boxes": sum(d.boxes is not None for d in found),
        }
        table.row(name, row["mask_pixels"], row["boxes"], row["keypoints"], row["with_boxes"])
    table = Table("microseconds", "gpupipe", "torchvision", "ratio")
    for name, (ours, theirs) in works().items():
        times = alternating(ours, theirs, args.rounds)
        result["microseconds"][name] = dict(zip(("gpupipe", "torchvision"), times, strict=True))
        table.row(name, *times, times[1] / times[0])
    print(save("targets_equal", result))


def works() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """What is timed: gpupipe's work and torchvision's."""
    rng = np.random.default_rng(0)
    i32: Any = [np.array([n], np.int32) for n in (40, 60, 400, 500, 224)]
    steps = (
        Step(Crop(*i32[:4]), lambda x: F.crop(x, 40, 60, 400, 500)),
        Step(Resize(i32[4], i32[4]), lambda x: F.resize(x, [224, 224])),
        Step(Flip(np.ones(1, bool)), F.hflip),
    )
    ops = tuple(step.op for step in steps)

    def through(target: Any) -> Any:
        for step in steps:
            target = step.function(target)
        return target

    found: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for dtype in (np.uint8, np.int32):
        for count in (1, 20):
            mask = rng.integers(0, 250, (count, 480, 640)).astype(dtype)
            theirs = tv_tensors.Mask(torch.from_numpy(mask))
            found[f"{count} mask(s) of {np.dtype(dtype)}"] = (
                lambda mask=mask: Moves.of(ops, 0, (480, 640)).mask(mask),  # type: ignore[misc]
                lambda theirs=theirs: through(theirs),  # type: ignore[misc]
            )
    boxes = (np.sort(rng.uniform(0, 1, (20, 2, 2)), axis=1) * [640, 480]).reshape(-1, 4).astype(np.float32)
    theirs = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=(480, 640))
    found["20 boxes"] = (lambda: Moves.of(ops, 0, (480, 640)).boxes(boxes), lambda: through(theirs))
    return found


def alternating(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Median microseconds of both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for work, taken in zip((ours, theirs), times, strict=True):
            began = time.perf_counter()
            work()
            taken.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times[0]), statistics.median(times[1])


if __name__ == "__main__":
    main()
