"""The units that H.264 and HEVC packets consist of (NAL units), and the numbers in them. Standard library only.

MPEG-1, MPEG-2 and MPEG-4 part 2 separate their parts by the same start codes, so :func:`units` reads them as well.

Sources: ITU-T H.264 (7.3.1, 7.3.2.3, 9.1, B.1), ISO/IEC 14496-15 (5.3.3.1, 8.3.3.1).
"""

from __future__ import annotations

from collections.abc import Iterator

_LENGTH_AT = {"h264": 4, "hevc": 21}
"""Position in the extradata of the size of lengths."""


def length_size(codec: str, extradata: bytes) -> int:
    """Bytes of the length before each unit of a packet, or 0 if start codes separate the units."""
    at = _LENGTH_AT.get(codec, len(extradata))
    # A configuration record begins with its version, 1; start codes begin with zeros.
    return (extradata[at] & 3) + 1 if len(extradata) > at and extradata[0] == 1 else 0


def units(packet: bytes, size: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the units of a packet, at least one byte each.

    Args:
        size: bytes of the length before each unit, or 0 if start codes separate the units.
    """
    at, end = 0, len(packet)
    if size:
        while at + size < end:
            length = int.from_bytes(packet[at : at + size], "big")
            at += size
            if length and at < end:
                yield at, min(at + length, end)
            at += length
        return
    at = packet.find(b"\0\0\1")
    while 0 <= at < end - 3:
        following = packet.find(b"\0\0\1", at + 3)
        stop = following if following >= 0 else end
        yield at + 3, max(stop, at + 4)
        at = following


def stored_sets(codec: str, extradata: bytes) -> Iterator[bytes]:
    """The units in a stream's extradata, in either form: a list of parameter sets with lengths, or start codes."""
    if not length_size(codec, extradata):
        yield from (extradata[start:end] for start, end in units(extradata, 0))
        return
    # H.264: 5 bytes, then lists of sequence and of picture parameter sets. HEVC: 22 bytes, then the number of lists.
    arrays, at = (2, 5) if codec == "h264" else (extradata[22] if len(extradata) > 22 else 0, 23)
    for array in range(arrays):
        if codec == "h264":
            # Above the number of sequence sets are three reserved bits.
            count = extradata[at] & (255 if array else 31) if at < len(extradata) else 0
            at += 1
        else:
            count = int.from_bytes(extradata[at + 1 : at + 3], "big")
            at += 3
        for _ in range(count):
            length = int.from_bytes(extradata[at : at + 2], "big")
            if not length or at + 2 + length > len(extradata):
                return
            yield extradata[at + 2 : at + 2 + length]
            at += 2 + length


def messages(unit: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, content) of the supplemental messages of a unit without its header; (-1, b"") if they cannot be read."""
    # Without escapes: zero, zero, three stands for zero, zero.
    data = unit.replace(b"\0\0\3", b"\0\0")
    at = 0
    while at + 2 < len(data):
        numbers = []
        # Type and length: bytes of 255 and one smaller byte, which are added.
        for _ in range(2):
            value = 0
            while at < len(data) and data[at] == 255:
                value, at = value + 255, at + 1
            if at >= len(data):
                yield -1, b""
                return
            numbers.append(value + data[at])
            at += 1
        kind, length = numbers
        yield kind, data[at : at + length]
        at += length


def exp_golomb(data: bytes, bit: int) -> tuple[int, int]:
    """(value, position after it) of the unsigned Exp-Golomb number at a bit; the value is -1 if the data end before.

    >>> exp_golomb(bytes([0b00101_1_00]), 0)
    (4, 5)
    """
    size, zeros = 8 * len(data), 0
    while bit < size and not data[bit >> 3] >> (7 - bit % 8) & 1:
        bit, zeros = bit + 1, zeros + 1
    end = bit + zeros + 1
    if end > size:
        return -1, size
    # As many bits follow the one as zeros precede it. The number is one more than the value.
    return (int.from_bytes(data, "big") >> (size - end) & (1 << zeros + 1) - 1) - 1, end
