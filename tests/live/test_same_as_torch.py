"""From the same seed a live session gives torch's batches, in every bit, and leaves the generators as torch does."""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter
from support import interrupt_after
from torch.utils.data import (
    BatchSampler,
    DataLoader as TorchLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)
from torchvision import transforms as T
from torchvision.transforms import functional as F

import gpupipe
from gpupipe.errors import ConfigError
from gpupipe.live.loader import LiveLoader

from .beside import jpeg, same_batches, seeded, waits, write_jpegs

pytestmark = pytest.mark.usefixtures("exact")

TRAIN = T.Compose([T.RandomResizedCrop(12), T.RandomHorizontalFlip(), T.ColorJitter(0.3, 0.3), T.ToTensor()])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jpegs(tmp_path_factory.mktemp("jpegs"), 12)


class Pictures(Dataset[Any]):
    def __init__(self, root: Path, size: int = 12):
        self.paths, self.size, self.transform = sorted(root.glob("*.jpg")), size, TRAIN

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: Any) -> Any:
        image = Image.open(self.paths[int(i)]).convert("RGB")
        noise = random.random() + np.random.random() + torch.rand(1).item()  # noqa: NPY002
        return self.transform(image), int(i), noise


class Together(Pictures):
    """Samples of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        flip = random.random() < 0.5
        return [(F.hflip(x) if flip else x, *rest) for x, *rest in map(self.__getitem__, indices)]


class Stream(IterableDataset[Any]):
    def __init__(self, root: Path):
        self.paths = sorted(root.glob("*.jpg"))

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for path in self.paths[first::step]:
            if random.random() < 0.9:
                yield TRAIN(Image.open(path).convert("RGB")), path.name


class Sized(Sampler[Any]):
    """A batch sampler that sets the size of the images, counts its epochs and draws from a generator of Python."""

    def __init__(self, data: Pictures):
        self.data, self.epochs = data, 0

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        self.epochs += 1
        for k in range(4):
            self.data.transform = T.Compose([T.Resize((8 + 4 * (k % 2), 8 + self.epochs)), T.ToTensor()])
            yield [random.randrange(12) for _ in range(1 + k % 3)]


def as_dict(batch: list[Any]) -> Any:
    return {"x": torch.stack([x for x, *_ in batch]), "y": [i for _, i, *_ in batch], "n": random.random()}


@dataclass(slots=True)
class Samples:
    """A batch that is an object."""

    of: deque[Any]

    def __call__(self) -> int:
        return len(self.of)


def into_memory(batch: list[Any]) -> Any:
    out = torch.zeros(len(batch), 3, 16, 16)
    for k, (x, *_) in enumerate(batch):
        out[k, :, : x.shape[1], : x.shape[2]] = x
    return out, torch.tensor([i for _, i, *_ in batch])


def into_views(batch: list[Any]) -> Any:
    """As for detection: each image in a corner of its part of the batch."""
    xs = [x for x, *_ in batch]
    out = xs[0].new(len(xs), 3, 16, 16).zero_()
    for x, part in zip(xs, out, strict=True):
        part[: x.shape[0], : x.shape[1], : x.shape[2]].copy_(x)
    return out, torch.ones(len(batch), 16, 16, dtype=torch.bool)


def mixed(batch: list[Any]) -> Any:
    x, y, noise = default_collate(batch)
    amount = np.random.beta(1, 1)  # noqa: NPY002
    return amount * x + (1 - amount) * x.flip(0), y, noise


def shots(batch: list[Any]) -> Any:
    """Views of one tensor, as for learning from few examples, and others of equal values."""
    one, two, *others = _dimmed(batch)
    x = torch.stack([one, two, *others])
    return x[:2], x[2:].flatten(1), x, torch.stack([one, two])[1], two, one.transpose(1, 2), one[:, 1:9].transpose(1, 2)


def turned(batch: list[Any]) -> Any:
    one, two, *_ = _dimmed(batch)
    x = torch.stack([one, two])
    return one, one.transpose(1, 2), x, x[1]


def _dimmed(batch: list[Any]) -> list[Any]:
    return [x * 0.3 if k % 2 else x for k, (x, *_) in enumerate(batch)]


def raises(batch: list[Any]) -> Any:
    if random.random() < 0.4:
        raise LookupError("sometimes")
    return as_dict(batch)


def seeds_worker(worker: int, extra: int = 0) -> None:
    random.seed(torch.initial_seed() % 1000 + extra)
    info: Any = get_worker_info()
    info.dataset.transform = T.Compose([T.Resize((10, 10)), T.RandomVerticalFlip(), T.ToTensor()])


SAMPLERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "in order": lambda d: {"batch_size": 5},
    "shuffled": lambda d: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "own generator": lambda d: {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "random": lambda d: {"batch_size": 5, "sampler": RandomSampler(d, replacement=True, num_samples=9)},
    "weighted": lambda d: {"batch_size": 4, "sampler": WeightedRandomSampler(range(1, 13), 10)},
    "subset": lambda d: {"batch_size": 2, "sampler": SubsetRandomSampler([3, 1, 4, 1, 5])},
    "distributed": lambda d: {"batch_size": 2, "sampler": DistributedSampler(d, 3, 1)},
    "batches": lambda d: {"batch_sampler": BatchSampler(SequentialSampler(d), 5, True)},
    "batch sampler sets the size": lambda d: {"batch_sampler": Sized(d)},
    "no batches": lambda d: {"batch_size": None, "shuffle": True},
    "list as a sampler": lambda d: {"sampler": [3, 3, 0], "batch_size": 2},
    "strings of numbers": lambda d: {"sampler": ["3", "1", "7"], "batch_size": 2},
}
COLLATES: dict[str, Any] = {
    "default": None,
    "dict": as_dict,
    "memory": into_memory,
    "views of memory": into_views,
    "mixed": mixed,
    "raises": raises,
    "shots": shots,
    "halves": lambda batch: (lambda x: (x[:2], x[2:]))(torch.stack(_dimmed(batch))),
    "turned": turned,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(root: Path, name: str) -> None:
    theirs = same_batches(lambda Loader: Loader(data := Pictures(root), **SAMPLERS[name](data)))
    assert len(theirs[0]) > 1


@pytest.mark.parametrize("name", COLLATES)
def test_collate_functions(root: Path, name: str) -> None:
    same_batches(lambda Loader: Loader(Pictures(root), batch_size=4, shuffle=True, collate_fn=COLLATES[name]))


def test_calls_that_travel(root: Path) -> None:
    class Changed(Pictures):
        def __getitem__(self, i: Any) -> Any:
            image = Image.open(self.paths[int(i)]).convert("RGB").resize((16, 12)).filter(ImageFilter.BLUR)
            image.paste(image.rotate(9).getchannel(0).convert("RGB"), (3, 4))
            ImageDraw.Draw(image).rectangle((1, 2, 5, 6), "red")
            x = F.to_tensor(image.point(lambda v: v // 2)) ** 2
            x[0].mul_(0.5)
            return torch.nn.functional.pad(x.data, (1, 2)).index_select(2, torch.arange(10)), x.split(4, 1)[1]

    same_batches(lambda Loader: Loader(Changed(root), batch_size=4, shuffle=True))
    with gpupipe.DataLoader(Changed(root), batch_size=4, num_workers=2, timeout=30, device="cpu") as loader:
        assert len(list(loader)) == 3
        assert loader.stats().images["waited"] == len(Changed(root))


@pytest.mark.parametrize("collate", [into_memory, into_views])
def test_what_is_written_to_memory_waits(root: Path, collate: Any) -> None:
    with gpupipe.DataLoader(Pictures(root), batch_size=4, device="cpu", collate_fn=collate) as loader:
        assert len(list(loader)) == 3
        assert loader.stats().images["waited"] == len(Pictures(root))


class Kept(Pictures):
    """Keeps what it has made."""

    def __getitem__(self, i: Any) -> Any:
        kept = vars(self).setdefault("kept", {})
        if i not in kept:
            kept[i] = F.to_tensor(Image.open(self.paths[i]).convert("RGB").resize((12, 12)))
        return kept[i]


def test_images_that_workers_inherit(root: Path) -> None:
    def script(Loader: Any) -> Any:
        data = Kept(root)
        return [batch for workers in (0, 2) for batch in Loader(data, 4, num_workers=workers)]

    same_batches(script)


def test_batches_of_small_images(tmp_path: Path) -> None:
    """They are pickled in another thread than the one that opens the next ones."""
    for k in range(12):
        (tmp_path / f"{k:02}.jpg").write_bytes(jpeg(k % 3, 480, 640))

    class Small(Pictures):
        def __getitem__(self, i: Any) -> Any:
            return Image.open(self.paths[i]).convert("RGB").resize((60, 60))

    def script(Loader: Any) -> Any:
        data = Small(tmp_path)
        data.paths *= 10
        return Loader(data, 2, num_workers=2, collate_fn=list)

    same_batches(script, epochs=1)


class Loud:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_while_the_engine_rests(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI's pipelines have destructors, whose exceptions Python ignores."""
    with gpupipe.DataLoader(Pictures(root), 4, num_workers=1, device="cpu", engine="dali") as loader:
        assert len(list(loader)) == 3
        session: Any = loader._session
        monkeypatch.setattr(session._maker, "rest", lambda: Loud() and None)
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupt_while_workers_are_freed(root: Path, workers: int) -> None:
    """multiprocessing frees processes and queues by finalizers, whose exceptions Python ignores."""
    with gpupipe.DataLoader(Pictures(root), 4, num_workers=workers, device="cpu", engine="dali") as loader:
        epoch: Any = iter(loader)
        assert len(next(epoch)[0]) == 4
        epoch._inner.last = Loud()
        with pytest.raises(KeyboardInterrupt):
            deque(epoch, maxlen=0)


