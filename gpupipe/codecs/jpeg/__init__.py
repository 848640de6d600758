"""JPEG files below the pixels: their markers, Huffman codes and coefficients, and files that windows can be cut out of.

A *sliceable* file is a sequential JPEG with a restart marker behind every tile, which is a part of a row of MCUs (the
blocks of 8x8 to 32x32 pixels that its scan goes through), and with the places of the tiles in a segment of its own.
Some tiles of it can be decoded without the rest: :mod:`.tiles` has the format and the cut, :mod:`.rewrite` makes any
file one without a change of a coefficient. Numpy only, and in this file the standard library only, because a probing
process loads it. *T.81* in here is the standard, ITU-T T.81 (ISO/IEC 10918-1).
"""

from __future__ import annotations

__all__ = ["IDENTIFIER"]

IDENTIFIER = b"gpupipe tiles\0"
"""What the segment APP9 of a sliceable file begins with."""
