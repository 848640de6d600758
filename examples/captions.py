"""Images with captions: what the recipes for CLIP and diffusion read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from gpupipe import datasets
from gpupipe.testing.photos import make_photos

__all__ = ["captioned", "make", "tokens"]

_WORDS = "first", "second", "third", "fourth"
VOCABULARY = 4096
LENGTH = 16


def make(root: Path) -> None:
    """Make a folder of photographs with captions in ``metadata.csv``."""
    make_photos(root, classes=4, per_class=48)
    files = sorted(path.relative_to(root) for path in root.rglob("*.jpg"))
    kinds = sorted({path.parts[0] for path in files})
    with (root / "metadata.csv").open("w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f)
        writer.writerow(["file_name", "text"])
        writer.writerows([path, f"a photo of the {_WORDS[kinds.index(path.parts[0])]} kind"] for path in files)


def captioned(folder: Path, transform: Any) -> datasets.Columns:
    """Return images and captions of a folder with ``metadata.csv``: columns ``file_name`` and ``text``, as Hugging
    Face's ``imagefolder`` reads them. Samples are (images, captions)."""
    with (folder / "metadata.csv").open(newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    images = datasets.ImageList([folder / row["file_name"] for row in rows], transform=transform)
    return datasets.Columns(images, {"text": [row["text"] for row in rows]})


def tokens(texts: list[str], device: torch.device) -> Tensor:
    """Return i64[B, 16]: hashes of words, 0 for none. Replace it by a real tokenizer."""
    found = torch.zeros(len(texts), LENGTH, dtype=torch.int64)
    for row, text in enumerate(texts):
        words = [1 + crc32(word.encode()) % (VOCABULARY - 1) for word in text.lower().split()[:LENGTH]]
        found[row, : len(words)] = torch.tensor(words, dtype=torch.int64)
    return found.to(device)
