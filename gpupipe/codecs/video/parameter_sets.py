"""Parameter sets: settings for the decoder that a stream sends once and that hold until it replaces them.

A decoder that begins in the middle of a stream has the sets of the container and of the packets that it decoded before.
If other sets are in force there, and the key frame does not repeat them, it decodes with the wrong ones, which may give
other pixels without any error. Standard library only.

Sources: ITU-T H.264 (7.3.2.1, 7.3.2.2), ITU-T H.265 (7.3.2.1 to 7.3.2.3, 7.3.3), ISO/IEC 13818-2 (6.2.2),
ISO/IEC 14496-2 (6.2.3).
"""

from __future__ import annotations

from .nal import exp_golomb, length_size, stored_sets, units

_SEQUENCE, _EXTENSION = 0xB3, 0xB5
_FIRST_BYTES = {
    # Sequence and picture sets, with any nal_ref_idc.
    "h264": frozenset(byte for byte in range(128) if byte & 31 in (7, 8)),
    # Video, sequence and picture sets.
    "hevc": frozenset(byte for byte in range(128) if byte >> 1 in (32, 33, 34)),
    # Video object layers.
    "mpeg4": frozenset(range(0x20, 0x30)),
    "mpeg1video": frozenset({_SEQUENCE}),
    "mpeg2video": frozenset({_SEQUENCE, _EXTENSION}),
}
"""First bytes of parameter sets, by FFmpeg's name of the codec."""
_EXTRADATA = (-1, 0)
_HEAD = 128
"""Bytes of a set within which its number lies."""


class ParameterSets:
    """Follows the parameter sets of a stream, packet by packet.

    Args:
        codec: FFmpeg's name.
        extradata: the stream's extradata, which the decoder knows from the start.

    Attributes:
        changed: whether any set was replaced by a different one.
    """

    def __init__(self, codec: str, extradata: bytes):
        self.changed = False
        self._codec, self._first_bytes = codec, _FIRST_BYTES.get(codec, frozenset())
        self._in_force: dict[tuple[int, int], bytes] = {}
        """Parameter sets, by kind and number."""
        self.begin(extradata)

    def begin(self, extradata: bytes) -> None:
        """Take new extradata, which some containers send in the middle of a stream and no key frame repeats."""
        self._size = length_size(self._codec, extradata)
        self._put(_EXTRADATA, extradata)
        for unit in stored_sets(self._codec, extradata):
            self._take(unit)

    def follow(self, packet: bytes) -> bool:
        """Take the sets of a packet. Return whether it repeats all that are in force."""
        if not self._first_bytes:
            return False
        bounds = units(packet, self._size)
        found = {self._take(packet[start:end]) for start, end in bounds if packet[start] in self._first_bytes}
        return found >= self._in_force.keys() - {_EXTRADATA}

    def _take(self, unit: bytes) -> tuple[int, int] | None:
        name = _name(self._codec, unit) if unit[0] in self._first_bytes else None
        if name is not None:
            self._put(name, unit.rstrip(b"\0"))  # zeros may stand between a unit and the next start code
        return name

    def _put(self, name: tuple[int, int], content: bytes) -> None:
        self.changed |= self._in_force.setdefault(name, content) != content
        self._in_force[name] = content


def _name(codec: str, unit: bytes) -> tuple[int, int] | None:
    """(kind, number) of a parameter set; a later one of the same name replaces it."""
    head = unit[:_HEAD].replace(b"\0\0\3", b"\0\0").ljust(3, b"\0")
    if codec == "h264":
        kind = head[0] & 31
        # A sequence set has a profile, constraints and a level before its number; a picture set begins with it.
        return kind, exp_golomb(head, 32 if kind == 7 else 8)[0]
    if codec == "hevc":
        kind, layer = head[0] >> 1, (head[0] & 1) << 5 | head[1] >> 3
        # The header has two bytes. The number of a video set has four bits, that of a picture set comes first.
        number = head[2] >> 4 if kind == 32 else exp_golomb(head, 16 if kind == 34 else 8 * _hevc_number_at(head))[0]
        return kind, layer << 16 | number
    if head[0] == _EXTENSION and head[1] >> 4 != 1:  # not that of a sequence
        return None
    return head[0], 0


def _hevc_number_at(head: bytes) -> int:
    """Offset in bytes of the number of a sequence parameter set, after the profile and level of all sub-layers."""
    count = head[2] >> 1 & 7
    if not count:
        # Two bytes of header, one with the count, and twelve of general profile and level.
        return 15
    # Two flags for each sub-layer, in two bytes: whether its profile (11 bytes) and its level (1 byte) follow.
    present = int.from_bytes(head[15:17].ljust(2, b"\0"), "big")
    flags = [present >> 14 - 2 * i & 3 for i in range(count)]
    return 17 + sum(11 * (flag >> 1) + (flag & 1) for flag in flags)
