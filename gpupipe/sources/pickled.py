"""Finds an image in pickled data without unpickling it, which could run any code."""

from __future__ import annotations

import pickletools

_BYTES = {"SHORT_BINBYTES": 2, "BINBYTES": 5, "BINBYTES8": 9}
"""Opcodes that store bytes, and the lengths of their headers."""
_INTEGERS = {"BININT", "BININT1", "BININT2", "LONG1", "INT"}
_FORM = {
    "PROTO", "FRAME", "MARK", "TUPLE", "TUPLE1", "TUPLE2", "EMPTY_LIST", "APPEND", "APPENDS", "MEMOIZE", "BINPUT",
    "LONG_BINPUT", "STOP",
}  # fmt: skip
"""Opcodes that build tuples and lists, and nothing else."""


def pair_of(data: bytes) -> tuple[int, int, int | None]:
    """Return (offset, length, label) of the image in a pickled tuple or list of its bytes and a class number, or of its
    bytes alone.

    The bytes and the class number may come in any order.

    Raises :class:`ValueError` if the data is anything else.

    >>> import pickle
    >>> pair_of(pickle.dumps((b"an image", 7), protocol=4))
    (13, 8, 7)
    """
    images: list[tuple[int, int]] = []
    labels: list[int] = []
    try:
        for opcode, value, at in pickletools.genops(data):
            if opcode.name in _BYTES and isinstance(value, bytes) and at is not None:
                images.append((at + _BYTES[opcode.name], len(value)))
            elif opcode.name in _INTEGERS and type(value) is int:
                labels.append(value)
            elif opcode.name not in _FORM:
                raise ValueError(opcode.name)
    except (ValueError, IndexError) as e:
        raise ValueError(f"it is pickled, but is not a pair of an image's bytes and a class number ({e})") from None
    if len(images) != 1 or len(labels) > 1:
        raise ValueError(f"it is pickled, but has {len(images)} byte strings and {len(labels)} integers")
    (offset, length), *_ = images
    return offset, length, labels[0] if labels else None
