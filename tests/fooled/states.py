"""Datasets that change while they are read, and what a script changes between epochs."""

from __future__ import annotations

import random
import threading
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader, get_worker_info
from torchvision import transforms as T

from .base import BATCH, EVAL, Pictures, case


@case()
class Counts(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.count = 0

    def __getitem__(self, i: int) -> Any:
        self.count += 1
        return self.transform(self.open(i)), self.count


@case()
class Logs(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.log: list[int] = []

    def __getitem__(self, i: int) -> Any:
        self.log.append(i)
        return self.transform(self.open(i)), len(self.log)


@case()
class CountsInADict(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.told: dict[str, Any] = {"n": 0, "hits": OrderedDict()}

    def __getitem__(self, i: int) -> Any:
        self.told["n"] += 1
        self.told["hits"][i] = True
        return self.transform(self.open(i)), self.told["n"], len(self.told["hits"])


class Counter:
    def __init__(self) -> None:
        self.n = 0

    def next(self) -> int:
        self.n += 1
        return self.n


@case()
class CountsElsewhere(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.counter = Counter()

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), self.counter.next()


calls = Counter()


@case()
class CountsInAGlobal(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        calls.n = 0

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), calls.next()


@case()
class CountsInItsClass(Pictures):
    n = 0

    def __init__(self, root: Path):
        super().__init__(root)
        type(self).n = 0

    def __getitem__(self, i: int) -> Any:
        type(self).n += 1
        return self.transform(self.open(i)), self.n


@case()
class ShufflesAtFirstUse(Pictures):
    """As CSAIL's loader for segmentation."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.shuffled = False

    def __getitem__(self, i: int) -> Any:
        if not self.shuffled:
            random.Random(4).shuffle(self.paths)
            self.shuffled = True
        return self.transform(self.open(i)), self.paths[i].name


@case()
class TakesFromAList(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.left = list(range(200))

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), self.left.pop()


@case()
class KeepsTheLast(Pictures):
    """Gives the sample before as well."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.last: Any = None

    def __getitem__(self, i: int) -> Any:
        before, self.last = self.last, i
        return self.transform(self.open(i)), -1 if before is None else before


@case()
class Buffers(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.buffer: deque[int] = deque(maxlen=3)

    def __getitem__(self, i: int) -> Any:
        self.buffer.append(i)
        return self.transform(self.open(i)), sum(self.buffer)


@case()
class OpensAtFirstUse(Pictures):
    """A file that is opened in the process that reads."""

    file: Any = None

    def __init__(self, root: Path):
        super().__init__(root)
        self.bytes = [path.stat().st_size for path in self.paths]
        (root / "all.bin").write_bytes(b"".join(path.read_bytes() for path in self.paths))
        self.root = root

    def __getitem__(self, i: int) -> Any:
        if self.file is None:
            self.file = (self.root / "all.bin").open("rb")
        self.file.seek(sum(self.bytes[:i]))
        image = Image.open(self.file).convert("RGB")
        return self.transform(image), i


@case()
class HoldsALock(Pictures):
    """What cannot be copied; forked only, since it does not pickle either."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.lock = threading.Lock()

    def __getitem__(self, i: int) -> Any:
        with self.lock:
            return self.transform(self.open(i)), i

    def __reduce__(self) -> Any:
        return type(self), (self.paths[0].parent,)


@case()
class KnowsItsWorker(Pictures):
    def __getitem__(self, i: int) -> Any:
        info = get_worker_info()
        return self.transform(self.open(i)), info is not None and info.dataset is self


class Curriculum(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.epoch = 0

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), i * 100 + self.epoch


@case()
def epoch_of_the_dataset(Loader: Any, root: Path, **arguments: Any) -> Any:
    dataset, found = Curriculum(root), []
    loader = Loader(dataset, BATCH, **arguments)
    for dataset.epoch in range(3):
        found.append(list(loader))
    return found


@case()
def another_transform(Loader: Any, root: Path, **arguments: Any) -> Any:
    dataset, found = Pictures(root), []
    loader = Loader(dataset, BATCH, **arguments)
    for size in (20, 16, 12):
        dataset.transform = T.Compose([T.Resize(24), T.CenterCrop(size), T.ToTensor()])
        found.append(list(loader))
    return found


@case()
def attributes_of_a_transform(Loader: Any, root: Path, **arguments: Any) -> Any:
    flip = T.RandomHorizontalFlip(0.0)
    loader = Loader(Pictures(root, T.Compose([T.CenterCrop(20), flip, T.ToTensor()])), BATCH, **arguments)
    first = list(loader)
    flip.p = 1.0
    return first, list(loader)


@case()
def a_list_that_a_closure_holds(Loader: Any, root: Path, **arguments: Any) -> Any:
    """Progressive resizing."""
    size = [20]
    dataset = Pictures(root)
    dataset.transform = T.Compose([T.Lambda(lambda image: image.resize((size[0], size[0]))), T.ToTensor()])
    if arguments.get("multiprocessing_context") == "spawn":
        dataset.transform = EVAL
    loader = Loader(dataset, BATCH, **arguments)
    first = list(loader)
    size[0] = 12
    return first, list(loader)


@case()
def fewer_files(Loader: Any, root: Path, **arguments: Any) -> Any:
    dataset = Pictures(root)
    loader = Loader(dataset, BATCH, **arguments)
    first = list(loader)
    dataset.paths = dataset.paths[:8]
    return first, list(loader)


@case()
def batches_of_another_size(Loader: Any, root: Path, **arguments: Any) -> Any:
    loader = Loader(Pictures(root), BATCH, **arguments)
    first = list(loader)
    loader.batch_sampler.batch_size = 5
    return first, list(loader)


@case()
def changes_in_mid_epoch(Loader: Any, root: Path, **arguments: Any) -> Any:
    """Without workers they take effect at once; with workers, which have copies, not before the next epoch."""
    dataset, found = Curriculum(root), []
    for number, batch in enumerate(Loader(dataset, BATCH, **arguments)):
        found.append(batch)
        if not arguments.get("num_workers"):
            dataset.epoch = number + 1
    return found


@case()
def another_transform_in_mid_epoch(Loader: Any, root: Path, **arguments: Any) -> Any:
    dataset, found = Pictures(root), []
    for batch in Loader(dataset, BATCH, **arguments):
        found.append(batch)
        if not arguments.get("num_workers"):
            dataset.transform = T.Compose([T.CenterCrop(16), T.ToTensor()])
    return found


@case()
def breaks_off(Loader: Any, root: Path, **arguments: Any) -> Any:
    loader = Loader(Pictures(root), BATCH, **arguments)
    first = next(iter(loader))
    return first, [batch for batch, _ in zip(loader, range(2), strict=False)], list(loader)


@case()
def two_iterators(Loader: Any, root: Path, **arguments: Any) -> Any:
    loader = Loader(Pictures(root), BATCH, **arguments)
    return list(zip(loader, loader, strict=True))


class CountsCalls:
    """A transform that brightens more with each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x + self.calls / 1000


class TurnsLater:
    def __init__(self) -> None:
        self.log: list[int] = []

    def __call__(self, image: Any) -> Any:
        self.log.append(1)
        return image.rotate(180) if len(self.log) > 9 else image


steps = 0


def every_third(image: Any) -> Any:
    global steps
    steps += 1
    return image.rotate(180) if steps % 3 == 0 else image


@case()
def transforms_that_count(Loader: Any, root: Path, **arguments: Any) -> Any:
    global steps
    steps, found = 0, list[Any]()
    for lists in ([T.ToTensor(), CountsCalls()], [TurnsLater(), T.ToTensor()], [T.Lambda(every_third), T.ToTensor()]):
        transform = T.Compose([T.CenterCrop(20), *lists])
        found.append([list(Loader(Pictures(root, transform), BATCH, **arguments)) for _ in range(2)])
    return found, steps


class HoldsALoader(Pictures):
    """Shows its loader's batches one by one, as in CloserLookFewShot."""

    def __init__(self, root: Path, Loader: Any = TorchLoader):
        super().__init__(root)
        self.loader = Loader(Pictures(root), 6, num_workers=0)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Any:
        return next(batch for number, batch in enumerate(self.loader) if number == i)


@case(forks=True)
def a_loader_within_a_dataset(Loader: Any, root: Path, **arguments: Any) -> Any:
    dataset = HoldsALoader(root, Loader)
    first = [dataset[i] for i in range(4)]
    return first, [list(Loader(dataset, batch_size=None, **arguments)) for _ in range(2)]


def shard(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.shard = worker  # type: ignore[attr-defined]


class Sharded(Pictures):
    shard = -1

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), self.shard


@case()
def a_worker_sets_up_its_dataset(Loader: Any, root: Path, **arguments: Any) -> Any:
    return [list(Loader(Sharded(root), BATCH, worker_init_fn=shard, **arguments)) for _ in range(2)]


class ManyAtOnce(Pictures):
    def __getitems__(self, indices: list[int]) -> Any:
        return [(*self[i], len(indices)) for i in indices]


@case()
def many_at_once(Loader: Any, root: Path, **arguments: Any) -> Any:
    return list(Loader(ManyAtOnce(root), BATCH, **arguments))


class Episodes:
    """A batch sampler."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        for episode in range(5):
            yield torch.arange(episode, episode + 3 + episode % 2).tolist()


@case()
def episodes(Loader: Any, root: Path, **arguments: Any) -> Any:
    loader = Loader(Pictures(root), batch_sampler=Episodes(), **arguments)
    return len(loader), [list(loader) for _ in range(2)]


class ByChance:
    """Episodes that are drawn when an epoch begins."""

    def __iter__(self) -> Any:
        return iter(torch.randperm(24)[:12].reshape(4, 3).tolist())


@case()
def episodes_by_chance(Loader: Any, root: Path, **arguments: Any) -> Any:
    torch.manual_seed(3)
    loader = Loader(Pictures(root), batch_sampler=ByChance(), **arguments)
    return [list(loader) for _ in range(3)]


@case()
def a_sampler_by_chance(Loader: Any, root: Path, **arguments: Any) -> Any:
    class Some(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Any:
            return iter(torch.randperm(24)[:8].tolist())

        def __len__(self) -> int:
            return 8

    torch.manual_seed(3)
    loader = Loader(Pictures(root), BATCH, sampler=Some(), **arguments)
    return [list(loader) for _ in range(3)]


class Forever(torch.utils.data.Sampler[int]):
    """As AdaIN's sampler."""

    def __iter__(self) -> Any:
        i = 0
        while True:
            yield i % 7
            i += 1

    def __len__(self) -> int:
        return 2**31


@case()
def a_sampler_without_end(Loader: Any, root: Path, **arguments: Any) -> Any:
    iterator = iter(Loader(Pictures(root), BATCH, sampler=Forever(), **arguments))
    return [next(iterator) for _ in range(4)]