def test_an_interrupt_as_soon_as_workers_have_begun(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(monkeypatch, LiveLoader, "_get_iterator")
    before = set(multiprocessing.active_children())
    with gpupipe.DataLoader(Pictures(root), 4, num_workers=2, device="cpu", engine="dali") as loader:
        with pytest.raises(KeyboardInterrupt) as caught:
            iter(loader)
        assert set(multiprocessing.active_children()) == before
        assert caught


class Light:
    """A sample that leaves one of its tensors behind when it is sent."""

    def __init__(self, x: Any):
        self.original, self.x = x, x.flip(-1)

    def __getstate__(self) -> Any:
        return {"x": self.x}


def test_objects_that_leave_tensors_behind(root: Path) -> None:
    def script(Loader: Any) -> Any:
        loader = Loader(Pictures(root), 4, num_workers=2, collate_fn=lambda batch: [Light(x) for x, *_ in batch])
        return ([sample.x for sample in batch] for batch in loader)

    same_batches(script)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [shots, COLLATES["halves"], turned])
def test_views_of_one_tensor(root: Path, workers: int, collate: Any) -> None:
    """They share memory, and wait."""

    def written(Loader: Any, **options: Any) -> list[Any]:
        seeded()
        loader = Loader(Pictures(root), 4, collate_fn=collate, num_workers=workers, **options)
        made = []
        for x in range(len(next(iter(loader)))):
            batch = next(iter(loader))
            batch[x].zero_()
            made.append([bool(y.any()) for y in batch])
        return [*made, loader.stats().get("images", {}).get("waited")] if options else made

    *ours, waited = written(gpupipe.DataLoader, device="cpu", engine="dali")
    assert ours == written(TorchLoader)
    assert waited


