"""TFRecord files and ``tf.train.Example`` messages, written without TensorFlow.

A record is its length, a checksum of the length, the message and a checksum of the message
(https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details). A message maps names to lists of
bytes or numbers (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

__all__ = ["example", "masked_crc", "message", "tfrecord"]


def masked_crc(data: bytes) -> int:
    """Return a checksum as records store it."""
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecord(*records: bytes) -> bytes:
    """Return a file of records."""
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, struct.pack("<I", masked_crc(length)), record, struct.pack("<I", masked_crc(record))]
    return b"".join(parts)


def varint(value: int) -> bytes:
    """Encode an integer as in protobuf; negative ones in 64-bit two's complement.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(*fields: tuple[int, bytes | int]) -> bytes:
    """Encode a message of texts and numbers, given as (field number, value).

    >>> message((1, 150), (2, b"testing")).hex()
    '089601120774657374696e67'
    """
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            # Wire type 0, a varint.
            parts += [varint(number << 3), varint(value)]
        else:
            # Wire type 2, bytes after their length.
            parts += [varint(number << 3 | 2), varint(len(value)), value]
    return b"".join(parts)


def _feature(value: bytes | float | Sequence[float]) -> bytes:
    """Encode a ``tf.train.Feature``. Numbers are packed, as TensorFlow writes them."""
    if isinstance(value, bytes):
        # Feature has the field 1 for bytes, 2 for floats and 3 for integers, each a message with its list in field 1.
        return message((1, message((1, value))))
    numbers = [value] if isinstance(value, (int, float)) else value
    if any(isinstance(number, float) for number in numbers):
        return message((2, message((1, struct.pack(f"<{len(numbers)}f", *numbers)))))
    return message((3, message((1, b"".join(varint(int(number)) for number in numbers)))))


def example(features: Mapping[str, bytes | float | Sequence[float]]) -> bytes:
    """Encode a ``tf.train.Example`` of bytes, numbers and lists of numbers."""
    # A protobuf map is a list of messages with the key in field 1 and the value in field 2.
    entries = [(1, message((1, name.encode()), (2, _feature(value)))) for name, value in features.items()]
    return message((1, message(*entries)))
