"""Who decodes what: DALI's own decoders get JPEG files with a plain structure, and no others.

Damaged PNG, JPEG 2000 and TIFF files can crash the process in DALI's decoders. From damaged WebP and BMP files DALI
makes other pixels than Pillow, or pixels where Pillow fails. ``benchmarks/fuzz_decoders.py`` has the counts and speeds:
on a CPU Pillow decodes these formats about as fast, PNG a little slower. A GPU supports only JPEG 2000 and TIFF of
them. This module does not import DALI.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...codecs.coding import Coding
from ...codecs.jpeg_structure import ODD
from ...datasets.dataset import Dataset

SAFE = frozenset(map(Coding.parse, ("JPEG/RGB/jpeg/RGB", "JPEG/L/jpeg/L", "MPO/RGB/jpeg/RGB")))
"""Safe codings. Unusual JPEGs have other codings, including CMYK ones, which DALI converts by another rule."""


def is_safe(coding: Coding) -> bool:
    """Return whether DALI decodes a coding to Pillow's pixels and without a crash."""
    return coding in SAFE


def by_pillow(dataset: Dataset) -> str:
    """Return a sentence about images that Pillow decodes in place of DALI; empty if there are none or it is unknown."""
    counts = _by_pillow(dataset)
    if not counts.total():
        return ""
    kinds = ", ".join(f"{count:,} {words}" for words, count in counts.most_common() if count)
    return (
        f"Pillow decodes {counts.total():,} of {len(dataset):,} images, because only plain JPEG files are safe in "
        f"DALI: {kinds}"
    )


def _by_pillow(dataset: Dataset) -> Counter[str]:
    """Count these images by kind."""
    counts: Counter[str] = Counter()
    if dataset.kind != "files" or dataset.codings is None:
        return counts
    codes, codings = dataset.codings
    for code, count in enumerate(np.bincount(codes, minlength=len(codings)).tolist()):
        coding = codings[code] if code < len(codings) else Coding("unknown")
        if coding.format and not is_safe(coding):  # bad samples have none
            counts[_words(coding)] += count
    return counts


def _words(coding: Coding) -> str:
    if not coding.is_jpeg:
        return coding.format
    word = next(iter(coding.notes), "")
    return f"{coding.format} ({ODD.get(word, word) if coding.mode in ('RGB', 'L') else coding.mode})"
