"""Loaders that do the same work (a recipe) and processes to measure them in.

Each candidate lives in a process of its own, so that its memory and CPU time are its own and no thread pool or Python
lock is shared; the parent lets them work in turn. A reading begins after some batches, when the queues that filled up
during the pause are used up, and ends with a pause until the process is idle again. So it holds neither a filling nor
a draining, and no candidate works during another's reading.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from _common import gpu_memory_mb, memory_mb
from _recipes import MEAN, STD, ours, torchvisions
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gpupipe.engines.staging import map_tensors
from gpupipe.memory.system import cpu_seconds

Batches = Iterator[tuple[Any, Tensor]]


@dataclass(frozen=True)
class Work:
    """What all candidates of one comparison share."""

    paths: tuple[str, ...]
    batch_size: int = 64
    workers: int = 2
    device: Literal["cpu", "cuda"] = "cpu"
    size: int = 224
    epoch: int = 100_000
    """Samples of an epoch, at least; the files are repeated up to it."""
    packed: tuple[tuple[str, str], ...] = ()
    """(format, a folder with the same files in that format), for ``Job.source``."""

    def files(self) -> list[str]:
        return list(self.paths) * -(-self.epoch // len(self.paths))

    @property
    def labels(self) -> list[int]:
        return [i % len(self.paths) for i in range(len(self.files()))]


@dataclass(frozen=True)
class Job:
    """One candidate: which loader, with which options."""

    name: str
    loader: Literal["gpupipe-dali", "gpupipe-torch", "dali-by-hand", "dali-iterator", "torchvision"]
    staging: Literal["ring", "pin_memory", "pageable"] = "ring"
    roi: bool | Literal["auto"] = "auto"
    """Decode the window only; ``"auto"`` means yes for a graph by hand."""
    hw_decoder_load: float = 0.65
    fancy_upsampling: bool = True
    dtype: Literal["float32", "float16"] = "float32"
    channels_last: bool = False
    workers: int | None = None
    prefetch: int | None = None
    source: str = "files"
    """Where gpupipe reads the files from: ``"files"``, or a format of ``Work.packed``."""
    recipe: str = "train"
    """See ``_recipes.py``; graphs by hand know the first one only."""

    def batches(self, work: Work) -> Batches:
        """Batches without end: (f32[B, 3, size, size] or several views, targets of B samples) on the device."""
        return _LOADERS[self.loader](self, work)


# ---- the loaders


def _gpupipe(job: Job, work: Work) -> Batches:
    from gpupipe import DataLoader, engines

    if job.loader == "gpupipe-dali":
        engine: Any = engines.Dali(
            roi=job.roi, hw_decoder_load=job.hw_decoder_load, jpeg_fancy_upsampling=job.fancy_upsampling
        )
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
    )
    while True:
        yield from loader


def _dataset(job: Job, work: Work, pipeline: Any) -> Any:
    """The files of ``work``, repeated up to an epoch."""
    from gpupipe import datasets

    if job.source == "files":
        return datasets.ImageList(work.files(), [label % 1000 for label in work.labels], transform=pipeline)
    shards = sorted(Path(dict(work.packed)[job.source]).iterdir())
    one = {"tar": datasets.WebDataset}[job.source](shards)
    return datasets.Subset(one, [i % len(one) for i in range(len(work.files()))], transform=pipeline)


def _graph(job: Job, work: Work) -> Any:
    """The graph as an expert writes it from DALI's documentation."""
    from nvidia.dali import Pipeline, fn, types

    cuda = work.device == "cuda"
    decoder: dict[str, Any] = {"device": "mixed" if cuda else "cpu", "adjust_orientation": False}
    if cuda:
        decoder |= {"hw_decoder_load": job.hw_decoder_load, "jpeg_fancy_upsampling": job.fancy_upsampling}
    window: dict[str, Any] = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3], "num_attempts": 10}
    resize: dict[str, Any] = {"size": [work.size] * 2, "interp_type": types.INTERP_LINEAR, "antialias": True}
    pipe = Pipeline(
        batch_size=work.batch_size,
        num_threads=job.workers or work.workers,
        device_id=0 if cuda else None,
        prefetch_queue_depth=job.prefetch or 2,
        seed=0,
    )
    with pipe:
        encoded, label = fn.readers.file(files=work.files(), labels=work.labels, random_shuffle=True, name="reader")
        if job.roi:
            image = fn.resize(fn.decoders.image_random_crop(encoded, **decoder, **window), **resize)
        else:
            image = fn.random_resized_crop(fn.decoders.image(encoded, **decoder), **resize, **window)
        image = fn.crop_mirror_normalize(
            image,
            dtype=types.FLOAT16 if job.dtype == "float16" else types.FLOAT,
            output_layout="HWC" if job.channels_last else "CHW",
            mean=[255 * m for m in MEAN],
            std=[255 * s for s in STD],
            mirror=fn.random.coin_flip(),
        )
        pipe.set_outputs(image, label.gpu() if cuda else label)
    pipe.build()
    return pipe


def _by_hand(job: Job, work: Work) -> Batches:
    pipe = _graph(job, work)
    cuda = work.device == "cuda"
    while True:
        out = pipe.run(torch.cuda.current_stream().cuda_stream) if cuda else pipe.run()
        images, labels = (from_dlpack(x.as_tensor()) for x in out)
        yield images.permute(0, 3, 1, 2) if job.channels_last else images, labels.squeeze(1)


