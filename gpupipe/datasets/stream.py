"""``Stream``: an iterable of samples, cut into parts for ranks and workers, and shuffled within a buffer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..errors import DatasetError
from ..rng import stream
from ..types import Shard

__all__ = ["Stream"]


class Stream(IterableDataset[Any]):
    """A stream of samples, from which nothing can be had but the next one. torch's own loader reads it.

    What can be promised of a stream: ranks and workers share nothing, if ``iter(samples)`` gives the same everywhere.
    Of every ``world_size`` samples that follow each other each rank takes one, so that all ranks have equally many, and
    what is left at the end is left out. Every rank and every worker reads all of it and lets go of the others' parts.
    The shuffle is one within the buffer: a sample comes ``buffer_size`` places too early at most. A resumed epoch reads
    the stream again up to where it stood. A dataset with an index (:class:`~gpupipe.datasets.WebDataset` for tar
    files) shuffles over everything and resumes without reading.

    Args:
        samples: is iterated over once in each epoch; it must not cut itself into ranks or workers.
        buffer_size: of so many samples that wait one is drawn; 0: the order of the stream.
        seed: of the shuffle, together with the epoch.
        shard: this rank's part. The loader's argument ``shard`` sets it.

    Raises:
        DatasetError: ``samples`` cannot be iterated over again and again, or ``buffer_size`` is no number of samples.

    >>> from gpupipe import DataLoader
    >>> from gpupipe.types import Shard
    >>> [batch.tolist() for batch in DataLoader(Stream(range(7)), batch_size=2, shard=Shard(1, 2), device="cpu")]
    [[1, 3], [5]]
    """

    def __init__(self, samples: Iterable[Any], *, buffer_size: int = 0, seed: int = 0, shard: Shard | None = None):
        if not hasattr(samples, "__iter__") or isinstance(samples, Iterator):
            raise DatasetError(
                f"Stream: {type(samples).__name__} is not iterated over again in each epoch; give an object whose "
                "__iter__ begins anew, such as an IterableDataset"
            )
        if type(buffer_size) is not int or buffer_size < 0:
            raise DatasetError(f"Stream: buffer_size must be a number of samples, not {buffer_size!r}")
        self.samples = samples
        self.buffer_size = buffer_size
        self.seed = seed
        self.shard = shard or Shard()
        # Workers that go on from epoch to epoch have copies of everything but shared memory.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def part(self, shard: Shard) -> Stream:
        """The same for a rank."""
        return Stream(self.samples, buffer_size=self.buffer_size, seed=self.seed, shard=shard)

    def set_epoch(self, epoch: int) -> None:
        """Which shuffle the next ``iter()`` gives."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        """Of this rank. Raises :class:`TypeError` if the samples have no length."""
        return len(self.samples) // self.shard.world_size  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        own = islice(self._of_rank(), number, None, count)
        if not self.buffer_size:
            return own
        return _shuffled(own, self.buffer_size, stream(self.seed, int(self._epoch), self.shard.rank, number))

    def _of_rank(self) -> Iterator[Any]:
        """One sample of every whole group of as many as there are ranks."""
        rank, ranks = self.shard.rank, self.shard.world_size
        mine: Any = None
        for i, sample in enumerate(self.samples):
            if i % ranks == rank:
                mine = sample
            if i % ranks == ranks - 1:
                yield mine

    def promise(self) -> str:
        """In words, for ``repr`` of a loader."""
        order = f"shuffled within {self.buffer_size:,} samples" if self.buffer_size else "that of the stream"
        part = "" if self.shard.world_size == 1 else f", each rank one of every {self.shard.world_size} samples"
        return f"{order}, each worker its part{part}"

    def __repr__(self) -> str:
        return f"Stream({type(self.samples).__name__}, {self.promise()})"


def _shuffled(samples: Iterator[Any], size: int, seed: int) -> Iterator[Any]:
    """A sample comes at most ``size`` places before its own."""
    rng = np.random.default_rng(seed)
    waiting = list(islice(samples, size))
    for sample in samples:
        i = int(rng.integers(size))
        yield waiting[i]
        waiting[i] = sample
    rng.shuffle(waiting)
    yield from waiting
