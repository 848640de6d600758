"""What does it cost to read Parquet as pyarrow writes it by default, with a thousand images in each compressed page?

Predictions. In order, and by blocks that fit the cache of pages, a page of 110 MB is unpacked once for 1,024 images:
about 0.1 ms per image, so at least 0.95 of the folder. At random nearly every image unpacks a page unless the cache
holds them all: about 0.1 s per image, so a few hundredths of the folder. Without compression, as ``gpupipe pack``
writes Parquet, the order makes no difference.

Measured, on copies of the photographs that differ in their last bytes, more than the cache holds:

- images per second of ``imagenet.train(224)`` on DALI's CPU backend, in turn, behind the first batch of some;
- reading alone, of a whole epoch: milliseconds and unpacked pages per image. At random only some images are read.

    python benchmarks/parquet_pages.py [FOLDER]      # writes results/parquet_pages.json
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import IMAGES, Table, describe_files, machine, photographs, save

from gpupipe import BlockShuffle, DataLoader
from gpupipe.codecs.page_cache import CACHE_BYTES, PAGES
from gpupipe.datasets import ImageFolder, Parquet
from gpupipe.pipelines import imagenet

PAGE = 1024
"""Images of a page, as pyarrow writes them."""


def write(paths: list[str], count: int, folder: Path) -> None:
    """The photographs as a folder of files and as Parquet with the defaults of pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    photos = [Path(path).read_bytes() for path in paths]
    images = [photos[i % len(photos)] + b"%08d" % i for i in range(count)]
    (folder / "files" / "all").mkdir(parents=True)
    for i, image in enumerate(images):
        (folder / "files" / "all" / f"{i:06d}.jpg").write_bytes(image)
    pq.write_table(pa.table({"image": images, "label": [0] * count}), folder / "pages.parquet")
    pq.write_table(pa.table({"image": images, "label": [0] * count}), folder / "plain.parquet", compression="none")


def timed(make: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    made = make()
    return made, time.perf_counter() - start


def speed(dataset: Any, shuffle: Any, batches: int, args: argparse.Namespace) -> float:
    """Images per second behind the first batch."""
    PAGES.clear()
    with DataLoader(
        dataset, batch_size=args.batch, shuffle=shuffle, num_workers=args.workers, drop_last=True,
        engine="dali", device="cpu", seed=0,
    ) as loader:  # fmt: skip
        epoch = iter(loader)
        next(epoch)
        start, count = time.perf_counter(), 0
        for _ in range(min(batches, len(loader)) - 1):
            next(epoch)
            count += args.batch
        seconds = time.perf_counter() - start
    return count / seconds


def reading(dataset: Any, shuffle: Any, most: int, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds and unpacked pages per image, without decoding, of an epoch or its first ``most`` images."""
    with DataLoader(dataset, batch_size=args.batch, shuffle=shuffle, engine="null", device="cpu", seed=0) as loader:
        order = [int(i) for plan, *_ in loader for i in plan.indices][:most]
    PAGES.clear()
    start = time.perf_counter()
    for index in order:
        dataset.fetch(index)
    seconds = time.perf_counter() - start
    return {"read_ms": seconds / len(order) * 1e3, "pages_per_image": PAGES.unpacked / len(order)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES if IMAGES.is_dir() else None)
    parser.add_argument("--images", type=int, default=6 * PAGE)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=13)
    parser.add_argument("--random-batches", type=int, default=3)
    args = parser.parse_args()
    with photographs(args.folder, count=128) as paths, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(paths, args.images, folder)
        transform = imagenet.train(224)
        files, files_seconds = timed(lambda: ImageFolder(folder / "files", transform))
        pages, pages_seconds = timed(lambda: Parquet(folder / "pages.parquet", transform))
        plain, plain_seconds = timed(lambda: Parquet(folder / "plain.parquet", transform))
        about = pages.pages
        assert about is not None
        blocks = BlockShuffle(about.largest, max(CACHE_BYTES // about.largest - 1, 1))
        cases = {
            "folder, at random": (files, True, args.batches),
            "Parquet, in order": (pages, False, args.batches),
            "Parquet, by blocks": (pages, blocks, args.batches),
            "Parquet, at random": (pages, True, args.random_batches),
            "Parquet without compression, at random": (plain, True, args.batches),
        }
        found: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(args.rounds):
            for name, case in cases.items():
                found[name].append(speed(*case, args))
        base = found["folder, at random"]
        rows: list[dict[str, Any]] = []
        table = Table("case", "of the folder", "least", "most", "images/s", "read ms", "pages/image")
        for name, rounds in found.items():
            ratios = [a / b for a, b in zip(rounds, base, strict=True)]
            row = {
                "case": name,
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
                "images_per_second": statistics.median(rounds),
                **reading(*cases[name][:2], 3 * args.batch if name == "Parquet, at random" else 1 << 30, args),
            }
            rows.append(row)
            table.row(*row.values())
        result = {
            "machine": machine(),
            "settings": {name: value for name, value in vars(args).items() if name != "folder"}
            | {"blocks": blocks.name},
            "photographs": describe_files(paths),
            "pages": {"count": int(about.number[-1]) + 1, "largest": about.largest, "images": about.samples},
            "most_cached_bytes": PAGES.most_bytes,
            "index_seconds": {"folder": files_seconds, "pages": pages_seconds, "without compression": plain_seconds},
            "rows": rows,
        }
        print(save("parquet_pages", result))


if __name__ == "__main__":
    main()
