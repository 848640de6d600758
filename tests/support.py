"""Small datasets of every kind with one label per sample, and what tests ask of batches."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tarfile
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from gpupipe import DataLoader, GpupipeWarning, SampleError, system, transforms as T
from gpupipe.datasets import Arrays, Dataset, ImageFolder, WebDataset
from gpupipe.engines import Dali
from gpupipe.engines.torch.reference import reference
from gpupipe.loader.planned import PlannedSession
from gpupipe.parity.difference import Difference, difference
from gpupipe.planning.batches import Slices
from gpupipe.planning.epoch import EpochPlan, resolve_plan
from gpupipe.planning.order import Order, Sequential, Shuffle
from gpupipe.reading.setup import Setup
from gpupipe.testing.photos import photograph
from gpupipe.transforms.ops import Op
from gpupipe.types import Plan, Shard

N = 23
"""Samples of every dataset here: no multiple of the batch."""
BATCH = 5
SEED = 11
SIZES = ((64, 80), (72, 60), (97, 66), (64, 64), (50, 83), (80, 64))
"""(height, width) of the pictures, in turn."""

TRAIN = T.Compose(
    [
        T.RandomResizedCrop(32),
        T.RandomHorizontalFlip(),
        T.ToTensor(),
        T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)
EVAL = T.Compose([T.Resize(40), T.CenterCrop(32), T.PILToTensor()])

ENGINES = ("null", "torch", "dali")
KINDS = ("folder", "tar", "arrays")
"""A folder with an index; its files in three tar files, which the torch engine reads in two workers; pixels."""


def spoil_second_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI's graph fails once, at the second batch, and no sample is to blame."""
    from gpupipe.engines.dali.runner import Runner

    real, asked = Runner.outputs, list[int]()

    def outputs(self: Runner) -> Any:
        asked.append(1)
        made = real(self)
        if len(asked) == 2:
            raise RuntimeError("not today")
        return made

    monkeypatch.setattr(Runner, "outputs", outputs)


def native_session(loader: DataLoader) -> PlannedSession:
    """What is behind a loader that does not run on torch's own."""
    assert isinstance(loader._session, PlannedSession)
    return loader._session


def write_photos(root: Path, n: int = N) -> Path:
    """A folder per picture, so that the label of a sample is its index."""
    for i in range(n):
        folder = root / f"class{i:03d}"
        folder.mkdir(parents=True)
        image = Image.fromarray(photograph(*SIZES[i % len(SIZES)], i))
        image.save(folder / "photo.jpg", quality=90, subsampling="4:2:0" if i % 2 else "4:4:4")
    return root


def pictures(n: int = N, height: int = 48, width: int = 56) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.stack([photograph(height, width, i) for i in range(n)])


def make_dataset(kind: str, root: Path, transform: T.Compose) -> Dataset:
    """``root`` as :func:`write_photos` filled it."""
    if kind == "folder":
        return ImageFolder(root, transform)
    if kind == "tar":
        return WebDataset(write_tars(root), transform)
    assert kind == "arrays"
    return Arrays(pictures(), np.arange(N), transform=transform)


def cpu_loader(dataset: Any, engine: Any = "torch", **arguments: Any) -> DataLoader:
    """Shuffled batches of ``BATCH`` on the CPU, unless the arguments say otherwise."""
    given = {"batch_size": BATCH, "shuffle": True, "device": "cpu", "seed": SEED, **arguments}
    return DataLoader(dataset, engine=engine, **given)


def outcomes(loader: DataLoader) -> Iterator[Any]:
    """The batches of an epoch and its errors of samples, in order."""
    iterator = iter(loader)
    while True:
        try:
            found = next(iterator)
        except StopIteration:
            return
        except SampleError as e:
            found = e
        yield found


def cut_pixels(file: Path, keep: float = 0.05) -> None:
    """Leave a JPEG its headers, so that an index does not notice, and the first part of its pixels."""
    data = file.read_bytes()
    start = data.rindex(b"\xff\xda")
    file.write_bytes(data[: start + 14 + int((len(data) - start) * keep)])


