"""A torch DataLoader that can continue in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader, RandomSampler

from ..reading.torch_worker_processes import OwnIterator


class Remembered(RandomSampler):
    """torch's ``RandomSampler`` that remembers the seed of its last permutation, so that it can be repeated."""

    seed: int | None = None
    again: int | None = None
    """Seed of the next permutation, if it is not to be drawn."""
    passes = 0
    """Permutations since the epoch began; several if endless batches are made from it."""

    def __iter__(self) -> Iterator[int]:
        # Drawn as in torch, so that a script has the same permutations with and without gpupipe.
        again, self.again, self.passes = self.again, None, self.passes + 1
        self.seed = int(torch.empty((), dtype=torch.int64).random_().item()) if again is None else again
        self.generator = torch.Generator()
        self.generator.manual_seed(self.seed)
        try:
            yield from super().__iter__()
        finally:
            self.generator = None


class Rest:
    """Indices, or batches of indices, of an epoch without those that were delivered before."""

    def __init__(self, inner: Any, loader: Loader):
        self.inner = inner
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        # A generator does nothing before the first item is requested: torch makes two of them, draws, and uses the
        # second.
        skip, self.loader.skip = self.loader.skip, 0
        yield from islice(self.inner, skip, None)

    def __len__(self) -> int:
        return len(self.inner)


class Loader(TorchLoader[Any]):
    """torch's DataLoader that can begin in the middle of an epoch, and whose workers cannot keep it from ending."""

    skip = 0

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        # As torch's own _get_iterator() does.
        self.check_worker_number_rationality()
        return OwnIterator(self)

    @property
    def _index_sampler(self) -> Rest:
        return Rest(super()._index_sampler, self)
