"""EXIF blocks that readers interpret differently, for tests and benchmarks."""

from __future__ import annotations

import struct

__all__ = ["ODD_EXIF", "odd_exif"]

ODD_EXIF = ("short", "byte", "long", "rational", "signed", "ascii", "count", "two", "twice", "trailing", "cut")
"""Ways to store an orientation, see :func:`odd_exif`."""


def odd_exif(orientation: int = 6, how: str = "short", order: str = "<") -> bytes:
    """Return an EXIF block whose orientation readers interpret differently.

    Args:
        how: one of :data:`ODD_EXIF`: the value as ``short`` (the correct type), ``byte``, ``long``, ``rational``,
            ``signed`` or ``ascii``; a ``count`` of 0 or ``two``; ``twice``, the second time with value 3; ``trailing``
            bytes; ``cut``.
        order: ``<`` or ``>``.
    """
    kinds = {"byte": 1, "ascii": 2, "long": 4, "rational": 5, "signed": 8}
    kind, count = kinds.get(how, 3), {"count": 0, "two": 2}.get(how, 1)
    codes = {1: "Bxxx", 2: "Bxxx", 3: "Hxx", 4: "I", 5: "I", 8: "hxx"}
    entries = [struct.pack(order + "HHI", 0x0112, kind, count)]
    entries[0] += struct.pack(order + codes[kind], 38 if kind == 5 else orientation)
    if how == "twice":
        entries.append(struct.pack(order + "HHIHxx", 0x0112, 3, 1, 3))
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, len(entries))
    body = head + b"".join(entries) + struct.pack(order + "I", 0)
    if kind == 5:
        body = body.ljust(38, b"\0") + struct.pack(order + "II", orientation, 1)
    if how == "trailing":
        body += b"\0trailing bytes\xff\xd9" * 3
    return b"Exif\0\0" + (body[: len(body) - 9] if how == "cut" else body)
