"""Loaders that do the same work (a recipe), as a user would write each of them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import _by_hand
import numpy as np
import torch
from _common import import_torchvision
from _recipes import MEAN, STD, ours, torchvisions
from torch import Tensor

from gpupipe.bench.torchs_loader import Files
from gpupipe.engines.staging import map_tensors

Batches = Iterator[tuple[Any, Tensor]]

CACHE_BYTES = 4_000_000_000
"""Settings for decoded images."""


@dataclass(frozen=True)
class Work:
    """Settings that all candidates of one comparison share."""

    paths: tuple[str, ...]
    batch_size: int = 64
    workers: int = 2
    device: Literal["cpu", "cuda"] = "cpu"
    size: int = 224
    epoch: int = 100_000
    """Samples of an epoch, at least; the files are repeated up to it."""
    sets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Other files than ``paths``, by the name that jobs have for them."""
    packed: tuple[tuple[str, str], ...] = ()
    """(format, what :data:`format_cases.CASES` returned for the same files), for ``Job.source``."""

    def of(self, name: str | None) -> Work:
        """Return the same work on the files of a set."""
        return self if name is None else replace(self, paths=self.sets[name])

    def files(self) -> list[str]:
        return list(self.paths) * -(-self.epoch // len(self.paths))

    @property
    def labels(self) -> list[int]:
        return [i % len(self.paths) for i in range(len(self.files()))]


@dataclass(frozen=True)
class Job:
    """One candidate: which loader, with which options."""

    name: str
    loader: Literal[
        "gpupipe-dali", "gpupipe-torch", "dali-by-hand", "dali-iterator", "torchvision", "torchvision-gpu",
        "dali-torchvision", "webdataset", "datasets", "ffcv-jpeg",
        "ffcv-raw", "spdl", "timm", "torchvision-tensors",
    ]  # fmt: skip
    staging: Literal["ring", "pin_memory", "pageable"] = "ring"
    hw_decoder_load: float = 0.65
    fancy_upsampling: bool | Literal["auto"] = "auto"
    dtype: Literal["float32", "float16"] = "float32"
    channels_last: bool = False
    workers: int | None = None
    prefetch: int | None = None
    source: str = "files"
    """Source of the files: ``"files"``, or a format of ``Work.packed``."""
    recipe: str = "train"
    """Name of a recipe in ``_recipes.py``; handwritten graphs have only the first one."""
    apart: bool = False
    """For gpupipe: whether no epoch begins before the previous one has ended."""
    cache: Literal["ram", "disk"] | None = None
    """Place where gpupipe keeps decoded images; filled before the first batch."""
    files: str | None = None
    """Set of :class:`Work`; ``None`` for its paths."""

    def batches(self, work: Work) -> Batches:
        """Batches without end: (f32[B, 3, size, size] or several views, targets of B samples) on the device."""
        return _LOADERS[self.loader](self, work.of(self.files))


def resolved(job: Job, work: Work) -> Job:
    """The job with what gpupipe makes of ``"auto"`` on this machine."""
    from gpupipe import datasets, engines
    from gpupipe.reading.setup import Setup

    dataset = datasets.ImageList(work.paths[:1], [0], transform=ours("train", work.size))
    setup = Setup(dataset, dataset.transform, "cuda:0" if work.device == "cuda" else "cpu", 1, 1)
    engine = engines.Dali(jpeg_fancy_upsampling=job.fancy_upsampling).build(setup)
    decoder = engine.decoder  # type: ignore[attr-defined]
    return replace(job, fancy_upsampling=bool(decoder.jpeg_fancy_upsampling))


def left_out(jobs: Sequence[Job]) -> list[Job]:
    """The jobs without those whose library is not installed, which it names."""
    here = importlib.util.find_spec("torchvision") is not None
    found = []
    for job in jobs:
        if "torchvision" in job.loader and not here:
            print(f"left out: {job.name} (torchvision is not installed)", flush=True)
        else:
            found.append(job)
    return found


# ---- the loaders


def _gpupipe(job: Job, work: Work) -> Batches:
    from gpupipe import DataLoader, engines

    if job.loader == "gpupipe-dali":
        engine: Any = engines.Dali(hw_decoder_load=job.hw_decoder_load, jpeg_fancy_upsampling=job.fancy_upsampling)
    else:
        engine = engines.Torch(staging=job.staging)
    layout = "channels_last" if job.channels_last else "contiguous_format"
    options = {} if job.recipe == "RandAugment" else {"dtype": job.dtype, "memory_format": layout}
    pipeline = ours(job.recipe, work.size, **options)
    loader = DataLoader(
        _dataset(job, work, pipeline),
        batch_size=work.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=job.workers or work.workers,
        prefetch_factor=job.prefetch,
        device=work.device,
        engine=engine,
        seed=0,
        cache=job.cache,
        cache_bytes=None if job.cache is None else CACHE_BYTES,
    )
    if job.cache is not None:
        for _ in loader:
            pass
    if job.apart:
        loader._session.following = lambda later: None  # type: ignore[attr-defined]
    while True:
        yield from loader


def _dataset(job: Job, work: Work, pipeline: Any) -> Any:
    """The files of ``work``, repeated up to an epoch."""
    from gpupipe import datasets

    if job.source == "files":
        return datasets.ImageList(work.files(), [label % 1000 for label in work.labels], transform=pipeline)
    one = opened(job.source, dict(work.packed)[job.source])
    return datasets.Subset(one, [i % len(one) for i in range(len(work.files()))], transform=pipeline)


def opened(source: str, packed: str) -> Any:
    """A dataset of what ``CASES[source]`` wrote; behind a network ``source`` ends with what is fetched."""
    from gpupipe import datasets as d

    if "://" in packed:
        return d.WebDataset(packed, remote=d.Remote(fetch=source.partition("-")[2]))  # type: ignore[arg-type]
    from format_cases import CASES

    return CASES[source].open(packed)


def _graph(job: Job, work: Work) -> Any:
    """The graph as an expert writes it from DALI's documentation."""
    cuda, job = work.device == "cuda", resolved(job, work)
    decoder: dict[str, Any] = {}
    if cuda:  # as gpupipe has it: no line for every image that the CPU decodes
        os.environ.setdefault("DALI_NVIMGCODEC_LOG_LEVEL", "1")
        decoder = {"hw_decoder_load": job.hw_decoder_load, "jpeg_fancy_upsampling": job.fancy_upsampling}
    return _by_hand.graph(
        work.files(),
        work.labels,
        ours("train", work.size),
        batch_size=work.batch_size,
        threads=job.workers or work.workers,
        cuda=cuda,
        windows=not cuda,
        decoder=decoder,
        dtype=job.dtype,
        channels_last=job.channels_last,
        prefetch=job.prefetch or 2,
    )


def _dali_by_hand(job: Job, work: Work) -> Batches:
    return _by_hand.batches(_graph(job, work), cuda=work.device == "cuda", channels_last=job.channels_last)


def _iterator(job: Job, work: Work) -> Batches:
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    iterator = DALIGenericIterator(
        _graph(job, work), ["images", "labels"], reader_name="reader", last_batch_policy=LastBatchPolicy.DROP
    )
    while True:
        for (batch,) in iterator:
            yield batch["images"], batch["labels"].squeeze(1)
        iterator.reset()


def _torchvision(job: Job, work: Work) -> Batches:
    transform, mix = torchvisions(job.recipe, work.size)
    labels = [label % 1000 for label in work.labels]
    cuda = work.device == "cuda"
    loader = torch.utils.data.DataLoader(
        Files(work.files(), labels, transform),
        batch_size=work.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=job.workers or work.workers,
        prefetch_factor=job.prefetch,
        persistent_workers=True,
        pin_memory=cuda,
    )
    while True:
        for images, labels in loader:
            images = map_tensors(lambda x: x.to(work.device, non_blocking=True), images)
            labels = labels.to(work.device, non_blocking=True)
            yield (images, labels) if mix is None else mix(images, labels)


def _torchvision_gpu(job: Job, work: Work) -> Batches:
    """Read whole files in threads and decode a batch at once on the GPU, with torchvision. Then apply transforms image
    by image, because the images of a batch have many sizes: torchvision's, or DALI's with the same names."""
    import_torchvision()
    from torchvision.io import ImageReadMode, decode_jpeg

    cuda, files, labels = work.device == "cuda", work.files(), work.labels
    transform = _dali_transform(work) if job.loader == "dali-torchvision" else _tensor_transform(work)
    rng = np.random.default_rng(0)

    def read(index: int) -> Tensor:
        return torch.from_numpy(np.fromfile(files[index], np.uint8))

    def begin(pool: ThreadPoolExecutor) -> tuple[Any, Any]:
        chosen = rng.integers(0, len(files), work.batch_size)
        return chosen, [pool.submit(read, int(i)) for i in chosen]

    with ThreadPoolExecutor(job.workers or work.workers) as pool:
        following = begin(pool)
        while True:
            (chosen, reading), following = following, begin(pool)
            encoded = [future.result() for future in reading]
            images = decode_jpeg(encoded, ImageReadMode.RGB, device=work.device)
            target = torch.tensor([labels[i] % 1000 for i in chosen])
            yield transform(images), target.to(work.device, non_blocking=cuda)


def _tensor_transform(work: Work) -> Callable[[list[Tensor]], Tensor]:
    from torchvision.transforms import v2 as V

    each = V.Compose([V.RandomResizedCrop(work.size), V.RandomHorizontalFlip()])
    whole = V.Compose([V.ToDtype(torch.float32, scale=True), V.Normalize(MEAN, STD)])
    return lambda images: whole(torch.stack([each(image) for image in images]))


def _dali_transform(work: Work) -> Callable[[list[Tensor]], Tensor]:
    from nvidia.dali.experimental import torchvision as D

    device: Any = "gpu" if work.device == "cuda" else "cpu"
    mean, std = [255 * m for m in MEAN], [255 * s for s in STD]
    steps: list[Any] = [D.RandomResizedCrop(work.size, device=device), D.RandomHorizontalFlip(device=device)]
    each = D.Compose([*steps, D.Normalize(mean, std, device=device)], batch_size=1)
    return lambda images: torch.stack([each(image) for image in images])


def _peer(job: Job, work: Work) -> Batches:
    from _peers import peer_batches

    packed, workers = dict(work.packed)[job.source], job.workers or work.workers
    options = {"batch_size": work.batch_size, "workers": workers, "size": work.size, "epoch": len(work.files())}
    return peer_batches(job.loader, packed, **options)


def _image_peer(job: Job, work: Work) -> Batches:
    from _image_peers import image_peer

    labels, workers = [label % 1000 for label in work.labels], job.workers or work.workers
    return image_peer(job.loader, work.files(), labels, batch_size=work.batch_size, workers=workers, size=work.size)


_LOADERS: dict[str, Callable[[Job, Work], Batches]] = {
    "gpupipe-dali": _gpupipe,
    "gpupipe-torch": _gpupipe,
    "dali-by-hand": _dali_by_hand,
    "dali-iterator": _iterator,
    "torchvision": _torchvision,
    "torchvision-gpu": _torchvision_gpu,
    "dali-torchvision": _torchvision_gpu,
    **dict.fromkeys(("ffcv-jpeg", "ffcv-raw", "spdl", "timm", "torchvision-tensors"), _image_peer),
    **dict.fromkeys(("webdataset", "datasets"), _peer),
}
