"""Find out from the bytes of a packet whether decoding can begin with it, how many frames it shows, and whether any
other frame refers to it. Standard library only.

The key frame flags of H.264 and HEVC cannot be trusted. Some programs mark a picture as a key frame although later
frames refer to pictures before it. Decoding from such a packet gives frames with the right times and wrong pixels,
which nobody would notice.

Sources: ITU-T H.264 (7.4.1, D.2.8), ITU-T H.265 (7.3.1.2, 7.3.2.2, 7.4.2.2), RFC 6386 (9.1), the VP9 bitstream
specification (6.2, B).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .nal import exp_golomb, length_size, messages, stored_sets, units

ONE_FRAME_A_PACKET = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "mjpeg", "mpeg4", "ffv1", "png"})
"""Codecs, by FFmpeg's names, whose every shown packet is one frame. For others, only decoding shows it."""

_HARMLESS_SEI = {"h264": frozenset({1, 4, 5}), "hevc": frozenset({1, 4, 5, 132})}
"""Supplemental messages that do not concern other pictures: times, user data, the checksum of this picture."""


def is_entry(codec: str, extradata: bytes, packet: bytes) -> bool:
    """Return whether all frames that are shown from this key frame on can be decoded exactly without any packet before
    it.

    Args:
        codec: FFmpeg's name. For all but H.264 and HEVC the container's flag is taken; see :func:`is_known`.
        extradata: extradata of the stream, which says how H.264 and HEVC are divided into units.
        packet: a packet that the container marks as a key frame.
    """
    look = _ENTRIES.get(codec)
    return True if look is None else bool(packet) and look(extradata, packet)


def is_known(codec: str) -> bool:
    """Return whether :func:`is_entry` looks at packets of a codec."""
    return codec in _ENTRIES


def frames_shown(codec: str, packet: bytes) -> int:
    """Return how many frames of a VP8 or VP9 packet are shown; some exist only for reference."""
    if not packet:
        return 0
    if codec == "vp8":
        return packet[0] >> 4 & 1
    return sum(_vp9_shown(frame) for frame in _vp9_frames(packet))


def unreferenced(codec: str, extradata: bytes) -> Callable[[bytes], bool] | None:
    """A function that tells whether a packet can be left out without any effect on other frames; ``None`` for codecs
    for which that is unknown. It must be called with the packets of a stream in order.

    H.264: all slices of the picture have ``nal_ref_idc`` 0, so no picture refers to it, and it affects neither
    reference marking nor the picture count (8.2.1). HEVC: a sub-layer non-reference picture of the highest sub-layer,
    as only higher sub-layers may refer to it. The packet must contain nothing else that others need.
    """
    if codec == "h264":
        size = length_size(codec, extradata)
        return lambda packet: _h264_unreferenced(packet, size)
    return _HevcUnreferenced(extradata) if codec == "hevc" else None


# ---- H.264 and HEVC


def _h264_entry(extradata: bytes, packet: bytes) -> bool:
    recovers = intra = False
    for start, end in units(packet, length_size("h264", extradata)):
        # nal_unit_type (H.264, table 7-1): 5 is a slice of an IDR picture, 6 SEI, 1 to 4 other slices.
        kind = packet[start] & 31
        if kind == 5:
            return True
        if kind == 6:
            recovers |= _recovers_at_once(packet[start + 1 : end])
        if 1 <= kind <= 4:
            macroblock, coding = _slice_header(packet[start + 1 : end])
            if intra and not macroblock:
                return True  # the second field, which may refer to the first
            if not recovers or coding not in _INTRA_SLICES:
                return False
            intra = True
    return intra


_INTRA_SLICES = (2, 4, 7, 9)
"""Values of ``slice_type`` (H.264, table 7-6): I and SI."""


def _slice_header(unit: bytes) -> tuple[int, int]:
    """(first_mb_in_slice, slice_type)"""
    # Zero, zero, three stands for zero, zero: otherwise the data might contain a start code.
    head = unit[:16].replace(b"\0\0\3", b"\0\0")
    macroblock, bit = exp_golomb(head, 0)
    return macroblock, exp_golomb(head, bit)[0]


