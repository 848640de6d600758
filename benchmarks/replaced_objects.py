"""Does an object that is replaced by another of the same size ever give pixels with another sample's label?

Prediction: in none of the four combinations of ETag and Last-Modified. With one of them every answer says which version
it is of; with neither every sample is compared with a checksum of what was indexed, and the index is made in every run.

Measured: tar files on a store of this machine, whose images are replaced in the opposite order, with files of the same
size: between two runs, and in the middle of one. Every sample that is delivered is compared with the image that belongs
to its label. "wrong" counts others, "refused" samples that were bad, "stale" runs that began after the replacement and
still delivered what was there before.

    python benchmarks/replaced_objects.py    # writes results/replaced_objects.json
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from itertools import product
from pathlib import Path
from typing import Any

from _common import Table, heading, save
from format_cases import write_tar
from jpegs import pillow_jpeg
from store import Store, store

from gpupipe.codecs.files import Undecodable
from gpupipe.datasets import Remote, WebDataset
from gpupipe.sources.remote.options import Fetch

_IMAGES = 40
FETCHES: tuple[Fetch, ...] = ("blocks", "samples")


def put(found: Store, images: list[bytes], folder: Path, second: int) -> None:
    write_tar(images, folder)
    for path in folder.glob("*.tar"):
        found.objects[f"public/{path.name}"] = path.read_bytes()
        found.modified[f"public/{path.name}"] = second


def compared(dataset: WebDataset, now: list[bytes], before: list[bytes]) -> dict[str, int]:
    """``now``: the image of each label; ``before``: its image before the replacement."""
    counts = {"good": 0, "stale": 0, "refused": 0, "wrong": 0}
    for i in range(len(dataset)):
        try:
            data, label = dataset.fetch(i)
        except Undecodable:
            counts["refused"] += 1
            continue
        assert label is not None
        counts["good" if data == now[label] else "stale" if data == before[label] else "wrong"] += 1
    return counts


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    warnings.simplefilter("ignore")
    images = [pillow_jpeg(64, 64, i) for i in range(_IMAGES)]
    longest = max(map(len, images))
    before = [image.ljust(longest, b"\0") for image in images]
    now = before[::-1]
    table = Table("ETag", "Last-Modified", "fetch", "replaced", "good", "stale", "refused", "wrong", first=8)
    rows: list[dict[str, Any]] = []
    for etags, dates, fetch, when in product((True, False), (True, False), FETCHES, ("between", "during")):
        with store() as found, tempfile.TemporaryDirectory() as name:
            found.etags, found.dates = etags, dates
            folder, url = Path(name), f"{found.url}/public/{{000..001}}.tar"
            os.environ["GPUPIPE_CACHE"] = str(folder / "cache")
            remote = Remote(fetch=fetch, cache_folder=folder / "blocks", block_bytes=4096)
            put(found, before, folder, 0)
            dataset = WebDataset(url, remote=remote)
            for path in (folder / "blocks").rglob("*.block"):  # as if other data had taken their place
                path.unlink()
            put(found, now, folder, 5)
            if when == "between":
                dataset = WebDataset(url, remote=remote)
            counts = compared(dataset, now if when == "between" else before, before)
            about = {"etag": etags, "last_modified": dates, "fetch": fetch, "replaced": when}
            rows.append({**about, **counts})
            table.row(*(str(value) for value in (*about.values(), *counts.values())))
    print(save("replaced_objects", {**heading(__doc__, {"images": _IMAGES}), "rows": rows}))
    if any(row["wrong"] or row["stale"] for row in rows):
        sys.exit("samples with other samples' labels")


if __name__ == "__main__":
    main()
