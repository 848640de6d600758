"""Datasets without an index, and datasets of datasets."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterator
from typing import Any

from PIL import Image
from torch.utils.data import ChainDataset, ConcatDataset, IterableDataset, StackDataset, get_worker_info
from torchvision import datasets

from ..harness.script import Args, Epochs, script
from .common import PLAIN, TRAIN


class Shards(IterableDataset[Any]):
    """tar files of images and labels, split among workers, through a shuffle buffer."""

    def __init__(self, urls: list[Any], transform: Any, buffer: int = 0):
        self.urls, self.transform, self.buffer = urls, transform, buffer

    def samples(self) -> Iterator[Any]:
        worker = get_worker_info()
        urls = self.urls if worker is None else self.urls[worker.id :: worker.num_workers]
        for url in urls:
            with tarfile.open(url) as tar:
                parts: dict[str, bytes] = {}
                for member in tar:
                    content = tar.extractfile(member)
                    assert content is not None
                    parts[member.name.rpartition(".")[2]] = content.read()
                    if len(parts) == 2:
                        yield parts["jpg"], int(parts["cls"])
                        parts = {}

    def __iter__(self) -> Iterator[Any]:
        waiting: list[Any] = []
        for sample in self.samples():
            waiting.append(sample)
            if len(waiting) > self.buffer:
                yield self.decode(waiting.pop(random.randrange(len(waiting))))
        random.shuffle(waiting)
        yield from map(self.decode, waiting)

    def decode(self, sample: Any) -> Any:
        encoded, label = sample
        return self.transform(Image.open(io.BytesIO(encoded)).convert("RGB")), label


@script(engine="dali", workers=2)
def webdataset_shards(args: Args, DataLoader: Any) -> Epochs:
    """WebDataset-like: an iterable over tar files, split by get_worker_info, batched by the loader."""
    urls = sorted((args.data / "shards").iterdir())
    loader = DataLoader(Shards(urls, TRAIN, buffer=8), batch_size=6, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(Shards(urls, PLAIN), batch_size=6)


@script(engine="dali")
def chained_streams(args: Args, DataLoader: Any) -> Epochs:
    """Two streams one after the other: ChainDataset, and the plus between iterable datasets."""
    urls = sorted((args.data / "shards").iterdir())
    yield DataLoader(ChainDataset([Shards(urls[:1], PLAIN), Shards(urls[2:], PLAIN)]), batch_size=8)
    yield DataLoader(Shards(urls[:1], PLAIN) + Shards(urls[1:2], PLAIN), batch_size=8)


@script(engine="dali")
def concatenated(args: Args, DataLoader: Any) -> Epochs:
    """Training on two datasets: ConcatDataset, and the plus between datasets."""
    first = datasets.ImageFolder(args.data / "train", PLAIN)
    second = datasets.ImageFolder(args.data / "val", PLAIN, target_transform=lambda y: y + 36)
    loader = DataLoader(ConcatDataset([first, second]), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(second + first, batch_size=8)


@script(engine="dali")
def stacked(args: Args, DataLoader: Any) -> Epochs:
    """Samples of two datasets as one dict: StackDataset."""
    plain = datasets.ImageFolder(args.data / "train", PLAIN)
    augmented = datasets.ImageFolder(args.data / "train", TRAIN)
    loader = DataLoader(StackDataset(clean=plain, augmented=augmented), batch_size=8, shuffle=True)
    yield from [loader] * args.epochs