def setup_of(dataset: Dataset, batch_size: int = 5, **options: Any) -> Setup:
    """A loader's setup of two threads, on the CPU."""
    return Setup(dataset, dataset.transform, "cpu", batch_size, **{"num_workers": 2, **options})


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def write_tars(root: Path, shards: int = 3) -> list[Path]:
    """What :func:`write_photos` wrote, beside it in tar files."""
    folder = root.with_name(f"{root.name}-tars")
    paths = [folder / f"{k:03d}.tar" for k in range(shards)]
    if folder.exists():
        return paths
    folder.mkdir()
    photos = sorted(root.rglob("*.jpg"))
    for k, path in enumerate(paths):
        with tarfile.open(path, "w") as tar:
            for label in range(len(photos) * k // shards, len(photos) * (k + 1) // shards):
                for extension, data in (("jpg", photos[label].read_bytes()), ("cls", b"%d" % label)):
                    add_member(tar, f"{label:06d}.{extension}", data)
    return paths


@dataclass
class Case:
    """One engine, device and kind of dataset. Closes the loaders that it made. The graph of ``"dali whole"`` is so on a
    CPU too."""

    engine: str
    kind: str
    device: str
    root: Path
    made: list[DataLoader] = field(default_factory=list)

    @property
    def workers(self) -> int:
        return 2 if self.engine.startswith("dali") or self.kind == "tar" else 0

    def dataset(self, pipeline: T.Compose = TRAIN) -> Dataset:
        key = (self.kind, str(self.root), repr(pipeline))
        if key not in _DATASETS:
            _DATASETS[key] = make_dataset(self.kind, self.root, pipeline)
        return _DATASETS[key]

    def loader(self, dataset: Any = None, **arguments: Any) -> DataLoader:
        """Shuffled batches of ``BATCH``, unless the arguments say otherwise."""
        given = {
            "batch_size": BATCH,
            "shuffle": True,
            "num_workers": self.workers,
            "engine": Dali(graph="whole") if self.engine == "dali whole" else self.engine,
            "device": self.device,
            "seed": SEED,
            **arguments,
        }
        loader = DataLoader(self.dataset() if dataset is None else dataset, **given)
        self.made.append(loader)
        return loader

    def close(self) -> None:
        while self.made:
            self.made.pop().close()


_DATASETS: dict[tuple[str, str, str], Dataset] = {}


def images_of(batch: Any) -> Any:
    return batch[0] if isinstance(batch, list) else batch


def seen(batch: Any) -> list[int]:
    """Which samples a batch has: by its labels, or by the plan that the null engine hands out."""
    images = images_of(batch)
    if isinstance(images, Plan):
        return [int(i) for i in images.indices]
    return [int(i) for i in batch[1]]


def all_seen(batches: Any) -> list[int]:
    return [i for batch in batches for i in seen(batch)]


def identical(a: Any, b: Any) -> bool:
    """Whether two batches are equal in every bit: images, targets, and of plans every number."""
    if seen(a) != seen(b):
        return False
    one, two = images_of(a), images_of(b)
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if (one.ops is None) != (two.ops is None) or not np.array_equal(one.keys, two.keys):
        return False
    ops, others = ((*(plan.ops or ()), *plan.mixing) for plan in (one, two))
    return settings_of(ops) == settings_of(others) and all(
        np.array_equal(v, q.numbers()[k]) for p, q in zip(ops, others, strict=True) for k, v in p.numbers().items()
    )


def settings_of(ops: Sequence[Op]) -> list[Any]:
    """What ops are apart from their numbers; of a function its name."""
    return [
        (
            type(op).__name__,
            {k: v for k, v in op.settings().items() if k not in ("branches", "function")},
            [settings_of(branch) for branch in op.branches],
        )
        for op in ops
    ]


def same(got: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Whether two lists of batches are."""
    return len(got) == len(wanted) and all(identical(a, b) for a, b in zip(got, wanted, strict=True))


def plans_of(
    dataset: Dataset,
    epoch: int = 0,
    *,
    seed: int = SEED,
    shuffle: bool = True,
    batch_size: int = BATCH,
    shard: Shard = Shard(),  # noqa: B008
    drop_last: bool = False,
    start: int = 0,
) -> list[Plan]:
    """What a loader with these arguments must do, from the pure functions alone."""
    n = len(dataset)
    order: Order = Shuffle(n, seed, epoch) if shuffle else Sequential(n)
    slices = Slices(n, batch_size, shard, drop_last, start)
    return list(EpochPlan(dataset, dataset.transform, order, slices, seed, epoch))


def gray_difference(images: Tensor, dataset: Dataset, plan: Plan) -> Tensor:
    """|images - reference| in gray levels f64[B, C, H, W]; for pipelines that end in uint8 or in Normalize."""
    want = reference(dataset, plan, dataset.transform)
    got = images.cpu()
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, got.dtype, want.shape, want.dtype)
    scale = torch.ones(1)
    for op in dataset.transform.skeleton:
        if type(op).__name__ == "Normalize":
            scale = torch.tensor(op.std)[:, None, None] * 255  # type: ignore[attr-defined]
    difference: Tensor = (got.double() - want.double()) * scale
    return difference.abs()


def from_reference(dataset: Dataset, engine: Any, batch_size: int = 8, epochs: int = 1) -> Difference:
    """How far an engine's batches are from the reference's, over whole epochs."""
    found = Difference()
    with cpu_loader(dataset, engine, batch_size=batch_size, num_workers=2) as loader:
        for epoch in range(epochs):
            for plan, batch in zip(plans_of(dataset, epoch, batch_size=batch_size), loader, strict=True):
                assert plan.ops is not None and dataset.sizes is not None
                want = reference(dataset, plan, dataset.transform)
                found += difference(images_of(batch), want, plan.ops, dataset.sizes[plan.indices])
    return found


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def native_threads() -> int:
    """Threads of this process as Linux counts them, those of C++ included."""
    return len(os.listdir("/proc/self/task"))


def python_threads() -> set[str]:
    return {t.name for t in threading.enumerate()}


def children() -> set[int]:
    """Process numbers of the living processes below this one."""
    return set(system.children())


def settled(what: object, wanted: object) -> bool:
    """Whether ``what()`` becomes ``wanted``: the kernel reaps a thread a moment after its end."""
    until = time.monotonic() + 30
    while what() != wanted and time.monotonic() < until:  # type: ignore[operator]
        time.sleep(0.01)
    return bool(what() == wanted)  # type: ignore[operator]


def in_a_child(work: Callable[..., Any], *arguments: Any, timeout: float = 30) -> int:
    """What ``work`` gives in a forked child, a number below 100 (``None`` is 0); 100 if it raises. Of a child that died
    of a signal, the negative number of that; one that hangs dies of SIGKILL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forking beside threads
        pid = os.fork()
    if not pid:
        status = 100
        try:
            status = int(work(*arguments) or 0)
        finally:
            os._exit(status)
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_threads(*works: Callable[[], Any]) -> None:
    """Run them at once. What one raises is raised here."""
    errors: list[BaseException] = []

    def run(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "hangs"
    if errors:
        raise errors[0]


@contextmanager
def little_memory(most: int = 64 << 20) -> Iterator[None]:
    """No more than so many bytes are held at the same time within."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@contextmanager
def warned() -> Iterator[list[str]]:
    """The texts of gpupipe's warnings within it, which may be none."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", GpupipeWarning)
        yield texts
    texts += [str(one.message) for one in seen if isinstance(one.message, GpupipeWarning)]


@contextmanager
def spawned(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes, which does not outlive the block."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def resolved(dataset: Dataset, plan: Plan, sizes: Any) -> Plan:
    return plan if plan.ops is not None else resolve_plan(plan, dataset.transform, np.asarray(sizes, np.int32))


def interrupt_after(patch: Any, owner: Any, name: str) -> None:
    """Let Ctrl-C come as soon as a method has returned."""
    real = getattr(owner, name)

    def interrupted(*args: Any) -> Any:
        made = real(*args)
        signal.raise_signal(signal.SIGINT)
        return made

    patch.setattr(owner, name, interrupted)
