"""How long a dataset of a hundred thousand videos takes to open, and how much memory of its own that needs.

    python benchmarks/video_index.py [--out benchmarks/results/video_index.json] [COUNT ...]

The folders are real, and of the files those that are looked at when the index is opened: an even sample. The index is
written by gpupipe's own writer from made-up videos of about 300 frames, four in five of a constant rate, so opening
does everything that it does for real files, with the folders and the sample in the page cache. Each measurement is a
fresh process: open and check, then the frames and crops of the first batch of 64 clips, then of 50 more. Memory is what
the process has for itself (USS, which counts pages of the mapped file that no other process has mapped yet).

``building`` says what probing one file costs: a real video made for it, its packets read and its first frame decoded.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import _common
import numpy as np

from gpupipe.codecs.coding import VideoCoding

COUNTS = (100_000,)
CLASSES = 400
BATCH = 64
OLD_NS = 1_500_000_000_000_000_000
REPEATS = 5


def synthesize(root: Path, count: int) -> dict[str, Any]:
    """Make the folders, the sampled files and the index; return facts about them."""
    from gpupipe import cache_folder as cache
    from gpupipe.codecs.video.probe import EXACT, VARIABLE, VideoProbe
    from gpupipe.datasets.index import open_index as build
    from gpupipe.datasets.index.column_file import write_columns
    from gpupipe.datasets.index.table import sampled_rows
    from gpupipe.datasets.index.video import VIDEOS
    from gpupipe.datasets.video.folder import VIDEO_EXTENSIONS
    from gpupipe.sources.base import Listing, Texts
    from gpupipe.sources.folder import Tree

    began = time.monotonic()
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(0, CLASSES, count))
    names = [f"{label:04}/{row:08}.mp4" for row, label in enumerate(labels.tolist())]
    blob = "".join(names).encode()
    file_size = rng.integers(200_000, 3_000_000, count)
    for name in {n[:4] for n in names}:
        (root / name).mkdir(parents=True)
    for i in sampled_rows(count).tolist():
        with open(root / names[i], "wb") as f:
            f.truncate(int(file_size[i]))
        os.utime(root / names[i], ns=(OLD_NS, OLD_NS))
    classes = sorted({n[:4] for n in names})
    for folder in ["", *classes]:
        os.utime(root / folder, ns=(OLD_NS, OLD_NS))
    listing = Listing(
        prefix=os.fsencode(os.path.join(root, "")),
        containers=Texts(blob, np.arange(count + 1, dtype=np.int64) * len(names[0])),
        labels=labels,
        container_size=file_size,
        mtime_ns=np.full(count, OLD_NS),
        status=np.zeros(count, np.uint8),
        reasons={},
        started_ns=time.time_ns(),
        classes=tuple(classes),
        folders=(b"", *map(os.fsencode, classes)),
        folder_mtime_ns=np.full(len(classes) + 1, OLD_NS),
    )
    probed: Any = VIDEOS.probed(listing)
    frames = rng.integers(150, 450, count).tolist()
    for i, n in enumerate(frames):
        steps = np.full(n, 512) if i % 5 else rng.integers(30, 40, n)
        pts = np.cumsum(steps) - steps[0]
        keys = np.array([(k, pts[k], 1000 * k) for k in range(0, n, 100)], np.int64)
        base, flags = ((1, 12800), EXACT) if i % 5 else ((1, 1000), EXACT | VARIABLE)
        probed.put(
            i,
            VideoProbe(
                status=0,
                height=240,
                width=320,
                coding=VideoCoding("h264", "yuv420p", "mov"),
                flags=flags,
                time_base=base,
                rate=(25, 1),
                duration=int(pts[-1] + steps[-1]),
                pts=array("q", pts.tolist()),
                keys=array("q", keys.ravel().tolist()),
            ),
        )
    path = cache.index_path(*VIDEOS.limits, *Tree(str(root), VIDEO_EXTENSIONS, "VideoFolder").key)
    with cache.locked(path), cache.replacing(path) as file:
        write_columns(file, *build.assemble(listing, probed))
    facts = {"frames": sum(frames), "index_bytes": os.path.getsize(path)}
    return {**facts, "made_in_s": round(time.monotonic() - began, 1)}


def measure(root: str) -> dict[str, Any]:
    """In a fresh process: open, plan an epoch, resolve its first plan, choose its frames."""
    from gpupipe.datasets import VideoFolder
    from gpupipe.pipelines import imagenet
    from gpupipe.planning.batches import Slices
    from gpupipe.planning.epoch import EpochPlan
    from gpupipe.planning.order import Shuffle
    from gpupipe.types import Shard

    pipeline = imagenet.train(112)
    before = _common.memory_mb(os.getpid())["uss"]
    t0 = time.perf_counter()
    ds = VideoFolder(root, 16, fps=12.5, transform=pipeline)
    t1 = time.perf_counter()
    n = len(ds)
    plans = EpochPlan(ds, pipeline, Shuffle(n, 0, 0), Slices(n, BATCH, Shard(), True), 0, 0)
    plan = plans[0]
    frames = ds.choose(0, 0, plan.keys, plan.indices)
    t2 = time.perf_counter()
    after = _common.memory_mb(os.getpid())["uss"]
    assert plan.ops and frames.shape == (BATCH, 16) and not ds._index.built, "the index was built, not opened"
    planned, chosen, entries = [], [], []
    for step in range(1, min(51, n // BATCH)):
        t = time.perf_counter()
        plan = plans[step]
        planned.append(time.perf_counter() - t)
        t = time.perf_counter()
        ds.choose(0, 0, plan.keys, plan.indices)
        chosen.append(time.perf_counter() - t)
        t = time.perf_counter()
        for i in plan.indices.tolist():
            ds.entry(i)
        entries.append(time.perf_counter() - t)
    return {
        "open_s": t1 - t0,
        "first_plan_s": t2 - t1,
        "open_and_first_plan_s": t2 - t0,
        "uss_growth_mb": after - before,
        f"plan_of_{BATCH}_ms": 1e3 * float(np.median(planned)),
        f"frames_of_{BATCH}_clips_us": 1e6 * float(np.median(chosen)),
        f"entries_of_{BATCH}_clips_us": 1e6 * float(np.median(entries)),
    }


def building(folder: Path) -> dict[str, Any]:
    """Compare probing one video of ten seconds with decoding all of it."""
    import av

    from gpupipe.codecs.video.probe import probe

    path = str(folder / "video.mp4")
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (60, 80, 3), np.uint8).repeat(4, 0).repeat(4, 1)
    with av.open(path, "w") as out:
        stream: Any = out.add_stream("libx264", rate=30, options={"g": "100"})
        stream.height, stream.width, stream.pix_fmt = 240, 320, "yuv420p"
        for k in range(300):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.roll(noise, 2 * k, 1), format="rgb24")))
        out.mux(stream.encode(None))
    probed, decoded = [], []
    for _ in range(REPEATS):
        t = time.perf_counter()
        assert len(probe(os.fsencode(path)).pts) == 300
        probed.append(time.perf_counter() - t)
        t = time.perf_counter()
        with av.open(path) as container:
            assert sum(1 for _ in container.decode(video=0)) == 300
        decoded.append(time.perf_counter() - t)
    seconds = {"probe_ms": 1e3 * float(np.median(probed)), "decode_all_ms": 1e3 * float(np.median(decoded))}
    return {"frames": 300, "height": 240, "width": 320, "bytes": os.path.getsize(path), **seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", nargs="*", type=int, default=COUNTS)
    parser.add_argument("--out", type=Path, default=_common.RESULTS / "video_index.json")
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        print(json.dumps(synthesize(Path(args.make[0]), int(args.make[1]))))
        return
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return

    def fresh(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, __file__, *arguments]
        result: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return result

    facts_of = {**_common.machine(), "pyav": importlib.metadata.version("av"), "load_before": os.getloadavg()[0]}
    report: dict[str, Any] = {"machine": facts_of, "results": []}
    for count in args.counts:
        with tempfile.TemporaryDirectory(prefix="gpupipe-video-index-") as folder:
            os.environ["GPUPIPE_CACHE"] = os.path.join(folder, "cache")
            root = os.path.join(folder, "data")
            facts = fresh("--make", root, str(count))
            runs = [fresh("--measure", root) for _ in range(REPEATS)]
            report["building"] = building(Path(folder))
        median = {k: round(float(np.median([r[k] for r in runs])), 4) for k in runs[0]}
        worst = {k: round(max(r[k] for r in runs), 4) for k in runs[0]}
        report["results"].append({"videos": count, "runs": REPEATS, **facts, "median": median, "worst": worst})
        print(json.dumps(report["results"][-1], indent=1))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
