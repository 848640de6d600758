"""How well does a shuffle by blocks mix, and what does it spare a store behind a network?

Predictions. Of 1.28 million samples of 110 kB, sorted by class, blocks of 8 MiB have 76 samples, of one class mostly: a
batch of 256 out of 64 blocks has somewhat fewer than 64 classes, where a full permutation gives 226; if the shards were
packed in random order (``gpupipe pack --shuffle``), 226 in both. From a store, with a cache for three tenths of the
data: a full permutation asks for each sample by itself, or loads seven times the bytes if blocks of 1 MiB are kept; a
shuffle by blocks loads every byte once, with a tenth of the requests.

Measured: the first by :func:`gpupipe.planning.blocks.quality` on 64 batches, nothing is read; the second by one epoch
of reading a file of random bytes in the order of the loader, by fsspec (``file://``), with requests counted.

    python benchmarks/block_shuffle.py      # writes results/block_shuffle.json
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from _common import Table, machine, save

from gpupipe.codecs.files import Place
from gpupipe.datasets import Remote
from gpupipe.planning.blocks import BlockShuffle, BlockShuffled, quality, starts_of
from gpupipe.planning.order import Order, Shuffle
from gpupipe.sources.remote.clients import ByteRange, Fsspec
from gpupipe.sources.remote.files import RemoteFiles

SAMPLES, CLASSES, MEAN_BYTES, BATCH = 1_281_167, 1_000, 110_000, 256
BLOCKS = (1, 16, 64, 256, 1024)
READ, READ_BATCH = 2_000, 64
"""Samples that are read."""
CASES: tuple[tuple[str, Literal["samples", "blocks"]], ...] = (
    ("full permutation", "samples"), ("full permutation", "blocks"), ("by blocks", "blocks"),
)  # fmt: skip
"""Orders, and what is fetched."""


def sizes_of(n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.default_rng(0).gamma(4, MEAN_BYTES / 4, n).astype(np.int64) + 1_000


def mixing() -> list[dict[str, Any]]:
    """The quality of each order, with labels sorted as in class folders, and in random order."""
    sizes, rng = sizes_of(SAMPLES), np.random.default_rng(1)
    ordered = np.sort(rng.integers(0, CLASSES, SAMPLES))
    labels = {"sorted by class": ordered, "packed in random order": rng.permutation(ordered)}
    rows: list[dict[str, Any]] = []
    table = Table("order", "displacement", "sorted", "random", first=30)
    for blocks in (*BLOCKS, 0):
        asked = BlockShuffle(blocks=blocks) if blocks else None
        order: Order = Shuffle(SAMPLES, 0, 0)
        if asked is not None:
            order = BlockShuffled(SAMPLES, starts_of(sizes, asked.block_bytes), blocks, 0, 0)
        found = {name: quality(order, SAMPLES, each, BATCH) for name, each in labels.items()}
        one = found["sorted by class"]
        rows.append(
            {
                "blocks": blocks,
                "held_bytes": blocks * asked.block_bytes if asked else None,
                "displacement": one.displacement,
                "classes": {name: q.classes for name, q in found.items()},
                "global_classes": one.global_classes,
            }
        )
        name = f"{blocks} blocks of 8 MiB" if blocks else "full permutation"
        table.row(name, one.displacement, *(q.classes for q in found.values()))
    return rows


class Counted(Fsspec):
    """Counts the requests."""

    requests = nbytes = 0

    def fetch(self, ranges: Sequence[ByteRange]) -> list[memoryview | OSError]:
        found = super().fetch(ranges)
        self.requests += len(ranges)
        self.nbytes += sum(len(data) for data in found if not isinstance(data, OSError))
        return found


def reading() -> list[dict[str, Any]]:
    """Requests and bytes of one epoch, as shares of the samples and of their bytes."""
    from gpupipe.sources.remote import files

    sizes = sizes_of(READ)
    starts = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    asked = BlockShuffle(block_bytes=4 << 20, blocks=8)
    orders: dict[str, Order] = {
        "full permutation": Shuffle(READ, 0, 0),
        "by blocks": BlockShuffled(READ, starts_of(sizes, asked.block_bytes), asked.blocks, 0, 0),
    }
    rows = []
    table = Table("order, what is fetched", "requests", "bytes", first=30)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shard.bin")
        path.write_bytes(os.urandom(total))
        url = f"file://{path}".encode()
        for how, fetch in CASES:
            options = Remote(
                cache_folder=Path(folder, f"{how} {fetch}"), cache_bytes=max(64 << 20, total * 3 // 10), fetch=fetch
            )
            storage, client = RemoteFiles(options), Counted(8)
            files._connections(options)._clients["file"] = client
            (found,) = storage.look([url])
            assert not isinstance(found, OSError)
            for first in range(0, READ, READ_BATCH):
                indices = orders[how].at(np.arange(first, min(first + READ_BATCH, READ)))[0].tolist()
                places = [Place(url, int(starts[i]), int(sizes[i]), found.version) for i in indices]
                assert all(isinstance(data, bytes) for data in storage.read(places))
            row = {
                "order": how,
                "fetch": fetch,
                "requests_per_sample": client.requests / READ,
                "bytes_to_all": client.nbytes / total,
                "cache_to_all": options.cache_bytes / total,
            }
            rows.append(row)
            table.row(f"{how}, {fetch}", row["requests_per_sample"], row["bytes_to_all"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    settings = {"samples": SAMPLES, "classes": CLASSES, "batch": BATCH, "mean_bytes": MEAN_BYTES, "read": READ}
    print(save("block_shuffle", {"machine": machine(), "settings": settings, "mixing": mixing(), "reading": reading()}))


if __name__ == "__main__":
    main()
