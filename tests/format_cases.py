"""Writers of images in every format that gpupipe reads, for tests and benchmarks.

They use the packages that users write the formats with. Where that would take a package as large as TensorFlow, a few
lines here do it, and the tests check them with an independent reader. The label of an image is its position.
"""

from __future__ import annotations

import csv
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import add_member
from tfrecords import example, tfrecord

from gpupipe.formats.base import Format
from gpupipe.formats.registry import formats

__all__ = [
    "CASES",
    "Case",
    "Images",
    "bad",
    "content",
    "numbered",
    "write_huggingface",
    "write_manifest",
    "write_tar",
    "write_tfrecord",
]

Images = Sequence[bytes]
SHARDS = 2


@dataclass(frozen=True)
class Case:
    """How to write images, with their positions as labels, to an empty folder, and how to open them."""

    kind: str
    """Name of the class that opens them."""
    write: Callable[[Images, Path], Any]
    """``write(encoded images, folder)`` returns the argument of the class."""
    suffix: str
    """Suffix of the files with images."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the class."""

    @property
    def format(self) -> type[Format]:
        """The class that opens them."""
        return formats()[self.kind.lower()]

    def open(self, given: Any, transform: Any = None, **options: Any) -> Format:
        """Open the dataset of what :attr:`write` returned."""
        return self.format.from_path(given, transform=transform, **self.options, **options)


def shares(images: Images) -> list[range]:
    n = len(images)
    return [range(n * k // SHARDS, n * (k + 1) // SHARDS) for k in range(SHARDS)]


# ---- tar, zip


def write_tar(images: Images, folder: Path) -> str:
    for k, share in enumerate(shares(images)):
        with tarfile.open(folder / f"{k:03d}.tar", "w") as tar:
            for i in share:
                for extension, data in (("jpg", images[i]), ("cls", b"%d" % i)):
                    add_member(tar, f"{i:06d}.{extension}", data)
    return str(folder / f"{{000..{SHARDS - 1:03d}}}.tar")


def zip_writer(method: int) -> Callable[[Images, Path], Path]:
    def write(images: Images, folder: Path) -> Path:
        with zipfile.ZipFile(folder / "images.zip", "w", method) as archive:
            for i in reversed(range(len(images))):  # the archive's order differs from the dataset's
                archive.writestr(f"train/class{i:03d}/photo.jpg", images[i])
        return folder / "images.zip"

    return write


# ---- TFRecord


def imagenet_example(image: bytes, label: int) -> bytes:
    return example(
        {
            "image/height": 100,
            "image/class/text": b"tench",
            "image/object/bbox/xmin": 0.25,
            "image/class/label": label,
            "image/encoded": image,
            "image/filename": b"x.JPEG",
        }
    )


def write_tfrecord(images: Images, folder: Path) -> str:
    for k, share in enumerate(shares(images)):
        content = tfrecord(*(imagenet_example(images[i], i) for i in share))
        (folder / f"train-{k:05d}-of-{SHARDS:05d}").write_bytes(content)
    return str(folder / f"train-{{00000..{SHARDS - 1:05d}}}-of-{SHARDS:05d}")


# ---- Hugging Face


def write_huggingface(images: Images, folder: Path) -> Path:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": [{"bytes": image, "path": None} for image in images], "label": list(range(len(images)))}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(folder / "hf")
    return folder / "hf"


# ---- a list


def write_manifest(images: Images, folder: Path) -> Path:
    """Write one file with all images in a row, and their offsets."""
    at = 7
    with open(folder / "all.bin", "wb") as file, open(folder / "list.csv", "w", newline="") as text:
        file.write(bytes(7))
        lines = csv.writer(text)
        lines.writerow(["path", "offset", "length", "label"])
        for i, image in enumerate(images):
            lines.writerow(["all.bin", at, len(image), i])
            at += file.write(image)
    return folder / "list.csv"


CASES = {
    "tar": Case("WebDataset", write_tar, ".tar"),
    "zip": Case("Zip", zip_writer(zipfile.ZIP_STORED), ".zip"),
    "zip-deflated": Case("Zip", zip_writer(zipfile.ZIP_DEFLATED), ".zip"),
    "tfrecord": Case("TFRecord", write_tfrecord, "-of-00002"),
    "huggingface": Case("HuggingFace", write_huggingface, ".arrow"),
    "manifest": Case("Manifest", write_manifest, ".bin"),
}
"""Every format, some of them in several ways."""


def content(dataset: Any) -> list[tuple[bytes, int | None]]:
    """(bytes, label) of every sample."""
    return [dataset.fetch(i) for i in range(len(dataset))]


def numbered(images: Images) -> list[tuple[bytes, int]]:
    """What :func:`content` is of images whose labels are their positions."""
    return [(image, i) for i, image in enumerate(images)]


def bad(dataset: Any) -> dict[int, tuple[str, str]]:
    """Kind and reason of each bad sample."""
    return {sample.index: (sample.kind, sample.reason) for sample in dataset.index_summary().bad}
