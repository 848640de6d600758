"""A shuffle by blocks, for storage on which reading here and there is slow: neighbours are read together, and mixed
with those of other blocks. How much worse than a full permutation that mixes is measured here too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..rng import stream
from .order import Order, Shuffle

__all__ = ["BlockShuffle", "BlockShuffled", "Quality", "quality", "starts_of"]

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_BATCHES = 64
"""Of an epoch, that its quality is measured by."""


@dataclass(frozen=True)
class BlockShuffle:
    """A shuffle for shards on slow storage: the dataset is cut into blocks of neighbouring samples, the blocks come in
    random order, and the samples of so many blocks at a time are permuted. Every epoch has every sample once, in
    another order.

    Args:
        block_bytes: of a block, about; samples are never cut.
        blocks: how many are mixed at a time. What is read again and again meanwhile are ``blocks * block_bytes`` bytes,
            which a cache must hold for every block to be read once.

    Raises:
        ConfigError: a number is not positive.

    >>> BlockShuffle(blocks=128)
    BlockShuffle(block_bytes=8388608, blocks=128)
    """

    block_bytes: int = 8 << 20
    blocks: int = 64

    def __post_init__(self) -> None:
        for name in ("block_bytes", "blocks"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"BlockShuffle: {name} must be a positive integer, not {value!r}")

    @property
    def name(self) -> str:
        """What a loader and its states call the order."""
        return f"shuffled by blocks of {self.block_bytes:,} bytes, {self.blocks} mixed at a time"


def starts_of(sizes: I64, block_bytes: int) -> I64:
    """The first sample of each block, i64[K], of samples of ``sizes`` i64[N] bytes.

    >>> starts_of(np.array([40, 40, 40, 200, 10]), 100).tolist()
    [0, 3, 4]
    """
    before = np.cumsum(sizes) - sizes
    return np.flatnonzero(np.diff(before // block_bytes, prepend=-1))


class BlockShuffled:
    """The order of one epoch, keyed by (seed, epoch); no more of it is stored than one number per block.

    Args:
        n: samples.
        starts: the first sample of each block, i64[K], from 0 on.
        blocks: how many are mixed at a time.
    """

    def __init__(self, n: int, starts: I64, blocks: int, seed: int, epoch: int):
        self.n = n
        self._seed, self._epoch = seed, epoch
        turn = Shuffle(len(starts), stream(seed, "blocks"), epoch).at(np.arange(len(starts)))[0]
        self._first = starts[turn]
        """i64[K]: of each block in the order of the epoch its first sample."""
        sizes = np.diff(starts, append=n)[turn]
        self._begins = np.cumsum(sizes) - sizes
        """i64[K]: and its first position, if it were not mixed."""
        self._groups = np.append(self._begins[::blocks], n)
        """The first position of what is mixed at a time, and the end."""

    def __len__(self) -> int:
        return self.n

    def at(self, positions: I64) -> tuple[I64, U64]:
        group = np.searchsorted(self._groups, positions, "right") - 1
        mixed = np.empty(len(positions), np.int64)
        for g in np.unique(group).tolist():
            mine, (start, end) = group == g, self._groups[g : g + 2].tolist()
            inside = Shuffle(end - start, stream(self._seed, "block", g), self._epoch).at(positions[mine] - start)[0]
            mixed[mine] = start + inside
        block = np.searchsorted(self._begins, mixed, "right") - 1
        indices = self._first[block] + mixed - self._begins[block]
        return indices, indices.astype(np.uint64)


@dataclass(frozen=True)
class Quality:
    """How well an order mixes. Of a full permutation the displacement is a third, and the classes are those of
    ``global_classes``."""

    displacement: float
    """Mean distance of a sample's position from that in the dataset, as a share of the dataset."""
    distance: float
    """Mean distance in the dataset between samples that follow each other, as a share of it; a third likewise."""
    classes: float | None
    """Mean number of different labels in a batch; ``None`` if there are no labels."""
    global_classes: float | None

    def __str__(self) -> str:
        text = f"mean displacement {self.displacement:.3f} of the dataset (0.333 of a full permutation)"
        if self.classes is None:
            return text
        return f"{text}, {self.classes:.1f} classes per batch ({self.global_classes:.1f})"


def quality(order: Order, n: int, labels: I64 | None, batch_size: int) -> Quality:
    """Measured on up to 64 batches of an epoch.

    Args:
        order: of ``n`` samples.
        labels: i64[n].
        batch_size: over all ranks.
    """
    size = min(batch_size, n)
    firsts = np.linspace(0, n - size, min(_BATCHES, max(1, n // size))).astype(np.int64)
    positions = firsts[:, None] + np.arange(size)
    batches = order.at(positions.reshape(-1))[0].reshape(positions.shape)
    displacement = float(np.abs(batches - positions).mean() / n)
    distance = float(np.abs(np.diff(batches, axis=1)).mean() / n) if size > 1 else 0.0
    if labels is None:
        return Quality(displacement, distance, None, None)
    _, counts = np.unique(labels, return_counts=True)
    # The expected number of different labels among samples that are drawn independently.
    expected = float((1 - (1 - counts / len(labels)) ** size).sum())
    classes = float(np.mean([len(np.unique(labels[batch])) for batch in batches]))
    return Quality(displacement, distance, classes, expected)