def test_a_batch_that_is_an_object(root: Path) -> None:
    with gpupipe.DataLoader(Pictures(root), 4, collate_fn=lambda batch: Samples(deque(batch)), device="cpu") as loader:
        assert not any(waits(x) for x, *_ in next(iter(loader)).of)


def kinds_of_workers() -> list[Any]:
    slow = pytest.mark.thorough
    return [
        pytest.param({"num_workers": 2}, id="two"),
        pytest.param({"num_workers": 2, "persistent_workers": True}, id="persistent"),
        pytest.param({"num_workers": 2, "worker_init_fn": partial(seeds_worker, extra=3)}, id="init"),
        pytest.param({"num_workers": 1, "timeout": 50, "prefetch_factor": 1}, id="timeout"),
        pytest.param({"num_workers": 2, "in_order": False, "timeout": 60}, id="any order", marks=slow),
        pytest.param({"num_workers": 1, "multiprocessing_context": "spawn"}, id="spawn", marks=slow),
        pytest.param(
            {"num_workers": 3, "multiprocessing_context": "fork", "prefetch_factor": 5}, id="fork", marks=slow
        ),
        pytest.param({"num_workers": 0, "pin_memory": False}, id="none"),
    ]


@pytest.mark.parametrize("options", kinds_of_workers())
@pytest.mark.parametrize("kind", [Pictures, Together, Stream])
def test_workers(root: Path, kind: Any, options: dict[str, Any]) -> None:
    order: dict[str, Any] = {} if kind is Stream else {"shuffle": True}
    if options.get("in_order") is False:
        options = {**options, "num_workers": 1}  # the order of several depends on time
    same_batches(lambda Loader: Loader(kind(root), batch_size=4, **order, **options))