def _recovers_at_once(unit: bytes) -> bool:
    """Return whether there is a recovery point with ``recovery_frame_cnt`` 0, with which an open GOP begins. After
    others, frames become exact only later."""
    for kind, content in messages(unit):
        if kind == 6 and content:
            return bool(content[0] & 0x80)  # Exp-Golomb: a first bit of one is a zero
    return False


def _h264_unreferenced(packet: bytes, size: int) -> bool:
    found = False
    for start, end in units(packet, size):
        # Above the type are nal_ref_idc and a bit that is always zero.
        kind, referred = packet[start] & 31, packet[start] & 0xE0
        if kind == 1 and not referred:
            found = True
        elif kind == 6:
            if not all(m in _HARMLESS_SEI["h264"] for m, _ in messages(packet[start + 1 : end])):
                return False
        elif kind not in (9, 12):  # delimiters and filling
            return False
    return found


def _hevc_entry(extradata: bytes, packet: bytes) -> bool:
    for start, _ in units(packet, length_size("hevc", extradata)):
        kind = packet[start] >> 1 & 63
        if kind < 32:  # the first slice: 16 to 21 are random access points
            return 16 <= kind <= 21
    return False


class _HevcUnreferenced:
    """See :func:`unreferenced`."""

    def __init__(self, extradata: bytes):
        self._size = length_size("hevc", extradata)
        stored = [unit for unit in stored_sets("hevc", extradata) if unit[0] >> 1 & 63 == 33]
        self._layers = max(map(_sub_layers, stored), default=0)
        """The largest number of sub-layers in any sequence parameter set so far; 0 if there was none."""

    def __call__(self, packet: bytes) -> bool:
        found, leave = False, True
        for start, end in units(packet, self._size):
            # The header: a zero bit, type (6 bits), layer (6) and temporal id plus 1 (3).
            kind, second = packet[start] >> 1 & 63, packet[start + 1] if start + 1 < end else 0
            layer, temporal = (packet[start] & 1) << 5 | second >> 3, (second & 7) - 1
            if kind == 33:
                self._layers = max(self._layers, _sub_layers(packet[start:end]))
            # TRAIL_N, TSA_N, STSA_N, RADL_N and RASL_N, of the highest sub-layer.
            if kind in (0, 2, 4, 6, 8) and not layer and 0 < self._layers <= temporal + 1:
                found = True
            elif kind in (39, 40):
                leave &= all(m in _HARMLESS_SEI["hevc"] for m, _ in messages(packet[start + 2 : end]))
            elif kind not in (35, 38):
                leave = False
        return found and leave


def _sub_layers(unit: bytes) -> int:
    """``sps_max_sub_layers_minus1`` + 1 of a sequence parameter set."""
    # Seven is the most that there can be, with which no picture is left out by mistake.
    return (unit[2] >> 1 & 7) + 1 if len(unit) > 2 else 7


# ---- VP8 and VP9


def _vp9_frames(packet: bytes) -> Iterator[bytes]:
    """The frames of a superframe, or the packet."""
    last = packet[-1]
    # A superframe ends with an index: a byte with the marker 110, the sizes of its frames, and that byte again.
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


def _vp9_header(frame: bytes) -> int:
    """Return where ``show_existing_frame`` is, in bits: profile 3 is followed by a reserved one."""
    return 5 if frame and frame[0] >> 4 & 3 == 3 else 4


def _vp9_shown(frame: bytes) -> bool:
    if not frame or frame[0] >> 6 != 2:
        return False
    bit = _vp9_header(frame)
    if frame[0] >> (7 - bit) & 1:  # show_existing_frame
        return True
    return bool(int.from_bytes(frame[:2].ljust(2, b"\0"), "big") >> (15 - bit - 2) & 1)


_ENTRIES: dict[str, Callable[[bytes, bytes], bool]] = {
    "h264": _h264_entry,
    "hevc": _hevc_entry,
}
