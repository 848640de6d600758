"""Are damaged blocks of the caches ever believed, and what do the sums that tell them cost?

Prediction: of 1,000 blocks of each kind of damage, in the cache of decoded images and in that of remote containers,
none is believed. An image that is kept decoded is read and cropped with sums at 0.98 of the speed without, or faster.

Measured: blocks of the size of a photograph of 500 x 375 decoded (562,500 bytes) and of 1 MiB, damaged one by one: a
bit flipped, a part overwritten with zeros, the end cut off, the file exchanged for that of another block. Then the
speed of an epoch through a loader with ``cache="disk"``, with sums and with sums that are not computed; both take turns
in one run.

    python benchmarks/cache_faults.py     # writes results/cache_faults.json
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from _common import heading, photographs, save

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import ImageList
from gpupipe.sources.remote import block_cache
from gpupipe.sources.remote.block_cache import BlockCache

BLOCKS = 20
SIZES = {"decoded image": 500 * 375 * 3, "remote block": 1 << 20}


def flipped(path: Path, _: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def zeroed(path: Path, _: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    start = chance.randrange(len(data)) // 4096 * 4096
    data[start:] = bytes(len(data) - start)
    path.write_bytes(data)


def cut(path: Path, _: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def swapped(path: Path, other: Path, _: random.Random) -> None:
    path.write_bytes(other.read_bytes())


DAMAGES: tuple[Callable[[Path, Path, random.Random], None], ...] = (flipped, zeroed, cut, swapped)


def trusted(folder: str, size: int, count: int) -> dict[str, int]:
    """Count how many of ``count`` damaged blocks were accepted, by kind of damage."""
    cache, chance = BlockCache(folder, 1 << 40), random.Random(0)
    blocks = [np.random.default_rng(i).bytes(size) for i in range(BLOCKS)]
    places: list[Path] = []
    for i, block in enumerate(blocks):
        cache.put(b"url", 1, i, block)
        places += [path for path in Path(folder).rglob(f"*-{i}.block") if path not in places]
    whole = [path.read_bytes() for path in places]
    found = {}
    for damage in DAMAGES:
        found[damage.__name__] = 0
        for _ in range(count):
            i = chance.randrange(BLOCKS)
            damage(places[i], places[(i + 1) % BLOCKS], chance)
            found[damage.__name__] += cache.read(b"url", 1, i, 0, size) is not None
            places[i].write_bytes(whole[i])
    return found


def without_sums(cache: BlockCache, fd: int, found: os.stat_result, seed: int, start: int, length: int) -> Any:
    """Read a part of a block as if nothing were checked."""
    return block_cache._read(fd, start, length)[0]


def seconds(loader: DataLoader) -> float:
    began = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - began


def speed(paths: list[str], args: argparse.Namespace) -> dict[str, Any]:
    transform = T.Compose(
        [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,) * 3, (0.25,) * 3)]
    )
    dataset = ImageList(paths, [0] * len(paths), transform=transform)
    result: dict[str, Any] = {}
    with DataLoader(dataset, 64, cache="disk", cache_bytes=1 << 34, device="cpu", num_workers=2) as loader:
        result["filling_seconds"] = seconds(loader)
        seconds(loader)
        checked, unchecked = [], []
        for i in range(args.rounds):
            for with_sums in ((True, False), (False, True))[i % 2]:
                if with_sums:
                    checked.append(seconds(loader))
                else:
                    with mock.patch.object(BlockCache, "_verified", without_sums):
                        unchecked.append(seconds(loader))
        result["engine"] = loader.engine
    rates = [len(paths) / s for s in checked]
    ratios = [b / a for a, b in zip(checked, unchecked, strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    return result | {
        "images_per_second": statistics.median(rates),
        "to_without_sums": {"median": statistics.median(ratios), "quartiles": [quarters[0], quarters[2]]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error("give at least two rounds")
    result: dict[str, Any] = heading(__doc__, args)
    with tempfile.TemporaryDirectory() as folder:
        result["trusted"] = {
            name: trusted(os.path.join(folder, name), size, args.count) for name, size in SIZES.items()
        }
        os.environ["GPUPIPE_CACHE"] = os.path.join(folder, "cache")
        with photographs(None, count=args.images) as paths:
            result["speed"] = speed(paths, args)
    print(result["trusted"], result["speed"], save("cache_faults", result), sep="\n")


if __name__ == "__main__":
    main()
