"""Transforms that a dataset's code names or encloses, and does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, get_worker_info
from torchvision import transforms as T

from .base import BATCH, EVAL, TRAIN, Pictures, case

SMALL = T.Compose([T.Resize(18), T.CenterCrop(16), T.ToTensor()])
BY_NAME = {"train": T.Compose([T.Resize(22), T.CenterCrop(20), T.ToTensor()]), "eval": EVAL}
CHANGED = T.Compose([T.CenterCrop(24), T.Resize(16), T.ToTensor()])


class Paths(Dataset[Any]):
    """A list of files."""

    def __init__(self, root: Path):
        self.paths = sorted(root.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, i: int) -> Image.Image:
        return Image.open(self.paths[i]).convert("RGB")


@case()
class GlobalVariable(Paths):
    def __getitem__(self, i: int) -> Any:
        return SMALL(self.open(i)), i


@case()
class GlobalAndHeld(Pictures):
    """The one that it holds is the global variable in the script's process, and a copy in others."""

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), EVAL(self.open((i + 1) % len(self))), SMALL(self.open(i))


@case()
class GlobalDictionary(Paths):
    split = "train"

    def __getitem__(self, i: int) -> Any:
        return BY_NAME[self.split](self.open(i)), i


def prepared(image: Image.Image, size: int = 3, transform: Any = SMALL) -> torch.Tensor:
    return transform(image) if size else transform(image.rotate(90))  # type: ignore[no-any-return]


@case()
class InAFunction(Paths):
    def __getitem__(self, i: int) -> Any:
        return prepared(self.open(i)), i


@case()
class InAMethod(Paths):
    def __getitem__(self, i: int) -> Any:
        return self[i + 1] if i == 5 else (self.made(i), i)

    def made(self, i: int) -> Any:
        return self.of(self.open(i))

    @staticmethod
    def of(image: Image.Image) -> Any:
        return SMALL(image)


@case(forks=True)
def encloses(Loader: Any, root: Path, **arguments: Any) -> Any:
    transform = T.Compose([T.Resize(20), T.ToTensor()])

    class Enclosing(Paths):
        def __getitem__(self, i: int) -> Any:
            return transform(self.open(i)), i

    return [list(Loader(Enclosing(root), batch_size=BATCH, **arguments)) for _ in range(2)]


@case(forks=True)
class FunctionThatItHolds(Pictures):
    def __init__(self, root: Path):
        super().__init__(root, lambda image: prepared(image) * 1)
        self.load = lambda i: SMALL(self.open(i))

    def __getitem__(self, i: int) -> Any:
        return self.load(i), i


@case()
def counts_in_its_class(Loader: Any, root: Path, **arguments: Any) -> Any:
    ByType.reads = 0
    loader = Loader(ByType(root), batch_size=BATCH, **arguments)
    return [list(loader) for _ in range(2)], ByType.reads


class ByType(Paths):
    reads = 0

    def __getitem__(self, i: int) -> Any:
        type(self).reads += 1
        return SMALL(self.open(i)), self.reads


@case(lambda epochs: [[batch[0].shape for batch in epoch] for epoch in epochs])
class DrawsOutside(Paths):
    def __getitem__(self, i: int) -> Any:
        return TRAIN(self.open(i)), i


@case()
def changes_a_global(Loader: Any, root: Path, **arguments: Any) -> Any:
    loader = Loader(GlobalThatChanges(root), batch_size=BATCH, **arguments)
    seen = [list(loader)]
    CHANGED.transforms[1] = T.Resize(12)
    try:
        seen.append(list(loader) if arguments.get("multiprocessing_context") in (None, "fork") else [])
    finally:
        CHANGED.transforms[1] = T.Resize(16)
    return seen


class GlobalThatChanges(Paths):
    def __getitem__(self, i: int) -> Any:
        return CHANGED(self.open(i)), i


@case()
def replaces_a_global(Loader: Any, root: Path, **arguments: Any) -> Any:
    global REPLACED
    loader = Loader(GlobalThatIsReplaced(root), batch_size=BATCH, **arguments)
    seen = [list(loader)]
    before, REPLACED = REPLACED, T.Compose([T.CenterCrop(10), T.ToTensor()])
    try:
        seen.append(list(loader) if arguments.get("multiprocessing_context") in (None, "fork") else [])
    finally:
        REPLACED = before
    return seen


REPLACED = SMALL


class GlobalThatIsReplaced(Paths):
    def __getitem__(self, i: int) -> Any:
        return REPLACED(self.open(i)), i


@case()
def changes_a_global_in_mid_epoch(Loader: Any, root: Path, **arguments: Any) -> Any:
    loader = Loader(GlobalThatChanges(root), batch_size=BATCH, **arguments)
    seen = []
    try:
        for number, batch in enumerate(loader):
            seen.append(batch)
            if number == 2 and not arguments["num_workers"]:
                CHANGED.transforms[1] = T.Resize(12)
    finally:
        CHANGED.transforms[1] = T.Resize(16)
    return seen


class Counted(T.CenterCrop):
    """A transform of the script's."""

    calls = 0

    def forward(self, image: Any) -> Any:
        self.calls += 1
        return super().forward(image)


COUNTED = Counted(16)


@case()
def calls_are_counted(Loader: Any, root: Path, **arguments: Any) -> Any:
    COUNTED.calls = 0
    loader = Loader(GlobalThatCounts(root), batch_size=BATCH, **arguments)
    return [list(loader) for _ in range(2)], COUNTED.calls


class GlobalThatCounts(Paths):
    def __getitem__(self, i: int) -> Any:
        return T.functional.to_tensor(COUNTED(self.open(i))), COUNTED.calls


@case()
def parts_with_one_transform(Loader: Any, root: Path, **arguments: Any) -> Any:
    half = Pictures(root, SMALL)
    half.paths = half.paths[::2]
    loader = Loader(ConcatDataset([Pictures(root, SMALL), half]), batch_size=BATCH, **arguments)
    return [list(loader) for _ in range(2)]


@case()
def parts_with_equal_transforms(Loader: Any, root: Path, **arguments: Any) -> Any:
    parts = [Pictures(root, T.Compose([T.Resize(18), T.CenterCrop(16), T.ToTensor()])) for _ in range(2)]
    return [list(Loader(ConcatDataset(parts), batch_size=BATCH, **arguments)) for _ in range(2)]


@case()
def unlike_parts(Loader: Any, root: Path, **arguments: Any) -> Any:
    parts = [Pictures(root, SMALL), Pictures(root, T.Compose([T.CenterCrop(16), T.ToTensor()]))]
    return [list(Loader(ConcatDataset(parts), batch_size=BATCH, **arguments)) for _ in range(2)]


class Streaming(IterableDataset[Any]):
    """It has what a map has, as mosaicml's StreamingDataset does."""

    def __init__(self, root: Path):
        self.paths = sorted(root.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        return Image.open(self.paths[i]).convert("RGB")

    def __iter__(self) -> Any:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        return (self[i] for i in range(first, len(self), step))


@case()
class OfAStream(Streaming):
    def __init__(self, root: Path):
        super().__init__(root)
        self.transform = SMALL

    def __getitem__(self, i: int) -> Any:
        return self.transform(super().__getitem__(i)), i
