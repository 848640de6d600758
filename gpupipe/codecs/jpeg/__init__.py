"""JPEG files below the pixels: their markers, Huffman codes and coefficients, and files that windows can be cut out of.

A *sliceable* file is a sequential JPEG with a restart marker behind every tile, which is a part of a row of MCUs (the
blocks of 8x8 to 32x32 pixels that its scan goes through), and with the places of the tiles in a segment of its own.
Some tiles of it can be decoded without the rest: :mod:`.tiles` has the format and the cut, :mod:`.rewrite` makes any
file one without a change of a coefficient. Numpy only, and in this file the standard library only, because a probing
process loads it. *T.81* in here is the standard, ITU-T T.81 (ISO/IEC 10918-1).
"""

from __future__ import annotations

__all__ = ["IDENTIFIER", "SLICEABLE", "is_sliceable", "plain"]

IDENTIFIER = b"gpupipe tiles\0"
"""What the segment APP9 of a sliceable file begins with."""

SLICEABLE = " tiles"
"""The note in the coding of a sliceable file; see :class:`gpupipe.codecs.pillow.Header`."""


def is_sliceable(coding: str) -> bool:
    """Whether a coding is that of a file that says it can be cut.

    >>> is_sliceable("JPEG/RGB/jpeg/RGB tiles")
    True
    """
    return SLICEABLE in coding


def plain(coding: str) -> str:
    """What decoders need to know of a coding: for those of a whole file tiles change nothing.

    >>> plain("JPEG/RGB/jpeg/RGB tiles")
    'JPEG/RGB/jpeg/RGB'
    """
    return coding.replace(SLICEABLE, "")
