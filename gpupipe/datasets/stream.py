"""``Stream``: an iterable of samples, divided among ranks and workers, and shuffled in a buffer."""

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


class Stream(IterableDataset[Any]):
    """A stream of samples, read by torch's DataLoader.

    Ranks and workers share no samples if ``iter(samples)`` gives the same samples everywhere. Each rank takes one of
    every ``world_size`` consecutive samples, so that all ranks have equally many; a remainder at the end is dropped.
    Every rank and every worker reads the whole stream and discards the samples of the others.

    The shuffle works within the buffer: a sample comes at most ``buffer_size`` places too early. A resumed epoch reads
    the stream again up to its position. A dataset with an index (:class:`~gpupipe.datasets.WebDataset` for tar files)
    shuffles globally and resumes without reading.

    Args:
        samples: iterated once per epoch. It must not divide itself among ranks or workers.
        buffer_size: number of buffered samples that each sample is drawn from; 0 keeps the order of the stream.
        seed: of the shuffle, together with the epoch.
        shard: this rank's part. The loader's argument ``shard`` sets it.

    Raises:
        DatasetError: ``samples`` cannot be iterated repeatedly, or ``buffer_size`` is invalid.

    >>> from gpupipe import DataLoader
    >>> from gpupipe.types import Shard
    >>> [batch.tolist() for batch in DataLoader(Stream(range(7)), batch_size=2, shard=Shard(1, 2), device="cpu")]
    [[1, 3], [5]]
    """

    def __init__(self, samples: Iterable[Any], *, buffer_size: int = 0, seed: int = 0, shard: Shard | None = None):
        if not hasattr(samples, "__iter__") or isinstance(samples, Iterator):
            raise DatasetError(
                f"Stream: {type(samples).__name__} can be iterated only once; give an object whose __iter__ starts "
                "again in each epoch, such as an IterableDataset"
            )
        if type(buffer_size) is not int or buffer_size < 0:
            raise DatasetError(f"Stream: buffer_size must be a number of samples, not {buffer_size!r}")
        self.samples = samples
        self.buffer_size = buffer_size
        self.seed = seed
        self.shard = shard or Shard()
        # Persistent workers have copies of everything except shared memory.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def part(self, shard: Shard) -> Stream:
        """Return the stream for one rank."""
        return Stream(self.samples, buffer_size=self.buffer_size, seed=self.seed, shard=shard)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next ``iter()``, which selects the shuffle."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        """Length on this rank. Raises :class:`TypeError` if the samples have no length."""
        return len(self.samples) // self.shard.world_size  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        own = islice(self._of_rank(), number, None, count)
        if not self.buffer_size:
            return own
        return _shuffled(own, self.buffer_size, stream(self.seed, int(self._epoch), self.shard.rank, number))

    def _of_rank(self) -> Iterator[Any]:
        """Yield this rank's sample of every complete group of ``world_size`` samples."""
        rank, ranks = self.shard.rank, self.shard.world_size
        mine: Any = None
        for i, sample in enumerate(self.samples):
            if i % ranks == rank:
                mine = sample
            if i % ranks == ranks - 1:
                yield mine

    def promise(self) -> str:
        """Describe order and division, for the ``repr`` of a loader."""
        order = f"shuffled within {self.buffer_size:,} samples" if self.buffer_size else "that of the stream"
        part = "" if self.shard.world_size == 1 else f", each rank one of every {self.shard.world_size} samples"
        return f"{order}, each worker its part{part}"

    def __repr__(self) -> str:
        return f"Stream({type(self.samples).__name__}, {self.promise()})"


def _shuffled(samples: Iterator[Any], size: int, seed: int) -> Iterator[Any]:
    """Yield samples at most ``size`` places too early."""
    rng = np.random.default_rng(seed)
    waiting = list(islice(samples, size))
    for sample in samples:
        i = int(rng.integers(size))
        yield waiting[i]
        waiting[i] = sample
    rng.shuffle(waiting)
    yield from waiting
