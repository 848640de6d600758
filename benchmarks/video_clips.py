"""How many clips of 16 frames per second does each way of loading videos give?

Prediction: on the CPU gpupipe's DALI engine, which leaves out pictures that nothing refers to, opens files without an
analysis, decodes clips of one video in one pass, and crops, resizes and normalizes in the decoding thread, has 1.5
times the clips per second of the best other loader on random clips, and 2.4 times on clips one after another. The
reference engine, which decodes the same way and leaves the rest to Pillow and torch, about as many as the others.

Seen, three rounds on a machine with four times as much to do as it has cores: 1.8 times PyAV by CPU time on both; by
wall clock 1.8 and 0.9. On such a machine the wall clock measures who is given the cores. On another one, as busy, both
decoding threads worked or waited for a core, and slept for no more than 5 % of the time on either workload, while the
loader with PyAV was given half as much again of the machine. So look at the busy cores beside the clips per second: on
an idle machine they should be the number of workers, for all.

Seen on a quiet machine, to the best other loader: of made videos, with a key frame every 75 frames, 1.7 to 2.2 on
random clips and 1.9 to 2.2 on those one after another; of recorded ones, most of 50 to 110 frames with one key frame,
1.5 to 1.7 and 2.8 to 3.0, because the others decode the way to a clip again for every clip.

Measured: two workloads, each candidate in a process of its own, in turns within one run (see ``_candidates.py``).

    random       one clip of every video from anywhere, shuffled: RandomResizedCrop(224), flip, normalize
    sequential   three clips of every video, evenly spread, in order: Resize(256), CenterCrop(224), normalize

A clip is 16 frames, 4 apart; batches are f32[B, 3, 16, 224, 224] on the CPU. All decoders have one thread each, in two
workers. The plain loaders are what their documentation shows: a dataset that opens the file, takes the frames of the
clip, and applies torchvision's v2 transforms to the whole clip. PyAV there seeks to the key frame before and decodes
forward. Judge the ratios, which are made within a round: clips per second move with the machine.

With ``--device cuda`` batches are on the GPU, and the candidates others: gpupipe with PyAV, gpupipe with NVDEC, and
torchcodec's CUDA decoder with torchvision's transforms there.

    python benchmarks/video_clips.py [FOLDER] [--rounds N] [--seconds N] [--device cuda]

``FOLDER`` holds one folder of videos per class; if they are few, each is taken several times, because at the end of
short epochs torch's loader runs empty. Without it, H.264 videos of 300 frames are made. Writes
results/video_clips_<cpu|gpu>.json, or of a folder results/recorded_clips_<cpu|gpu>.json.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _candidates import Candidate, Reading, ratio, rounds, summary
from _clip_loaders import Job, Work, Workload
from _common import Table, heading, import_torchvision, result_name, save

MEASURES = (
    "benchmarks/_clip_loaders.py", "gpupipe/codecs/video", "gpupipe/engines", "gpupipe/kernels", "gpupipe/reading",
)  # fmt: skip
OURS = "gpupipe, DALI engine"
_TORCHCODEC = ("torchcodec.decoders", "torchvision")
NVDEC, TORCHCODEC = "gpupipe, NVDEC", "torchcodec on the GPU"
JOBS = {
    "cpu": [
        Job(OURS, "gpupipe-dali", ("nvidia.dali",)),
        Job("gpupipe, reference engine", "gpupipe-torch", ("torch",)),
        Job("torch DataLoader + PyAV", "pyav", ("av", "torchvision")),
        Job("torch DataLoader + torchcodec", "torchcodec", _TORCHCODEC),
        Job("torch DataLoader + torchcodec, approximate", "torchcodec-approximate", _TORCHCODEC),
        Job("torch DataLoader + decord", "decord", ("decord", "torchvision")),
    ],
    "cuda": [
        Job(OURS, "gpupipe-dali", ("nvidia.dali",)),
        Job(NVDEC, "gpupipe-nvdec", ("nvidia.dali",)),
        Job(TORCHCODEC, "torchcodec-gpu", _TORCHCODEC),
    ],
}
BASE = {"cpu": "torch DataLoader + PyAV", "cuda": OURS}
"""Decoded by PyAV."""


def make_videos(root: Path, count: int) -> None:
    """H.264 videos of 300 frames of 288x384 pixels, with x264's own choice of key frames: photographs that move."""
    import av

    from gpupipe.testing.photos import photograph

    for i in range(count):
        path = root / f"class{i % 4}" / f"{i:03d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = photograph(288, 384, i)
        with av.open(str(path), "w") as out:
            stream: Any = out.add_stream("libx264", rate=30, options={"preset": "veryfast"})
            stream.height, stream.width, stream.pix_fmt = 288, 384, "yuv420p"
            for k in range(300):
                if k % 90 == 0:  # a cut
                    picture = photograph(288, 384, 1000 * k + i)
                moved = np.ascontiguousarray(np.roll(picture, (k, 2 * k), (0, 1)))
                out.mux(stream.encode(av.VideoFrame.from_ndarray(moved, format="rgb24")))
            out.mux(stream.encode(None))


