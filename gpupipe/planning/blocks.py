"""Shuffling by blocks for storage with slow random access.

Neighboring samples are read together and mixed with those of other blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..rng import stream
from .order import Shuffle

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class BlockShuffle:
    """Shuffle by blocks, for shards on slow storage.

    The dataset is cut into blocks of neighboring samples. The blocks come in
    random order, and the samples of ``blocks`` blocks at a time are permuted. Every epoch has every sample once, in a
    different order.

    Args:
        block_bytes: approximate size of a block; samples are never cut.
        blocks: number of blocks mixed at a time. A cache must hold ``blocks * block_bytes`` bytes for every block to be
            read only once.

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
        """Name of the order in loaders and states."""
        return f"shuffled by blocks of {self.block_bytes:,} bytes, {self.blocks} mixed at a time"


def starts_of(sizes: I64, block_bytes: int) -> I64:
    """Return the first sample of each block, i64[K], for samples of ``sizes`` i64[N] bytes.

    >>> starts_of(np.array([40, 40, 40, 200, 10]), 100).tolist()
    [0, 3, 4]
    """
    # A sample belongs to the block in which its first byte lies, so it is never cut.
    before = np.cumsum(sizes) - sizes
    return np.flatnonzero(np.diff(before // block_bytes, prepend=-1))


class BlockShuffled:
    """Order of one epoch, keyed by (seed, epoch). It stores one number per block.

    Args:
        n: number of samples.
        starts: first sample of each block, i64[K], beginning with 0.
        blocks: number of blocks mixed at a time.
    """

    def __init__(self, n: int, starts: I64, blocks: int, seed: int, epoch: int):
        self.n = n
        self._seed, self._epoch = seed, epoch
        # Blocks are permuted first, and then the samples within each group of blocks.
        turn = Shuffle(len(starts), stream(seed, "blocks"), epoch).at(np.arange(len(starts)))[0]
        self._first = starts[turn]
        """i64[K]: first sample of each block, in the order of the epoch."""
        sizes = np.diff(starts, append=n)[turn]
        self._begins = np.cumsum(sizes) - sizes
        """i64[K]: first position of each block before mixing."""
        self._groups = np.append(self._begins[::blocks], n)
        """First position of each group of blocks that are mixed, and the end."""

    def __len__(self) -> int:
        return self.n

    def at(self, positions: I64) -> tuple[I64, U64]:
        group = np.searchsorted(self._groups, positions, "right") - 1
        mixed = np.empty(len(positions), np.int64)
        for g in np.unique(group).tolist():
            mine, (start, end) = group == g, self._groups[g : g + 2].tolist()
            # Each group has a key of its own. Otherwise all groups of the same size would be permuted alike.
            inside = Shuffle(end - start, stream(self._seed, "block", g), self._epoch).at(positions[mine] - start)[0]
            mixed[mine] = start + inside
        # Positions after mixing count along the permuted blocks; translate them to indices of the dataset.
        block = np.searchsorted(self._begins, mixed, "right") - 1
        indices = self._first[block] + mixed - self._begins[block]
        return indices, indices.astype(np.uint64)
