"""What DALI decodes by itself, by the coding in the index. Does not import DALI."""

from __future__ import annotations

from ...datasets.base import Dataset

__all__ = ["EXACT", "SAFE", "by_pillow", "is_safe", "why"]

_PLAIN_PNG = ("1/zip/1", "L/zip/L", "L/zip/L;2", "L/zip/L;4", "LA/zip/LA", "P/zip/P", "P/zip/P;1", "P/zip/P;2")
_TIFF_CODECS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits")

EXACT: frozenset[str] = frozenset(
    [
        *("JPEG/RGB/jpeg/RGB", "JPEG/L/jpeg/L", "MPO/RGB/jpeg/RGB"),
        *(f"PNG/{coding}" for coding in (*_PLAIN_PNG, "P/zip/P;4", "RGB/zip/RGB", "RGBA/zip/RGBA")),
        *("WEBP/RGB//", "WEBP/RGBA//"),
        *("BMP/1/raw/1", "BMP/L/raw/L", "BMP/P/raw/P", "BMP/RGB/raw/BGR", "BMP/RGB/raw/BGRX"),
        *("PPM/1/raw/1;I", "PPM/L/raw/L", "PPM/RGB/raw/RGB"),
        *("JPEG2000/L/jpeg2k/jp2", "JPEG2000/RGB/jpeg2k/jp2", "JPEG2000/RGBA/jpeg2k/jp2"),
        *(f"TIFF/{mode}/{codec}/{mode}" for mode in ("L", "RGB", "RGBA") for codec in _TIFF_CODECS),
    ]
)
"""The codings of which DALI decodes whole files to the same pixels as Pillow, each of them measured
(``tests/unit/test_odd_files.py`` does it again)."""

SAFE: frozenset[str] = frozenset(c for c in EXACT if c.split("/")[0] in ("JPEG", "MPO", "BMP", "PPM", "WEBP"))


def is_safe(coding: str) -> bool:
    return coding in SAFE


def why(coding: str) -> str:
    return ""


def by_pillow(dataset: Dataset) -> str:
    return ""
