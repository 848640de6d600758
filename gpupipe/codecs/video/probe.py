"""Index one video from its packets, and decode it only where the packets do not say everything.

Worker processes load this module without the rest of the package, so it does not import numpy.

*Frame k* is the k-th frame of ``for frame in container.decode(video=0)``. Each packet carries the time of its frame, so
the sorted times of all packets are the times of the frames; only the first picture is decoded, for its size. A video
that is unusual in any way that :func:`_doubts` knows is decoded from beginning to end instead.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from ..coding import VideoCoding
from ..files import Undecodable, open_regular
from ..pillow import quiet
from ..probe import KINDS, OK, answer
from .bitstream import ONE_FRAME_A_PACKET, frames_shown, is_entry, is_known
from .container import STRICT, codec_of, cut_short, not_its_fault, opened, orientation_of, reading
from .parameter_sets import ParameterSets

VARIABLE, EXACT, CUT, SURE, LENIENT, LEADING = 1, 2, 4, 8, 16, 32
"""Bits of ``flags``.

``VARIABLE``: a frame is more than one unit of time away from its place at a constant rate.
``EXACT``: times strictly increase and every frame's own time is known, so frames can be found by time after seeking.
Without it, frame k is found by counting.
``CUT``: the file ends too early, and the index has the frames before its end.
``SURE``: nothing was doubtful, so every packet that is shown is one frame, with the packet's time.
``LENIENT``: a strict decoder rejects the first frame, and the usual one does not.
``LEADING``: after some entry come frames that are shown before it and may refer to frames before the entry.
"""

_INT32 = (1 << 31) - 1


class VideoProbe(NamedTuple):
    """The index entry of one video. ``height`` and ``width`` are as decoded, before any rotation."""

    status: int
    height: int = 0
    width: int = 0
    coding: VideoCoding = VideoCoding()
    orientation: int = 1
    """1 to 8, as EXIF counts."""
    reason: str = ""
    flags: int = 0
    time_base: tuple[int, int] = (0, 1)
    """Duration of one unit of time in seconds, as numerator and denominator."""
    rate: tuple[int, int] = (0, 1)
    """Average frames per second, as numerator and denominator."""
    duration: int = 0
    """Time from the first frame to the end of the last one, in units of time."""
    pts: array[int] = array("q")
    """i64[F]: time of every frame, never decreasing."""
    keys: array[int] = array("q")
    """i64[3 K]: for every frame that decoding can begin with, its number, the time of the packet to begin with (its
    own, unless an edit list hides that packet), and the offset of the packet in the file in bytes (-1 if unknown)."""


class _Packet(NamedTuple):
    pts: int | None
    duration: int
    position: int
    entry: bool
    """Whether it is a key frame from which on all frames can be decoded."""
    complete: bool
    """Whether it repeats all parameter sets that are in force."""
    shown: bool


class _Seen:
    """Findings of demuxing."""

    def __init__(self) -> None:
        self.packets: list[_Packet] = []
        self.changing = False
        """Whether parameter sets were replaced by different ones, or packets contain a palette."""
        self.doubt = ""
        self.first: Any = None
        """(pts, height, width, pixel format, orientation, interlaced) of the first decoded frame."""


def probe(path: bytes) -> VideoProbe:
    """Read the packets of one file, and decode its first frame. Never raises, whatever the file contains."""
    try:
        return reading(path, lambda: _read(path))
    except Undecodable as e:
        return VideoProbe(KINDS.index(e.kind), reason=e.reason)


def _read(path: bytes) -> VideoProbe:
    with open(path, "rb", opener=open_regular) as file:
        cut = cut_short(file.fileno(), file.seek(0, 2)) is not None
    seen = _Seen()
    with opened(path, strict=_STRICT) as (container, stream):
        codec, form = codec_of(stream), container.format.name
        base = Fraction(stream.time_base)
        guess = Fraction(stream.average_rate or 0)
        try:
            _demux(container, stream, seen)
        except Exception as e:  # the rest cannot be read; decoding tells which frames come before
            if isinstance(e, Undecodable) or not_its_fault(e):
                raise
            seen.doubt = seen.doubt or f"reading it ends with {type(e).__name__}"
            cut = True
    times = sorted(p.pts for p in seen.packets if p.shown and p.pts is not None)
    last = {p.pts: p.duration for p in seen.packets if p.shown}
    exact, lenient, intra = True, False, None
    sure = not (seen.doubt or cut or _doubts(codec, form, seen, times))
    if not sure:
        frames, lenient = _decode(path, seen, cut)
        times, last, exact = frames.times(base, guess), frames.durations, frames.exact()
        intra = None if is_known(codec) else frames.intra
        # FFmpeg counts packets here. Times find frames only if decoding confirms the count.
        if form in _COUNTED:
            exact = exact and [p.pts for p in seen.packets if p.shown] == times
    if not times or seen.first is None:
        if cut:
            raise Undecodable("truncated", "the file ends before its first frame")
        raise Undecodable("no-frames", f"{len(seen.packets)} packets of {codec}, and no frame")
    _, height, width, pixels, orientation, _ = seen.first
    rate = _rate(times, base, guess)
    tail = last.get(times[-1], 0)
    if tail <= 0:
        # Without a duration, the last frame lasts as long as the others on average.
        tail = (times[-1] - times[0]) // (len(times) - 1) if len(times) > 1 else int(1 / (rate * base)) if rate else 1
    flags = VARIABLE * _is_variable(times) | EXACT * exact | CUT * cut | SURE * sure | LENIENT * lenient
    flags |= LEADING * _leads(seen.packets)
    return VideoProbe(
        OK,
        height,
        width,
        VideoCoding(codec, pixels, form),
        orientation,
        flags=flags,
        time_base=_pair(base),
        rate=_pair(rate),
        duration=times[-1] - times[0] + max(tail, 1),
        pts=array("q", times),
        # Frames that are counted are counted from the beginning.
        keys=_keys(times, seen, intra) if exact else array("q", (0, times[0], -1)),
    )


def _demux(container: Any, stream: Any, seen: _Seen) -> None:
    codec = codec_of(stream)
    extradata = bytes(stream.codec_context.extradata or b"")
    sets = ParameterSets(codec, extradata)
    reads = codec in ("vp8", "vp9")
    for packet in container.demux(stream):
        if seen.first is None and not seen.doubt:
            try:
                for frame in packet.decode():
                    seen.first = seen.first or _picture(frame)
            except Exception as e:
                if isinstance(e, Undecodable) or not_its_fault(e):
                    raise
                seen.doubt = f"its first packets: {type(e).__name__}"
        # The last packet has neither content nor time: it tells the decoder to finish.
        if packet.size == 0:
            if packet.pts is not None:
                seen.doubt = "an empty packet"
            continue
        content = bytes(packet)
        shown = 0 if packet.is_discard else frames_shown(codec, content) if reads else 1
        if shown > 1 or packet.is_corrupt:
            seen.doubt = "a packet of several frames" if shown > 1 else "a packet that is damaged"
        if packet.has_sidedata("new_extradata"):
            new = bytes(packet.get_sidedata("new_extradata"))
            if new != extradata:
                extradata, seen.doubt = new, "its decoder is reconfigured in the middle"
                sets.begin(extradata)
        complete = sets.follow(content)
        seen.changing |= sets.changed or packet.has_sidedata("palette")
        entry = packet.is_keyframe and is_entry(codec, extradata, content)
        position = -1 if packet.pos is None else packet.pos
        seen.packets.append(_Packet(packet.pts, packet.duration or 0, position, entry, complete, bool(shown)))


_STRICT = STRICT | {"h264"}
_LOOKS_AT = 100
"""Packets after which a strict decoder that returned no frame is considered too strict."""
_INTRA = 1
"""FFmpeg's ``AV_PICTURE_TYPE_I``."""
_COUNTED = ("avi",)
"""Containers without times: FFmpeg counts packets, and guesses if frames are shown in another order."""


