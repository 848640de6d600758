"""How long a dataset of 10 thousand to 14 million images takes to open, and how much memory of its own that needs.

    python benchmarks/index_scale.py [COUNT ...]

The folders are real, and of the files those that are looked at when the index is opened: an even sample. The index is
written by gpupipe's own writer from made-up sizes, so opening does everything that it does for real files, with the
folders and the sample in the page cache. Each measurement is a fresh process; memory is what the process has for
itself (USS) and, of that, what it wrote (private dirty). ``verify_s``, which is part of ``open_s``, is the check of
every byte of the index against its sum; ``verify_cpu_s`` is the same on a machine that does something else, too.

Predicted for 14 million images, whose index has 1.1 GB: 0.13 s for the check, because reading takes 0.04 s and XXH3
over blocks of 4 KiB, with a Python call for each, 0.05 s; and memory for labels and offsets, 114 MB each, which
processes that are forked share, and others do not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import heading, save

MEASURES = ("gpupipe/datasets/index", "gpupipe/planning", "gpupipe/sources")
COUNTS = (10_000, 100_000, 1_281_167, 14_197_122)  # the last ones: ImageNet-1k and all of ImageNet
CLASSES = {1_281_167: 1_000, 14_197_122: 21_841}
OLD_NS = 1_500_000_000_000_000_000
REPEATS = 5


def synthesize(root: Path, count: int, classes: int) -> dict[str, Any]:
    """Make the folders, the sampled files and the index; return facts about them."""
    from gpupipe import cache_folder as cache
    from gpupipe.datasets import folder
    from gpupipe.datasets.index import open_index as build
    from gpupipe.datasets.index.column_file import write_columns
    from gpupipe.datasets.index.table import sampled_rows
    from gpupipe.sources.base import Listing, Texts
    from gpupipe.sources.folder import Tree

    began = time.monotonic()
    rng = np.random.default_rng(0)
    names = [f"n{i:08}" for i in range(classes)]
    labels = np.sort(rng.integers(0, classes, count))
    width = len("n00000000/n00000000_00000000.JPEG")
    rows = np.arange(count)
    blob = np.empty((count, width), np.uint8)
    blob[:] = np.frombuffer(b"n00000000/n00000000_00000000.JPEG", np.uint8)
    for k in range(8):
        digit = (labels // 10 ** (7 - k) % 10 + ord("0")).astype(np.uint8)
        blob[:, 1 + k] = digit
        blob[:, 11 + k] = digit
        blob[:, 20 + k] = (rows // 10 ** (7 - k) % 10 + ord("0")).astype(np.uint8)
    file_size = rng.integers(20_000, 200_000, count)
    prefix = os.fsencode(os.path.join(root, ""))
    for name in names:
        (root / name).mkdir(parents=True)
    for i in sampled_rows(count).tolist():
        path = prefix + blob[i].tobytes()
        with open(path, "wb") as f:
            f.truncate(int(file_size[i]))
        os.utime(path, ns=(OLD_NS, OLD_NS))
    for name in ["", *names]:
        os.utime(root / name, ns=(OLD_NS, OLD_NS))
    listing = Listing(
        prefix=prefix,
        containers=Texts(blob.tobytes(), np.arange(count + 1, dtype=np.int64) * width),
        labels=labels,
        container_size=file_size,
        mtime_ns=np.full(count, OLD_NS),
        status=np.zeros(count, np.uint8),
        reasons={},
        started_ns=time.time_ns(),
        classes=tuple(names),
        folders=(b"", *(os.fsencode(n) for n in names)),
        folder_mtime_ns=np.full(classes + 1, OLD_NS),
    )
    probed = build.Probed(listing)
    probed.sizes[:] = rng.integers(200, 700, (count, 2))
    path = build.index_path(Tree(str(root), folder.IMG_EXTENSIONS))
    with cache.locked(path), cache.replacing(path) as file:
        write_columns(file, *build.assemble(listing, probed))
    return {"index_bytes": os.path.getsize(path), "made_in_s": round(time.monotonic() - began, 1)}


def measure(root: str) -> dict[str, Any]:
    """In a fresh process: open, plan an epoch, resolve its first plan."""
    import psutil

    from gpupipe.datasets import ImageFolder
    from gpupipe.datasets.index.column_file import Columns
    from gpupipe.pipelines import imagenet
    from gpupipe.planning.batches import Slices
    from gpupipe.planning.epoch import EpochPlan
    from gpupipe.planning.order import Shuffle
    from gpupipe.types import Shard

    process = psutil.Process()

    def memory() -> tuple[int, int]:
        maps = process.memory_maps()
        return process.memory_full_info().uss, sum(m.private_dirty for m in maps)

    pipeline = imagenet.train(224)
    memory()
    uss, dirty = memory()
    t0 = time.perf_counter()
    ds = ImageFolder(root, pipeline)
    t1 = time.perf_counter()
    n = len(ds)
    plans = EpochPlan(ds, pipeline, Shuffle(n, 0, 0), Slices(n, 256, Shard(), True), 0, 0)
    first = plans[0]
    t2 = time.perf_counter()
    after = memory()
    assert first.ops and not ds._index.built, "the index was built, not opened"
    times, path_times = [], []
    for step in range(1, min(51, n // 256)):
        t = time.perf_counter()
        plan = plans[step]
        times.append(time.perf_counter() - t)
        t = time.perf_counter()
        ds.encoded_paths(plan.indices)
        ds.bad(plan.indices)
        path_times.append(time.perf_counter() - t)
    later = memory()
    path = ds.index_summary().path
    assert path is not None
    t, cpu = time.perf_counter(), time.process_time()
    Columns.open(path)
    verified, verified_cpu = time.perf_counter() - t, time.process_time() - cpu
    return {
        "verify_s": verified,
        "verify_cpu_s": verified_cpu,
        "open_s": t1 - t0,
        "first_plan_s": t2 - t1,
        "open_and_first_plan_s": t2 - t0,
        "uss_growth_mb": (after[0] - uss) / 1e6,
        "private_dirty_growth_mb": (after[1] - dirty) / 1e6,
        "uss_growth_after_50_plans_mb": (later[0] - uss) / 1e6,
        "plan_of_256_ms": 1e3 * float(np.median(times)),
        "paths_and_bad_of_256_us": 1e6 * float(np.median(path_times)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("counts", nargs="*", type=int, default=COUNTS)
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        print(json.dumps(synthesize(Path(args.make[0]), int(args.make[1]), int(args.make[2]))))
        return
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return

    def fresh(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, __file__, *arguments]
        result: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return result

    about = {**heading(__doc__, {"counts": args.counts}), "load_before": os.getloadavg()[0]}
    report: dict[str, Any] = {**about, "results": []}
    for count in args.counts:
        with tempfile.TemporaryDirectory(prefix="gpupipe-index-scale-") as folder:
            os.environ["GPUPIPE_CACHE"] = os.path.join(folder, "cache")
            root, classes = os.path.join(folder, "data"), CLASSES.get(count, 1_000)
            facts = fresh("--make", root, str(count), str(classes))
            runs = [fresh("--measure", root) for _ in range(REPEATS)]
        median = {k: round(float(np.median([r[k] for r in runs])), 4) for k in runs[0]}
        worst = {k: round(max(r[k] for r in runs), 4) for k in runs[0]}
        report["results"].append(
            {"samples": count, "folders": classes, "runs": REPEATS, **facts, "median": median, "worst": worst}
        )
        print(json.dumps(report["results"][-1], indent=1))
    print(save("index_scale", report))


if __name__ == "__main__":
    main()
