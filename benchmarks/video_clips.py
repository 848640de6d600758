"""How many clips of 16 frames per second does each way of loading videos give?

Prediction: decoding is most of the work, and FFmpeg does it for all, so gpupipe's engines are as fast as PyAV,
torchcodec and decord in torch's DataLoader where all have to decode the same frames. What can differ is how many
frames are decoded that nobody asked for, and what is done to the frames afterwards.

Measured: two workloads, each candidate in a process of its own, in turns within one run (see ``_candidates.py``).

    random       one clip of every video from anywhere, shuffled: RandomResizedCrop(224), flip, normalise
    sequential   three clips of every video, evenly spread, in order: Resize(256), CenterCrop(224), normalise

A clip is 16 frames, 4 apart; batches are f32[B, 3, 16, 224, 224] on the CPU. All decoders have one thread each, in two
workers. The plain loaders are what their documentation shows: a dataset that opens the file, takes the frames of the
clip, and applies torchvision's v2 transforms to the whole clip. PyAV there seeks to the key frame before and decodes
forward. Judge the ratios, which are made within a round: clips per second move with the machine.

    python benchmarks/video_clips.py [FOLDER] [--rounds N] [--seconds N]

``FOLDER`` holds one folder of videos per class. Without it, H.264 videos of 300 frames are made. Writes
results/video_clips_cpu.json.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from _candidates import Batches, Candidate, Reading, ratio, rounds, summary
from _common import Table, import_torchvision, machine, save
from torch import Tensor

FRAMES, STRIDE, SIZE = 16, 4, 224
SPAN = (FRAMES - 1) * STRIDE + 1
CLIPS = 3
OURS = "gpupipe, DALI engine"
Workload = Literal["random", "sequential"]


@dataclass(frozen=True)
class Work:
    """What all candidates share."""

    root: str
    workload: Workload
    batch_size: int
    workers: int = 2
    device: str = "cpu"


@dataclass(frozen=True)
class Job:
    """One candidate."""

    name: str
    loader: str
    needs: str
    """The module that it cannot do without."""
    prefetch: int | None = None
    workers: int | None = None

    def batches(self, work: Work) -> Batches:
        """Batches without end: (f32[B, 3, 16, 224, 224], i64[B])."""
        return (_gpupipe if self.loader.startswith("gpupipe") else _plain)(self, work)


JOBS = [
    Job(OURS, "gpupipe-dali", "nvidia.dali"),
    Job("gpupipe, reference engine", "gpupipe-torch", "torch"),
    Job("torch DataLoader + PyAV", "pyav", "av"),
    Job("torch DataLoader + torchcodec", "torchcodec", "torchcodec.decoders"),
    Job("torch DataLoader + torchcodec, approximate", "torchcodec-approximate", "torchcodec.decoders"),
    Job("torch DataLoader + decord", "decord", "decord"),
]
BASE = "torch DataLoader + PyAV"


def _gpupipe(job: Job, work: Work) -> Batches:
    from gpupipe import DataLoader, datasets
    from gpupipe.pipelines import kinetics

    if work.workload == "random":
        dataset = datasets.VideoFolder(work.root, FRAMES, stride=STRIDE, transform=kinetics.train(SIZE))
    else:
        dataset = datasets.VideoFolder(
            work.root, FRAMES, stride=STRIDE, clips=CLIPS, sampling="uniform", transform=kinetics.val(SIZE)
        )
    engine: Any = job.loader.removeprefix("gpupipe-")
    loader = DataLoader(
        dataset, work.batch_size, work.workload == "random", num_workers=work.workers, drop_last=True, seed=0,
        engine=engine, device="cpu",
    )  # fmt: skip
    while True:
        yield from loader


# ---- what a careful user writes


def _by_pyav(path: str, start: int) -> Tensor:
    import av

    wanted = range(start, start + SPAN, STRIDE)
    found: list[Any] = []
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        rate, base, first = stream.average_rate, stream.time_base, stream.start_time or 0
        if start:
            container.seek(first + int(start / rate / base), stream=stream)
        for frame in container.decode(stream):
            number = round((frame.pts - first) * base * rate)
            if number >= start and (number - start) % STRIDE == 0:
                found.append(frame.to_ndarray(format="rgb24"))
            if number >= wanted[-1]:
                break
    found += found[-1:] * (FRAMES - len(found))
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2)


def _by_torchcodec(path: str, start: int, mode: Any = "exact") -> Tensor:
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, num_ffmpeg_threads=1, seek_mode=mode)
    last = len(decoder) - 1
    frames: Tensor = decoder.get_frames_at([min(start + k * STRIDE, last) for k in range(FRAMES)]).data
    return frames


def _by_decord(path: str, start: int) -> Tensor:
    import decord

    reader = decord.VideoReader(path, num_threads=1)
    frames = reader.get_batch([min(start + k * STRIDE, len(reader) - 1) for k in range(FRAMES)])
    return torch.from_numpy(frames.asnumpy()).permute(0, 3, 1, 2)


_DECODERS: dict[str, Any] = {
    "pyav": _by_pyav,
    "torchcodec": _by_torchcodec,
    "torchcodec-approximate": lambda path, start: _by_torchcodec(path, start, "approximate"),
    "decord": _by_decord,
}


class _Clips(torch.utils.data.Dataset[Any]):
    def __init__(self, work: Work, decoder: str):
        from gpupipe.datasets import VideoFolder

        import_torchvision()
        from torchvision.transforms import v2

        # Only for labels and numbers of frames, which such a script would keep in a list.
        index = VideoFolder(work.root)
        self._paths = [index.entry(i).path for i in range(len(index))]
        self._labels, self._counts = np.asarray(index.labels).tolist(), index.frame_counts.tolist()
        self._random, self._decoder = work.workload == "random", decoder
        window = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
        centre = [v2.Resize(256, antialias=True), v2.CenterCrop(SIZE)]
        from gpupipe.pipelines.kinetics import MEAN, STD

        end = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        self._transform = v2.Compose([*(window if self._random else centre), *end])

    def __len__(self) -> int:
        return len(self._paths) * (1 if self._random else CLIPS)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        video, clip = (i, 0) if self._random else divmod(i, CLIPS)
        places = max(self._counts[video] - SPAN, 0) + 1
        start = int(torch.randint(places, ())) if self._random else round(clip * (places - 1) / (CLIPS - 1))
        frames = _DECODERS[self._decoder](self._paths[video], start)
        return self._transform(frames).transpose(0, 1).contiguous(), self._labels[video]


def _plain(job: Job, work: Work) -> Batches:
    loader = torch.utils.data.DataLoader(
        _Clips(work, job.loader), work.batch_size, work.workload == "random", num_workers=work.workers,
        drop_last=True, persistent_workers=True,
    )  # fmt: skip
    while True:
        yield from loader


# ---- measuring


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


def missing(job: Job) -> str | None:
    """Why a candidate cannot take part."""
    try:
        importlib.import_module(job.needs)
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
        "codings": sorted({index.codings[1][c] for c in index.codings[0].tolist()}),
        "frames_between_entries": float(
            np.mean([len(index.entry(i).pts) / max(len(index.entry(i).keys), 1) for i in range(len(index))])
        ),
    }


def measure(args: argparse.Namespace, root: str, jobs: list[Job], workload: Workload) -> dict[str, Any]:
    work = Work(root, workload, args.batch_size, args.workers)
    candidates: list[Candidate] = []
    try:
        for job in jobs:
            candidates.append(Candidate(job, work))  # type: ignore[arg-type]
            print(f"{workload}: {job.name}: first batch after {candidates[-1].start_seconds:.1f} s", flush=True)
        readings: dict[str, list[Reading]] = {job.name: [] for job in jobs}
        for done in rounds(candidates, args.rounds, args.seconds):
            for name, reading in done.items():
                readings[name].append(reading)
        found: dict[str, Any] = {}
        speed = {name: [r.images_per_second for r in rows] for name, rows in readings.items()}
        for candidate in candidates:
            name = candidate.job.name
            row = summary(candidate, readings[name])
            row = {key.replace("images", "clips").replace("image", "clip"): value for key, value in row.items()}
            found[name] = {**row, "to_pyav": ratio(speed[name], speed[BASE])}
        return found
    finally:
        for candidate in candidates:
            candidate.close()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", nargs="?", type=Path)
    p.add_argument("--videos", type=int, default=24, help="how many are made")
    p.add_argument("--batch-size", type=int, default=4)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=5)
    args = p.parse_args()
    made = None if args.folder else Path(tempfile.mkdtemp(prefix="gpupipe-video-"))
    try:
        if made is not None:
            make_videos(made, args.videos)
        root = str(args.folder or made)
        left_out = {job.name: why for job in JOBS if (why := missing(job)) is not None}
        for name, why in left_out.items():
            print(f"left out: {name}: {why}", flush=True)
        jobs = [job for job in JOBS if job.name not in left_out]
        result: dict[str, Any] = {
            "question": (__doc__ or "").splitlines()[0],
            "machine": machine(),
            "versions": {name: version(name) for name in ("av", "torchcodec", "decord", "torchvision")},
            "files": {"made": made is not None, **describe(root)},
            "settings": {k: v for k, v in vars(args).items() if k != "folder"},
            "left_out": left_out,
        }
        for workload in ("random", "sequential"):
            result[workload] = measure(args, root, jobs, workload)
            path = save("video_clips_cpu", result)
            show(workload, result[workload])
        print(path)
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)  # a folder of our own, made above


def version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def show(workload: str, rows: dict[str, Any]) -> None:
    table = Table(workload, "clips/s", "x PyAV", "CPU ms/clip", "PSS MB")
    for name, row in rows.items():
        table.row(
            name,
            *(_middle(row.get(key)) for key in ("median_clips_per_second", "to_pyav", "cpu_ms_per_clip", "pss_mb")),
        )


def _middle(value: Any) -> Any:
    return value.get("median", value) if isinstance(value, dict) else value


if __name__ == "__main__":
    main()