def _picture(frame: Any) -> tuple[Any, ...]:
    shape = frame.height, frame.width
    if min(shape) < 1 or max(shape) > _INT32:
        raise Undecodable("zero-sized", f"the video is {shape[0]}x{shape[1]} pixels (height x width)")
    return (frame.pts, *shape, frame.format.name, orientation_of(frame), frame.interlaced_frame)


def _doubts(codec: str, form: str, seen: _Seen, times: list[int]) -> str:
    """Say why the times of packets may not be those of frames; empty if they are."""
    packets = seen.packets
    if codec not in ONE_FRAME_A_PACKET:
        return "a codec whose packets are not frames"
    if not packets or not times or seen.first is None:
        return "nothing to see"
    if form in _COUNTED and not all(p.entry for p in packets):
        return "a container without times"
    if not packets[0].entry:
        return "it does not begin with a key frame"
    if any(p.pts is None for p in packets):
        return "packets without a time"
    if len(set(times)) != len(times):
        return "two packets with one time"
    first = packets[0].pts
    if any(p.pts < first for p in packets):  # type: ignore[operator]
        return "frames before the first key frame"  # they refer to missing frames
    latest = packets[0].pts
    for packet in packets:
        if packet.entry and packet.pts < latest:  # type: ignore[operator]
            return "a key frame that is shown before what precedes it"  # times are damaged
        latest = max(latest, packet.pts)  # type: ignore[type-var]
    if seen.first[0] != times[0]:
        return "another frame comes first"
    if seen.first[5] and codec in ("h264", "hevc"):
        return "interlaced: a packet may be half a frame"
    return ""


