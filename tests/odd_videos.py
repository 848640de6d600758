"""Valid videos in which a key frame of the container is not enough to begin decoding with."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

from videos import make_video

__all__ = ["HIGH", "LOW", "Coded", "annex_b", "coded", "joined", "two_descriptions", "units_of", "write"]

LOW = {"bf": "0", "g": "6", "keyint_min": "6", "sc_threshold": "0", "qp": "20"}
HIGH = {**LOW, "x264-params": "chroma-qp-offset=10"}
"""The offset is in the picture parameter set. A decoder with the set of the other one decodes every picture without an
error, to other pixels."""


@dataclass(frozen=True)
class Coded:
    """A coded video without a container. Packets have their units with lengths of 4 bytes before them."""

    extradata: bytes
    packets: Sequence[bytes]
    keys: Sequence[bool]
    entry: bytes
    """Its sample entry in MP4, with the box's header."""

    def __add__(self, other: Coded) -> Coded:
        return replace(self, packets=[*self.packets, *other.packets], keys=[*self.keys, *other.keys])


def coded(folder: Path, name: str, codec: str, **options: Any) -> Coded:
    """What an encoder makes of :func:`videos.pictures`, in the order in which it is shown."""
    import av

    path = make_video(folder / f"{name}.mp4", codec, **options)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [(bytes(p), p.is_keyframe) for p in container.demux(stream) if p.size]
        extradata = bytes(stream.codec_context.extradata or b"")
    data = path.read_bytes()
    at = data.index(b"stsd") + 12
    entry = data[at : at + int.from_bytes(data[at : at + 4], "big")]
    return Coded(extradata, [data for data, _ in packets], [key for _, key in packets], entry)


def units_of(packet: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(packet):
        end = at + 4 + int.from_bytes(packet[at : at + 4], "big")
        found.append(packet[at + 4 : end])
        at = end
    return found


def joined(units: Sequence[bytes]) -> bytes:
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)


def annex_b(packet: bytes) -> bytes:
    """With start codes instead of lengths."""
    return b"".join(b"\0\0\0\1" + unit for unit in units_of(packet))


def write(path: Path, video: Coded, codec: str, template: Path | None = None) -> Path:
    """Mux packets at 25 frames per second. ``template``: a file whose stream has the extradata; else there is none."""
    import av

    with av.open(str(path), "w") as out:
        if template is None:
            stream: Any = out.add_stream(codec, rate=25)
            stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        else:
            with av.open(str(template)) as old:
                stream = out.add_stream_from_template(old.streams.video[0])
        for k, (data, key) in enumerate(zip(video.packets, video.keys, strict=True)):
            packet = av.Packet(data)
            packet.stream, packet.pts, packet.dts = stream, k, k
            packet.time_base, packet.duration, packet.is_keyframe = Fraction(1, 25), 1, key
            out.mux(packet)
    return path


# ---- MP4 with several sample descriptions, which PyAV does not write


def _box(name: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I4s", 8 + len(body), name) + body


def _full(name: bytes, *content: bytes, flags: int = 0) -> bytes:
    return _box(name, struct.pack(">I", flags), *content)


def _table(name: bytes, rows: Sequence[Sequence[int]]) -> bytes:
    return _full(name, struct.pack(">I", len(rows)), *(struct.pack(f">{len(row)}I", *row) for row in rows))


def two_descriptions(path: Path, parts: Sequence[Coded]) -> Path:
    """An MP4 whose parts follow one another, each with a sample description and a chunk of its own (ISO/IEC 14496-12).
    Frames of 96x64 at 25 per second."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    count, matrix = len(whole.packets), struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    file_type = _box(b"ftyp", b"isom\0\0\2\0isomavc1")
    chunks = [sum(map(len, part.packets)) for part in parts]
    starts = [len(file_type) + 8 + before for before in accumulate([0, *chunks[:-1]])]
    stbl = _box(
        b"stbl",
        _full(b"stsd", struct.pack(">I", len(parts)), *(part.entry for part in parts)),
        _table(b"stts", [(count, 512)]),
        _table(b"stss", [(i,) for i, key in enumerate(whole.keys, 1) if key]),
        _table(b"stsc", [(i, len(part.packets), i) for i, part in enumerate(parts, 1)]),
        _full(b"stsz", struct.pack(">II", 0, count), struct.pack(f">{count}I", *map(len, whole.packets))),
        _table(b"stco", [(start,) for start in starts]),
    )
    media = _box(
        b"mdia",
        _full(b"mdhd", struct.pack(">IIIIHH", 0, 0, 12800, count * 512, 0x55C4, 0)),
        _full(b"hdlr", struct.pack(">I4s12x", 0, b"vide"), b"video\0"),
        _box(
            b"minf",
            _full(b"vmhd", bytes(8), flags=1),
            _box(b"dinf", _full(b"dref", struct.pack(">I", 1), _full(b"url ", flags=1))),
            stbl,
        ),
    )
    header = struct.pack(">IIIIIHH8x", 0, 0, 1000, count * 40, 0x10000, 0x100, 0) + matrix + bytes(24) + b"\0\0\0\2"
    track = struct.pack(">IIIII8xHHHH", 0, 0, 1, 0, count * 40, 0, 0, 0, 0) + matrix
    movie = _box(
        b"moov",
        _full(b"mvhd", header),
        _box(b"trak", _full(b"tkhd", track, struct.pack(">II", 96 << 16, 64 << 16), flags=3), media),
    )
    path.write_bytes(file_type + _box(b"mdat", *whole.packets) + movie)
    return path
