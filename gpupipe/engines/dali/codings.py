"""What DALI decodes exactly as Pillow does, by the coding in the index. Does not import DALI."""

from __future__ import annotations

from ...codecs.jpeg import plain

__all__ = ["EXACT", "is_exact"]

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
"""The codings that DALI decodes to the same pixels as Pillow, each of them measured (``tests/unit/test_odd_files.py``
does it again). All others get a stand-in. So do files with something special behind these names, see
:class:`gpupipe.codecs.pillow.Header`: a CMYK JPEG is one grey level off, Pillow turns a TIFF upright and DALI does
not, DALI finds no size in a lossless WebP with EXIF, and no image in a JPEG with junk between its segments or in a PNG
without an end."""


def is_exact(coding: str) -> bool:
    """Whether DALI decodes a coding itself. The empty coding is that of files that are not decoded at all."""
    return plain(coding) in EXACT or not coding
