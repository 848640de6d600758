"""Loaders of clips that do the same work, as a user would write each of them."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from _common import import_torchvision
from _loaders import Batches
from torch import Tensor

from gpupipe.bench.clip_decoders import DECODERS, Decode, by_torchcodec

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


_DECODERS: dict[str, Decode] = {
    **{name: decode for name, (_, decode) in DECODERS.items()},
    "torchcodec-approximate": partial(by_torchcodec, mode="approximate"),
    "torchcodec-gpu": partial(by_torchcodec, device="cuda"),
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
