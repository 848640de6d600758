"""The program of the processes that probe videos (see :mod:`gpupipe.datasets.index.probe_pool`), and the words on the
wire."""

from __future__ import annotations

import struct
import sys
from array import array

from ..coding import VideoCoding
from ..pillow import quiet
from ..probe import answer
from .probe import VideoProbe, probe

_RECORD = struct.Struct("<BBBiiiiiiqHHII")


def pack(result: VideoProbe) -> bytes:
    name, reason = str(result.coding).encode()[:200], result.reason.encode(errors="replace")[:2000]
    numbers = (result.status, result.orientation, result.flags, result.height, result.width)
    times = (*result.time_base, *result.rate, result.duration)
    lengths = (len(name), len(reason), len(result.pts), len(result.keys))
    return _RECORD.pack(*numbers, *times, *lengths) + name + reason + result.pts.tobytes() + result.keys.tobytes()


def unpack(data: bytes) -> list[VideoProbe]:
    results, at = [], 0
    while at < len(data):
        status, orientation, flags, height, width, *times, n, r, frames, keys = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        coding, reason = (
            VideoCoding.parse(data[at : at + n].decode()),
            data[at + n : at + n + r].decode(errors="replace"),
        )
        at += n + r
        pts, places = array("q"), array("q")
        pts.frombytes(data[at : at + 8 * frames])
        at += 8 * frames
        places.frombytes(data[at : at + 8 * keys])
        at += 8 * keys
        base, rate, duration = (times[0], times[1]), (times[2], times[3]), times[4]
        results.append(
            VideoProbe(status, height, width, coding, orientation, reason, flags, base, rate, duration, pts, places)
        )
    return results


def serve(given: str) -> None:
    """Answer requests from stdin on stdout until stdin is closed."""
    del given
    with quiet():
        answer(sys.stdin.buffer, sys.stdout.buffer, lambda place: pack(probe(place.path)))
