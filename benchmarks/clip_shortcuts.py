"""What does each shortcut in decoding clips spare?

Prediction, in CPU time of a clip: leaving out pictures that nothing refers to spares a quarter of random clips, one
scaler for each thread a sixth, opening files without an analysis a twentieth. Draining the decoder spares little by
itself. Decoding clips in one pass spares nothing of random clips, and a quarter of three clips of one video. Cropping,
resizing and normalizing where a frame is decoded spares a third of what DALI's graph takes. All together a half.

Seen, on a busy machine: unreferenced pictures an eighth, the scaler a quarter, opening a thirtieth, and draining
nothing. One pass spares nothing either if groups of pictures are as short as these (75 frames, and clips 120 apart, so
that clips share hardly any). DALI's graph takes half as much again on random clips, and 1.7 times on others.

What no loader can spare is shown by frames that are decoded to RGB and thrown away. Prediction: three fifths of all.
Seen: half.

Measured: batches of 4 clips of 16 frames, 4 apart, as in ``video_clips.py``, in one process with one thread for
decoding. Each way takes its turn in every round, for a whole epoch. No pixel differs between them but by DALI's resize;
``tests/unit/test_video_shortcuts.py`` looks at that.

    python benchmarks/clip_shortcuts.py [--videos N] [--rounds N]

Writes results/clip_shortcuts.json.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from _clip_loaders import CLIPS, FRAMES, SIZE, STRIDE
from _common import Table, heading, save
from video_clips import make_videos

from gpupipe import datasets
from gpupipe.codecs.video.types import Shortcuts
from gpupipe.engines.dali.engine import DaliEngine
from gpupipe.engines.dali.executors import GraphAlone
from gpupipe.engines.dali.graph import DecoderOptions
from gpupipe.engines.dali.graph_end import graph_end
from gpupipe.engines.host.clip_frames import ClipBatches
from gpupipe.pipelines import kinetics
from gpupipe.planning.batches import Slices
from gpupipe.planning.epoch import EpochPlan
from gpupipe.planning.order import Sequential, Shuffle
from gpupipe.reading.clips import ClipReader, FrameTaker
from gpupipe.reading.setup import Setup
from gpupipe.types import Plan, Shard

BATCH = 4
NAMES = [f.name for f in fields(Shortcuts)]
GRAPH, ALONE = "all, and DALI's graph", "all, and frames thrown away"
WAYS: dict[str, Shortcuts] = {
    "all": Shortcuts(),
    **{f"without {name}": replace(Shortcuts(), **{name: False}) for name in NAMES},
    "none": Shortcuts(**dict.fromkeys(NAMES, False)),
    GRAPH: Shortcuts(),
    ALONE: Shortcuts(),
}


def setup_of(root: Path, workload: str) -> tuple[Setup, list[Plan]]:
    """Return the parts of a loader with one thread, and the plans of an epoch."""
    shuffled = workload == "random"
    clips: Any = {"stride": STRIDE, "transform": kinetics.train(SIZE) if shuffled else kinetics.val(SIZE)}
    if not shuffled:
        clips |= {"clips": CLIPS, "sampling": "uniform"}
    dataset = datasets.VideoFolder(root, FRAMES, **clips)
    n = len(dataset)
    slices = Slices(n, BATCH, Shard(), True)
    order = Shuffle(n, 0, 0) if shuffled else Sequential(n)
    return Setup(dataset, dataset.transform, "cpu", BATCH, 1), list(
        EpochPlan(dataset, dataset.transform, order, slices, 0, 0)
    )


class _Dropped(FrameTaker):
    media = ()

    def put(self, row: int, t: int, pixels: npt.NDArray[np.uint8]) -> None:
        """Ignore a frame."""


def epoch_of(setup: Setup, way: str) -> tuple[Callable[[list[Plan]], None], Callable[[], None]]:
    """(what runs an epoch, what ends it all)"""
    if way == GRAPH:
        end = graph_end(setup.pipeline.skeleton, whole=True)
        engine = DaliEngine(setup, DecoderOptions(), GraphAlone(setup, end))
        return lambda plans: [None for _ in engine.run(iter(plans))].clear(), engine.close
    batches = ClipBatches.of(setup)
    assert batches is not None
    taker = (lambda plan: _Dropped()) if way == ALONE else batches
    reader = ClipReader(setup, taker, shortcuts=WAYS[way])
    return lambda plans: [None for _ in reader.run(iter(plans))].clear(), reader.close


def measure(root: Path, workload: str, rounds: int) -> dict[str, Any]:
    setup, plans = setup_of(root, workload)
    clips = sum(len(plan) for plan in plans)
    ways = {name: epoch_of(setup, name) for name in WAYS}
    readings: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):  # the first one warms up
        for name, (run, _) in ways.items():
            began = time.process_time()
            run(plans)
            if round_:
                readings[name].append(1e3 * (time.process_time() - began) / clips)
    for _, close in ways.values():
        close()
    return {
        name: {
            "cpu_ms_per_clip": row,
            "median": statistics.median(row),
            "to_all": statistics.median(x / y for x, y in zip(row, readings["all"], strict=True)),
        }
        for name, row in readings.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=8, help="how many are made")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.videos < BATCH:
        parser.error(f"a batch has clips of {BATCH} videos")
    root = Path(tempfile.mkdtemp(prefix="gpupipe-video-"))
    try:
        make_videos(root, args.videos)
        result: dict[str, Any] = {
            **heading(__doc__, args),
        }
        for workload in ("random", "sequential"):
            result[workload] = measure(root, workload, args.rounds)
            shown = Table(workload, "CPU ms/clip", "to all")
            for name, row in result[workload].items():
                shown.row(name, row["median"], row["to_all"])
        print(save("clip_shortcuts", result))
    finally:
        shutil.rmtree(root, ignore_errors=True)  # a folder of our own, made above


if __name__ == "__main__":
    main()