def _iterator(job: Job, work: Work) -> Batches:
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

    iterator = DALIGenericIterator(
        _graph(job, work), ["images", "labels"], reader_name="reader", last_batch_policy=LastBatchPolicy.DROP
    )
    while True:
        for (batch,) in iterator:
            yield batch["images"], batch["labels"].squeeze(1)
        iterator.reset()


class _Folder(torch.utils.data.Dataset[Any]):
    """torchvision's ImageFolder, of a list of files."""

    def __init__(self, files: list[str], labels: list[int], transform: Callable[[Any], Tensor]):
        self._files, self._labels, self._transform = files, labels, transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        with Image.open(self._files[index]) as image:
            return self._transform(image.convert("RGB")), self._labels[index]


def _torchvision(job: Job, work: Work) -> Batches:
    transform, mix = torchvisions(job.recipe, work.size)
    labels = [label % 1000 for label in work.labels]
    cuda = work.device == "cuda"
    loader = torch.utils.data.DataLoader(
        _Folder(work.files(), labels, transform),
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


_LOADERS: dict[str, Callable[[Job, Work], Batches]] = {
    "gpupipe-dali": _gpupipe,
    "gpupipe-torch": _gpupipe,
    "dali-by-hand": _by_hand,
    "dali-iterator": _iterator,
    "torchvision": _torchvision,
}


# ---- processes


@dataclass(frozen=True)
class Reading:
    """One round of one candidate."""

    images: int
    seconds: float
    cpu_seconds: float
    pss_mb: float
    uss_mb: float

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds


def _finish(work: Work) -> None:
    if work.device == "cuda":
        torch.cuda.synchronize()


def settle(patience: float = 20.0) -> None:
    """Wait until this process and its children stop working."""
    end, before = time.monotonic() + patience, cpu_seconds()
    while time.monotonic() < end:
        time.sleep(0.2)
        now = cpu_seconds()
        if now - before < 0.03:
            return
        before = now


def _read(batches: Batches, work: Work, warm: int, seconds: float) -> Reading:
    for _ in range(warm):
        next(batches)
    _finish(work)
    cpu, began, images = cpu_seconds(), time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        images += len(next(batches)[1])
    _finish(work)
    elapsed, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    memory = memory_mb(os.getpid())
    settle()
    return Reading(images, elapsed, cpu, memory["pss"], memory["uss"])


def _serve(pipe: Any, job: Job, work: Work) -> None:
    # A spawned process would spawn its own workers; a script that a person starts on Linux forks them.
    multiprocessing.set_start_method("fork", force=True)
    try:
        began = time.perf_counter()
        batches = job.batches(work)
        next(batches)
        _finish(work)
        pipe.send(time.perf_counter() - began)
        settle()
        while (command := pipe.recv()) is not None:
            pipe.send(_read(batches, work, *command))
    except (EOFError, KeyboardInterrupt):
        pass
    except BaseException:
        pipe.send(traceback.format_exc())
    finally:
        pipe.close()
        os._exit(0)  # the parent needs nothing more, and some threads take their time


class Candidate:
    """A job in a process of its own.

    Attributes:
        start_seconds: from listing the files to the first batch; the import of torch came before.
        gpu_mb: what starting it took from the GPU's memory, or ``None``.
    """

    def __init__(self, job: Job, work: Work):
        self.job, self.work = job, work
        before = gpu_memory_mb()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, job, work))
        self._process.start()
        theirs.close()
        self.start_seconds: float = self._answer()
        now = gpu_memory_mb()
        self.gpu_mb = None if now is None or before is None else now - before

    def _answer(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"{self.job.name}: its process died with status {self._process.exitcode}") from None
        if isinstance(answer, str):
            raise RuntimeError(f"{self.job.name}:\n{answer}")
        return answer

    def read(self, seconds: float) -> Reading:
        """One reading of about ``seconds``."""
        # What can have piled up: `prefetch` batches, of each worker where there are worker processes.
        queued = (self.job.prefetch or 2) * (1 if "dali" in self.job.loader else self.job.workers or self.work.workers)
        self._pipe.send((queued + 2, seconds))
        reading: Reading = self._answer()
        return reading

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


# ---- comparisons


def rounds(candidates: list[Candidate], count: int, seconds: float) -> Iterator[dict[str, Reading]]:
    """``count`` rounds; in each every candidate works once, and another one begins. One that does not count goes
    before, while caches fill and buffers grow."""
    for candidate in candidates:
        candidate.read(min(seconds, 1.5))
    for i in range(count):
        turn = i % len(candidates)
        yield {c.job.name: c.read(seconds) for c in candidates[turn:] + candidates[:turn]}


def ratio(a: list[float], b: list[float]) -> dict[str, float]:
    """Of readings of the same rounds: the middle ratio, the smallest and the largest."""
    each = [x / y for x, y in zip(a, b, strict=True)]
    return {"median": statistics.median(each), "min": min(each), "max": max(each)}


def summary(candidate: Candidate, readings: list[Reading]) -> dict[str, Any]:
    """What goes into the JSON for one candidate."""
    speed = [r.images_per_second for r in readings]
    return {
        "options": asdict(candidate.job),
        "start_seconds": candidate.start_seconds,
        "gpu_mb": candidate.gpu_mb,
        "images_per_second": speed,
        "median_images_per_second": statistics.median(speed),
        "cpu_ms_per_image": statistics.median(1e3 * r.cpu_seconds / r.images for r in readings),
        "pss_mb": statistics.median(r.pss_mb for r in readings),
        "uss_mb": statistics.median(r.uss_mb for r in readings),
    }