def link_videos(root: Path, folder: Path, count: int) -> None:
    """At least ``count`` names for the videos of ``folder``, by class."""
    found = sorted(path for path in folder.glob("*/*") if path.is_file())
    for i in range(-(-count // len(found)) * len(found)):
        path = found[i % len(found)]
        link = root / path.parent.name / f"{i:03d}{path.suffix}"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(path.absolute())


def missing(job: Job) -> str | None:
    """Why a candidate cannot take part."""
    for module in job.needs:
        try:
            import_torchvision() if module == "torchvision" else importlib.import_module(module)
        except Exception as e:  # a library for another build of torch fails with anything
            return f"{type(e).__name__}: {str(e).strip().splitlines()[0][:200]}"
    return None


def describe(root: str) -> dict[str, Any]:
    from gpupipe.datasets import VideoFolder

    index = VideoFolder(root)
    sizes = index.sizes.tolist()
    return {
        "videos": len(index),
        "frames": {"mean": float(index.frame_counts.mean()), "least": int(index.frame_counts.min())},
        "sizes": sorted({f"{h}x{w}" for h, w in sizes}),
        "codings": sorted({str(index.video_codings[1][c]) for c in index.video_codings[0].tolist()}),
        "frames_between_entries": float(
            np.mean([len(index.entry(i).pts) / max(len(index.entry(i).keys), 1) for i in range(len(index))])
        ),
    }


def measure(args: argparse.Namespace, root: str, jobs: list[Job], workload: Workload) -> dict[str, Any]:
    work = Work(root, workload, args.batch_size, args.workers, args.device)
    candidates: list[Candidate] = []
    try:
        for job in jobs:
            try:
                candidates.append(Candidate(job, work))  # type: ignore[arg-type]
            except RuntimeError as e:  # one that a machine cannot run must not end the others
                print(f"{workload}: {job.name}: failed: {str(e).strip().splitlines()[-1]}", flush=True)
                continue
            print(f"{workload}: {job.name}: first batch after {candidates[-1].start_seconds:.1f} s", flush=True)
        readings: dict[str, list[Reading]] = {c.job.name: [] for c in candidates}
        for done in rounds(candidates, args.rounds, args.seconds):
            for name, reading in done.items():
                readings[name].append(reading)
        found: dict[str, Any] = {}
        speed = {name: [r.images_per_second for r in rows] for name, rows in readings.items()}
        costs = {name: [r.images / r.cpu_seconds for r in rows] for name, rows in readings.items()}
        for candidate in candidates:
            name = candidate.job.name
            row = summary(candidate, readings[name])
            row = {key.replace("images", "clips").replace("image", "clip"): value for key, value in row.items()}
            found[name] = row
            base = BASE[args.device]
            if base in speed:
                row["to_pyav"] = ratio(speed[name], speed[base])
                row["to_pyav_by_cpu_time"] = ratio(costs[name], costs[base])
        return found
    finally:
        for candidate in candidates:
            candidate.close()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", nargs="?", type=Path)
    p.add_argument("--videos", type=int, default=24, help="how many are made, or taken at least")
    p.add_argument("--batch-size", type=int, default=4)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=5)
    p.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    p.add_argument("--dry-run", action="store_true", help="one short round of few videos; no result is kept")
    args = p.parse_args()
    if args.dry_run:
        args.videos, args.rounds, args.seconds = 4, 1, 0.5
    name = result_name("recorded_clips" if args.folder else "video_clips", args)
    with tempfile.TemporaryDirectory(prefix="gpupipe-video-") as root:
        if args.folder:
            link_videos(Path(root), args.folder, args.videos)
        else:
            make_videos(Path(root), args.videos)
        left_out = {job.name: why for job in JOBS[args.device] if (why := missing(job)) is not None}
        for which, why in left_out.items():
            print(f"left out: {which}: {why}", flush=True)
        jobs = [job for job in JOBS[args.device] if job.name not in left_out]
        result: dict[str, Any] = {
            **heading(__doc__, args),
            "versions": {name: version(name) for name in ("av", "torchcodec", "decord", "torchvision")},
            "files": {"made": not args.folder, **describe(root)},
            "left_out": left_out,
        }
        for workload in ("random", "sequential"):
            result[workload] = measure(args, root, jobs, workload)
            path = save(name, result)
            show(workload, result[workload])
        print(path)


def version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def show(workload: str, rows: dict[str, Any]) -> None:
    table = Table(workload, "clips/s", "x PyAV", "by CPU time", "CPU ms/clip", "busy cores", "PSS MB")
    for name, row in rows.items():
        table.row(
            name,
            *(
                _middle(row.get(key))
                for key in (
                    "median_clips_per_second",
                    "to_pyav",
                    "to_pyav_by_cpu_time",
                    "cpu_ms_per_clip",
                    "busy_cores",
                    "pss_mb",
                )
            ),
        )


def _middle(value: Any) -> Any:
    return value.get("median", value) if isinstance(value, dict) else value


if __name__ == "__main__":
    main()
