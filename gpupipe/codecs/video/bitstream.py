"""What the bytes of a packet say where the container's flags may not be believed: whether decoding can begin with it,
and how many frames it shows. Standard library only.

A container calls a packet a key frame, and some programs mark pictures so behind which frames still refer to what was
before. Decoding from there gives frames with the right times and wrong pixels, which nobody would notice.

Sources: ITU-T H.264 (7.4.1, D.2.8), ITU-T H.265 (7.4.2.2), RFC 6386 (9.1), the VP9 bitstream specification (6.2, B).
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["ONE_FRAME_A_PACKET", "frames_shown", "is_entry"]

ONE_FRAME_A_PACKET = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "mjpeg", "mpeg4", "ffv1", "png"})
"""Codecs, in FFmpeg's words, of which every packet that is shown gives one frame. Of others only decoding tells."""

_LONGEST_SEI = 1 << 16


def is_entry(codec: str, extradata: bytes, packet: bytes) -> bool:
    """Whether all frames that are shown from this key frame on can be decoded exactly without what was before.

    Args:
        codec: FFmpeg's name.
        extradata: of the stream; says how H.264 and HEVC are cut into units.
        packet: what the container calls a key frame.
    """
    if codec == "h264":
        size = (extradata[4] & 3) + 1 if len(extradata) > 4 and extradata[0] == 1 else 0
        for unit in _units(packet, size):
            kind = unit[0] & 31
            if kind == 5:
                return True
            if kind == 6 and _recovers_at_once(unit):
                return True
            if 1 <= kind <= 4:
                return False
        return False
    if codec == "hevc":
        size = (extradata[21] & 3) + 1 if len(extradata) > 21 and extradata[0] == 1 else 0
        for unit in _units(packet, size):
            kind = unit[0] >> 1 & 63
            if kind < 32:  # the first slice: 16 to 21 are random access points
                return 16 <= kind <= 21
        return False
    if codec == "vp8":
        return bool(packet) and not packet[0] & 1
    return True


def frames_shown(codec: str, packet: bytes) -> int:
    """How many frames of a VP8 or VP9 packet are shown: those made only to be referred to are not."""
    if not packet:
        return 0
    if codec == "vp8":
        return packet[0] >> 4 & 1
    return sum(_vp9_shown(frame) for frame in _vp9_frames(packet))


def _units(packet: bytes, size: int) -> Iterator[bytes]:
    """The beginnings of the NAL units of a packet, at least one byte each.

    ``size``: bytes of the length before each, or 0 where start codes separate them.
    """
    at, end = 0, len(packet)
    if size:
        while at + size < end:
            length = int.from_bytes(packet[at : at + size], "big")
            at += size
            if length and at < end:
                yield packet[at : min(at + length, at + _LONGEST_SEI, end)]
            at += length
        return
    at = packet.find(b"\0\0\1")
    while 0 <= at < end - 3:
        following = packet.find(b"\0\0\1", at + 3)
        stop = following if following >= 0 else end
        yield packet[at + 3 : min(stop, at + 3 + _LONGEST_SEI)] or b"\0"
        at = following


def _recovers_at_once(unit: bytes) -> bool:
    """Whether an H.264 SEI unit holds a recovery point with ``recovery_frame_cnt`` 0: what an open GOP begins with.
    Others become exact only some frames later."""
    data = unit[1:].replace(b"\0\0\3", b"\0\0")
    at = 0
    while at + 2 < len(data):
        numbers = []
        for _ in range(2):
            value = 0
            while at < len(data) and data[at] == 255:
                value, at = value + 255, at + 1
            if at >= len(data):
                return False
            numbers.append(value + data[at])
            at += 1
        kind, length = numbers
        if kind == 6 and at < len(data):
            return bool(data[at] & 0x80)  # Exp-Golomb: a first bit of one is a zero
        at += length
    return False


def _vp9_frames(packet: bytes) -> Iterator[bytes]:
    """The frames of a superframe, or the packet."""
    last = packet[-1]
    if last & 0xE0 == 0xC0:
        count, width = (last & 7) + 1, (last >> 3 & 3) + 1
        index = len(packet) - 2 - count * width
        if index >= 0 and packet[index] == last:
            at = 0
            for i in range(count):
                start = index + 1 + i * width
                length = int.from_bytes(packet[start : start + width], "little")
                yield packet[at : min(at + length, index)]
                at += length
            return
    yield packet


def _vp9_shown(frame: bytes) -> bool:
    if not frame or frame[0] >> 6 != 2:
        return False
    bit = 4 if frame[0] >> 4 & 3 != 3 else 5  # profile 3 is followed by a reserved bit
    if frame[0] >> (7 - bit) & 1:  # show_existing_frame
        return True
    return bool(int.from_bytes(frame[:2].ljust(2, b"\0"), "big") >> (15 - bit - 2) & 1)
