"""JPEG files below the level of pixels: their structure, and files that windows can be cut out of.

A *sliceable* file is a sequential JPEG with a restart marker after every *tile*, which is a part of a row of MCUs (the
blocks of 8x8 to 32x32 pixels that a scan consists of), and with an index of its tiles. Some tiles can be decoded
without the others. :mod:`.tiles` describes the format and cuts; :mod:`.tile_index` writes the index. *T.81* is the
standard, ITU-T T.81 (ISO/IEC 10918-1).
"""

from __future__ import annotations

__all__ = ["IDENTIFIER"]

IDENTIFIER = b"gpupipe tiles\0"
"""The first bytes of the tile index, a segment APP9."""