def test_a_stream_divides_itself(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"the stream .*Stream.* leave shard out"):
        gpupipe.DataLoader(Stream(root), shard=gpupipe.Shard(0, 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_batch_samplers_that_change_the_dataset(root: Path, workers: int) -> None:
    """Also with workers, where changes do not reach the dataset, and the sampler is read ahead as by torch."""
    same_batches(lambda Loader: Loader(d := Pictures(root), batch_sampler=Sized(d), num_workers=workers))


def test_two_iterators_side_by_side(root: Path) -> None:
    def script(Loader: Any) -> Any:
        loader = Loader(Pictures(root), batch_size=4, shuffle=True)
        return [*zip(loader, loader, strict=True), next(iter(loader))]

    same_batches(script, epochs=1)


def test_a_batch_that_another_loader_makes(root: Path) -> None:
    class Inner(Pictures):
        Loader: Any = None

        def __getitem__(self, i: Any) -> Any:
            x, *_ = super().__getitem__(i)
            return x, next(iter(self.Loader(Pictures(root), batch_size=2, shuffle=True)))[1]

    def script(Loader: Any) -> Any:
        data = Inner(root)
        data.Loader = Loader
        return Loader(data, batch_size=3)

    same_batches(script, epochs=1)


def test_nothing_is_read_ahead_without_workers(root: Path) -> None:
    """A training loop that changes the dataset sees the change in the next batch."""
    read: list[int] = []

    class Noted(Pictures):
        def __getitem__(self, i: Any) -> Any:
            read.append(i)
            return super().__getitem__(i)

    data = Noted(root)
    with gpupipe.DataLoader(data, batch_size=2, device="cpu", engine="dali") as loader:
        batches = iter(loader)
        assert read == []
        for k in range(3):
            x, *_ = next(batches)
            assert read == list(range(2 * k + 2))
            assert x.shape[-1] == (12 if k == 0 else 9)
            data.transform = T.Compose([T.Resize((9, 9)), T.ToTensor()])


def fuzzed(seed: int, root: Path) -> Callable[[Any], Any]:  # noqa: C901
    """Return a script with a sampler, or a batch sampler, and a collate function that a seed has chosen."""
    rng = random.Random(seed)
    count, size, draws = rng.randint(1, 14), rng.randint(1, 5), [rng.choice(["p", "n", "t", ""]) for _ in range(3)]
    by_batches, mutates, stops = rng.random() < 0.4, rng.random() < 0.3, rng.random() < 0.2
    kind, how = rng.choice([Pictures, Together]), [rng.randrange(6) for _ in range(2)]

    def drawn(n: int) -> int:
        return {
            "p": lambda: random.randrange(n),
            "n": lambda: int(np.random.randint(n)),  # noqa: NPY002
            "t": lambda: int(torch.randint(n, ())),
            "": lambda: seed % n,
        }[draws[0]]()

    class Own:
        def __init__(self, data: Any):
            self.data, self.epoch = data, 0

        def __len__(self) -> int:
            return count

        def __iter__(self) -> Iterator[Any]:
            self.epoch += 1
            for k in range(count):
                if mutates:
                    self.data.transform = T.Compose([T.Resize((6 + k % 3, 6 + self.epoch)), T.ToTensor()])
                if stops and k == 3:
                    raise IndexError("of the sampler")
                yield [drawn(12) for _ in range(1 + drawn(size))] if by_batches else drawn(12)

    def collate(batch: list[Any]) -> Any:
        xs = [x for x, *_ in batch]
        if draws[1] and random.random() < 0.3:
            xs = xs[::-1]
        if how[0] == 0:
            return xs, len(xs)
        if how[0] == 1:
            return default_collate(batch)
        if how[0] == 2:
            return {"x": torch.cat([x.flatten() for x in xs]), "rest": batch}
        if how[0] == 3:
            return [F.normalize(x, [0.5] * 3, [0.2] * 3) for x in xs], torch.stack(xs).mean()
        padded = torch.zeros(len(xs), 3, 20, 20) if how[0] == 4 else torch.stack([F.pad(x, [1, 2, 3, 4]) for x in xs])
        if how[0] == 4:
            for row, x in zip(padded, xs, strict=True):
                row[:, : x.shape[1], : x.shape[2]].copy_(x)
        return padded, np.random.random(), [i for _, i, *_ in batch]  # noqa: NPY002

    def script(Loader: Any) -> Any:
        data = kind(root)
        order = {"batch_sampler": Own(data)} if by_batches else {"sampler": Own(data), "batch_size": size}
        return Loader(data, **order, collate_fn=None if how[1] == 0 else collate)

    return script


@pytest.mark.parametrize("seed", range(12))
def test_fuzzed_samplers_and_collate_functions(root: Path, seed: int) -> None:
    seeded(seed)
    same_batches(fuzzed(seed, root), seed=seed)
