"""Loaders of clips that do the same work, as a user would write each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from _common import import_torchvision
from _loaders import Batches
from torch import Tensor

FRAMES, STRIDE, SIZE = 16, 4, 224
SPAN = (FRAMES - 1) * STRIDE + 1
CLIPS = 3
Workload = Literal["random", "sequential"]


@dataclass(frozen=True)
class Work:
    """Settings that all candidates share."""

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
    needs: tuple[str, ...]
    """The modules that it cannot do without."""
    prefetch: int | None = None
    workers: int | None = None

    def batches(self, work: Work) -> Batches:
        """Batches without end: (f32[B, 3, 16, 224, 224], i64[B])."""
        if self.loader.startswith("gpupipe"):
            return _gpupipe(self, work)
        return (_threads if self.loader == "torchcodec-gpu" else _plain)(self, work)


def _gpupipe(job: Job, work: Work) -> Batches:
    from gpupipe import DataLoader, datasets, engines
    from gpupipe.pipelines import kinetics

    engine: Any = job.loader.removeprefix("gpupipe-")
    if engine == "nvdec":
        engine = engines.Dali(video="nvdec")
    if work.workload == "random":
        dataset = datasets.VideoFolder(work.root, FRAMES, stride=STRIDE, transform=kinetics.train(SIZE))
    else:
        dataset = datasets.VideoFolder(
            work.root, FRAMES, stride=STRIDE, clips=CLIPS, sampling="uniform", transform=kinetics.val(SIZE)
        )
    loader = DataLoader(
        dataset, work.batch_size, work.workload == "random", num_workers=work.workers, drop_last=True, seed=0,
        engine=engine, device=work.device,
    )  # fmt: skip
    while True:
        yield from loader


# ---- what a careful user writes


Decode = Callable[[str, int, int, int], Tensor]
"""(path, first frame, number of frames, distance between frames) → u8[T, 3, H, W]. The last frame is repeated if the
video ends."""


def _by_pyav(path: str, start: int, count: int, stride: int) -> Tensor:
    import av

    last, found = start + (count - 1) * stride, list[Any]()
    with av.open(path) as container:
        stream = container.streams.video[0]
        # FFmpeg needs no threads of its own: the loader's workers decode in parallel already.
        stream.thread_type = "NONE"
        rate, base, first = stream.average_rate, stream.time_base, stream.start_time or 0
        assert rate is not None and base is not None
        if start:
            container.seek(first + int(start / rate / base), stream=stream)
        for frame in container.decode(stream):
            assert frame.pts is not None
            number = round((frame.pts - first) * base * rate)
            if number >= start and (number - start) % stride == 0:
                found.append(frame.to_ndarray(format="rgb24"))
            if number >= last:
                break
    found += found[-1:] * (count - len(found))
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2)


def _by_torchcodec(
    path: str, start: int, count: int, stride: int, *, mode: Any = "exact", device: str = "cpu"
) -> Tensor:
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(path, num_ffmpeg_threads=1, seek_mode=mode, device=device)
    last = len(decoder) - 1
    frames: Tensor = decoder.get_frames_at([min(start + k * stride, last) for k in range(count)]).data
    return frames


def _by_decord(path: str, start: int, count: int, stride: int) -> Tensor:
    import decord

    reader = decord.VideoReader(path, num_threads=1)
    frames = reader.get_batch([min(start + k * stride, len(reader) - 1) for k in range(count)])
    return torch.from_numpy(frames.asnumpy()).permute(0, 3, 1, 2)


_DECODERS: dict[str, Decode] = {
    "pyav": _by_pyav,
    "decord": _by_decord,
    "torchcodec": _by_torchcodec,
    "torchcodec-approximate": partial(_by_torchcodec, mode="approximate"),
    "torchcodec-gpu": partial(_by_torchcodec, device="cuda"),
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
        center = [v2.Resize(256, antialias=True), v2.CenterCrop(SIZE)]
        from gpupipe.pipelines.kinetics import MEAN, STD

        end = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        self._transform = v2.Compose([*(window if self._random else center), *end])

    def __len__(self) -> int:
        return len(self._paths) * (1 if self._random else CLIPS)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        video, clip = (i, 0) if self._random else divmod(i, CLIPS)
        places = max(self._counts[video] - SPAN, 0) + 1
        start = int(torch.randint(places, ())) if self._random else round(clip * (places - 1) / (CLIPS - 1))
        frames = _DECODERS[self._decoder](self._paths[video], start, FRAMES, STRIDE)
        return self._transform(frames).transpose(0, 1).contiguous(), self._labels[video]


def _plain(job: Job, work: Work) -> Batches:
    loader = torch.utils.data.DataLoader(
        _Clips(work, job.loader), work.batch_size, work.workload == "random", num_workers=work.workers,
        drop_last=True, persistent_workers=True,
    )  # fmt: skip
    while True:
        yield from loader


def _threads(job: Job, work: Work) -> Batches:
    """Clips decoded by threads of this process, which share its GPU."""
    clips = _Clips(work, job.loader)
    ahead: deque[list[Any]] = deque()
    with ThreadPoolExecutor(work.workers) as pool:
        while True:
            order = torch.randperm(len(clips)) if work.workload == "random" else torch.arange(len(clips))
            for chosen in order.split(work.batch_size):
                if len(chosen) == work.batch_size:
                    ahead.append([pool.submit(clips.__getitem__, i) for i in chosen.tolist()])
                if len(ahead) > 1:
                    made = [future.result() for future in ahead.popleft()]
                    labels = torch.tensor([label for _, label in made]).to(work.device)
                    yield torch.stack([clip for clip, _ in made]), labels