@dataclass
class _Frames:
    """The frames of a loop over all of them, up to where the decoder failed, if it did."""

    own: list[int | None]
    """The time of each frame."""
    decoded: list[int | None]
    """The time of the packet with which each frame came out: when it is shown, if its own time is missing."""
    marked: list[bool]
    """Whether the decoder marked the frame as damaged."""
    durations: dict[int | None, int]
    intra: set[int | None]
    """Times of the frames that the decoder calls intra-coded. Some decoders do not know it, and call none so."""

    def exact(self) -> bool:
        return _increase(self.own)

    def times(self, base: Fraction, guess: Fraction) -> list[int]:
        """Known times; gaps are filled at the average rate, and a time that decreases is raised to the one before."""
        # A frame whose own time is missing is shown at the time of its packet, if that is known for all.
        source = self.decoded if None in self.own and _increase(self.decoded) else self.own
        known = [(i, t) for i, t in enumerate(source) if t is not None]
        step = max(int(1 / (guess * base)), 1) if guess > 0 else 1
        if not known:
            return [i * step for i in range(len(source))]
        (first, start), (last, end) = known[0], known[-1]
        if last > first and end > start:
            step = max((end - start) // (last - first), 1)
        times = [start - (first - i) * step for i in range(first)]
        for t in source[first:]:
            before = times[-1] if times else start
            times.append(before + step if t is None else max(t, before))
        return times


def _increase(times: list[int | None]) -> bool:
    known = [t for t in times if t is not None]
    return len(known) == len(times) and all(a < b for a, b in pairwise(known))


def _decode(path: bytes, seen: _Seen, cut: bool) -> tuple[_Frames, bool]:
    """Decode all frames: (frames, whether a strict decoder rejects them and the usual one does not).

    A failure of the decoder ends it, as it would end a loop over the frames. Damaged frames at the end of a ``cut``
    file are left out; other damaged frames count, and are refused when a clip needs them.
    """
    frames = _Frames([], [], [], {}, set())
    lenient = _refused(path)
    seen.first = None
    with opened(path, strict=STRICT if cut and not lenient else frozenset()) as (container, stream):
        try:
            for frame in container.decode(stream):
                seen.first = seen.first or _picture(frame)
                frames.own.append(frame.pts)
                frames.decoded.append(frame.dts)
                frames.marked.append(bool(frame.is_corrupt))
                frames.durations[frame.pts] = getattr(frame, "duration", 0) or 0
                if frame.pict_type == _INTRA or frame.key_frame:
                    frames.intra.add(frame.pts)
        except Exception as e:
            if isinstance(e, Undecodable) or not_its_fault(e) or not frames.own:
                raise
    # Marked frames before a good one stay, because leaving them out would renumber the rest.
    while cut and frames.marked and frames.marked[-1]:
        for column in (frames.own, frames.decoded, frames.marked):
            column.pop()
    return frames, lenient


def _refused(path: bytes) -> bool:
    """Return whether a strict decoder rejects the whole beginning of a file: then something about all pictures is
    unusual, and they are not damaged."""
    errors = 0
    with opened(path, strict=_STRICT) as (container, stream):
        for number, packet in enumerate(container.demux(stream)):
            try:
                if packet.decode():
                    return False
            except Exception as e:
                if not_its_fault(e):
                    raise
                errors += 1
            if number >= _LOOKS_AT:
                break
    return errors > 0


def _keys(times: list[int], seen: _Seen, intra: set[int | None] | None) -> array[int]:
    """See :class:`VideoProbe`. If parameter sets change, only key frames count that repeat them: what the decoder holds
    depends on what it decoded before.

    Args:
        intra: times of the only frames that count, if the container alone knows key frames.
    """
    found: dict[int, tuple[int, int]] = {}
    for packet in seen.packets:
        counts = (packet.complete or not seen.changing) and (intra is None or packet.pts in intra)
        if packet.entry and counts and packet.pts is not None:
            # One that an edit list does not show is where the frames behind it begin all the same.
            frame = bisect_left(times, packet.pts)
            if frame < len(times):
                found[frame] = (packet.pts, packet.position)
    keys = array("q")
    for frame in sorted(found):
        keys.extend((frame, *found[frame]))
    return keys


def _leads(packets: list[_Packet]) -> bool:
    entered: int | None = None
    for packet in packets:
        if packet.entry:
            entered = packet.pts
        elif entered is not None and packet.pts is not None and packet.pts < entered:
            return True
    return False


def _is_variable(times: list[int]) -> bool:
    """Return whether a frame is more than one unit of time, to which containers round, from the line between the first
    and the last frame."""
    n, first = len(times) - 1, times[0]
    span = times[-1] - first
    # Multiplied by n, so that it remains a comparison of integers.
    return any(abs((t - first) * n - k * span) > n for k, t in enumerate(times))


def _rate(times: list[int], base: Fraction, guess: Fraction) -> Fraction:
    """Average frames per second: the container's number if it is within one percent of the measured rate."""
    n, span = len(times) - 1, (times[-1] - times[0]) * base
    if not n or span <= 0:
        return guess
    measured = n / span
    return guess if abs(guess - measured) * 100 <= measured else measured


def _pair(value: Fraction) -> tuple[int, int]:
    # The index has 32 bits for either.
    if value.numerator > _INT32 or value.denominator > _INT32:
        value = value.limit_denominator(1_000_000)
    return min(value.numerator, _INT32), value.denominator


def serve(given: str) -> None:
    """Answer requests from stdin on stdout until stdin is closed (see :mod:`gpupipe.datasets.index.probe_pool`)."""
    del given
    with quiet():
        answer(sys.stdin.buffer, sys.stdout.buffer, lambda place: probe(place.path))
