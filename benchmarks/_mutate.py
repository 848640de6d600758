"""Encoded images of every mode and option, and ways to damage them: what ``fuzz_decoders.py`` feeds to decoders."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from exif_blocks import ODD_EXIF, odd_exif
from PIL import Image

from gpupipe.testing.photos import photograph

__all__ = ["FORMATS", "mutated", "seeds"]

Rng = np.random.Generator

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "TIFF", "JPEG2000")
"""Formats that DALI's decoders support."""
_SIZES = ((1, 1), (8, 8), (17, 31), (61, 83), (64, 64), (130, 97))
_LARGEST = 60_000
"""Bytes of a seed: a decoder that meets small files meets more of them."""


# ---- seeds


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.copy().save(out, kind, **options)
    return out.getvalue()


def picture(i: int, mode: str = "RGB") -> Image.Image:
    """Number ``i`` of all; one of the sizes in turn."""
    height, width = _SIZES[i % len(_SIZES)]
    rgb = Image.fromarray(photograph(height, width, i))
    if mode in ("RGBA", "LA"):
        made = rgb.convert(mode.rstrip("A"))
        made.putalpha(Image.fromarray(photograph(height, width, i + 1)[..., 0]))
        return made
    if mode == "I;16":
        return Image.fromarray(np.asarray(rgb.convert("L")).astype(np.uint16) * 257 ^ 3)
    return rgb.quantize(2 ** (1 + i % 8)) if mode == "P" else rgb.convert(mode)


def _jpegs() -> Iterator[bytes]:
    options: list[dict[str, Any]] = [{"quality": q} for q in (1, 30, 75, 95, 100)]
    options += [{"subsampling": s} for s in (0, 1, 2)]
    options += [{"progressive": True}, {"progressive": True, "subsampling": 0, "quality": 95}, {"optimize": True}]
    options += [{"restart_marker_blocks": 1}, {"restart_marker_rows": 1, "progressive": True}, {"keep_rgb": True}]
    options += [{"comment": b"a comment"}, {"dpi": (72, 300)}, {"icc_profile": bytes(500)}, {"smooth": 50}]
    for i, one in enumerate(options * 2):
        gray = i % 5 == 4 and "keep_rgb" not in one
        yield encode(picture(i, "L" if gray else "RGB"), "JPEG", **one)
    for i, how in enumerate(ODD_EXIF):
        for order in "<>":
            block = odd_exif(2 + i % 7, how, order)
            yield encode(picture(3 + i % 3), "JPEG", exif=block, progressive=i % 2 == 1)
    yield encode(picture(3), "MPO", save_all=True, append_images=[picture(4)])
    # The same blocks in another order: 4:2:2 as 4:4:0, and 4:2:0 as 4:1:1, which Pillow does not write.
    for subsampling, factors in ((1, 0x12), (2, 0x41)):
        for progressive in (False, True):
            plain = encode(picture(4), "JPEG", subsampling=subsampling, progressive=progressive)
            frame = plain.index(b"\xff\xc2" if progressive else b"\xff\xc0")
            yield plain[: frame + 11] + bytes([factors]) + plain[frame + 12 :]


def _pngs() -> Iterator[bytes]:
    for i, mode in enumerate(("1", "L", "LA", "P", "RGB", "RGBA", "I;16") * 3):
        yield encode(picture(i + 2, mode), "PNG", compress_level=(0, 1, 9)[i % 3])
    yield encode(picture(3), "PNG", transparency=(10, 20, 30))
    yield encode(picture(3), "PNG", exif=odd_exif(6), dpi=(72, 72), icc_profile=bytes(200))
    for mode in ("P", "RGB", "RGBA"):
        frames = [picture(4, mode), picture(10, mode)]
        yield encode(picture(4, mode), "PNG", save_all=True, append_images=frames, default_image=mode == "P")


def _webps() -> Iterator[bytes]:
    options: list[dict[str, Any]] = [{"quality": q} for q in (1, 50, 90)] + [{"lossless": True}]
    options += [{"method": 6}, {"method": 0}, {"lossless": True, "exact": True}, {"alpha_quality": 10}]
    for i, one in enumerate(options * 2):
        yield encode(picture(i + 1, "RGBA" if i % 3 == 2 else "RGB"), "WEBP", **one)
    yield encode(picture(3), "WEBP", exif=odd_exif(6))
    yield encode(picture(3), "WEBP", xmp=b"<x/>", icc_profile=bytes(200))
    yield encode(picture(3), "WEBP", save_all=True, append_images=[picture(9)])


def _bmps() -> Iterator[bytes]:
    for i, mode in enumerate(("1", "L", "P", "RGB", "RGBA") * 4):
        yield encode(picture(i, mode), "BMP")


def _ppms() -> Iterator[bytes]:
    for i, mode in enumerate(("1", "L", "RGB", "I;16") * 5):
        plain = encode(picture(i, mode), "PPM")
        yield plain if i % 3 else plain.replace(b"\n", b"\n# a comment\n", 1)


def _tiffs() -> Iterator[bytes]:
    codecs = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
    for i, mode in enumerate(("L", "RGB", "RGBA", "LA", "P", "CMYK", "I;16") * 3):
        codec = codecs[i % 5] if mode in ("L", "RGB") else codecs[i % 4]
        yield encode(picture(i + 2, mode), "TIFF", compression=codec)
    for i, codec in enumerate(("raw", "group3", "group4", "tiff_ccitt", "packbits")):
        yield encode(picture(i + 2, "1"), "TIFF", compression=codec)
    for info in ({284: 2}, {317: 2}, {278: 4}, {274: 6}):
        yield encode(picture(3), "TIFF", compression="tiff_lzw", tiffinfo=info)
    yield encode(picture(3), "TIFF", big_tiff=True)
    yield encode(picture(3), "TIFF", save_all=True, append_images=[picture(9)])


def _jpeg2000s() -> Iterator[bytes]:
    options: list[dict[str, Any]] = [{}, {"irreversible": True}, {"tile_size": (32, 32)}, {"num_resolutions": 2}]
    options += [{"progression": p} for p in ("LRCP", "RLCP", "RPCL", "PCRL", "CPRL")]
    options += [{"quality_mode": "rates", "quality_layers": [40, 10, 2]}, {"codeblock_size": (16, 16)}]
    options += [{"precinct_size": (64, 64), "num_resolutions": 2}, {"mct": 0}, {"no_jp2": True}, {"plt": True}]
    for i, one in enumerate(options * 2):
        mode = ("RGB", "L", "RGBA", "RGB")[i % 4]
        yield encode(picture(3 + i % 3, mode), "JPEG2000", **({} if mode == "L" and "mct" in one else one))


_MAKERS: dict[str, Callable[[], Iterator[bytes]]] = {
    "JPEG": _jpegs, "PNG": _pngs, "WEBP": _webps, "BMP": _bmps, "PPM": _ppms, "TIFF": _tiffs, "JPEG2000": _jpeg2000s,
}  # fmt: skip


def seeds(kind: str, found: Sequence[Path]) -> list[bytes]:
    """Good files of a format: made here, and those of ``found`` that are small and of this format."""
    made = list(_MAKERS[kind]())
    for path in found:
        content = path.read_bytes()
        if len(content) <= _LARGEST and _format_of(content) in ({kind, "MPO"} if kind == "JPEG" else {kind}):
            made.append(content)
    return made


def _format_of(content: bytes) -> str | None:
    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.format
    except Exception:  # the odd files are odd
        return None


# ---- damage


def mutated(kind: str, files: Sequence[bytes], rng: Rng) -> bytes:
    """Return one of ``files`` with damage in one to four places: in any bytes, or in parts of its structure."""
    content = files[int(rng.integers(len(files)))]
    other = files[int(rng.integers(len(files)))]
    for _ in range(int(rng.choice((1, 1, 2, 4)))):
        if kind in _PARTS and rng.random() < 0.5:
            split, join = _PARTS[kind]
            parts = split(content)
            _shuffle(parts, split(other), rng)
            content = join(parts)
        else:
            content = _bytes_of(content, other, rng)
    if kind == "JPEG" and rng.random() < 0.7 and not content.endswith(b"\xff\xd9"):
        content += b"\xff\xd9"  # else the index finds out that it is cut
    return content


def _place(content: bytes, rng: Rng) -> int:
    """Half of them where headers are."""
    near = min(len(content), 700)
    return int(rng.integers(max(near if rng.random() < 0.5 else len(content), 1)))


_NUMBERS = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def _bytes_of(content: bytes, other: bytes, rng: Rng) -> bytes:
    made, at = bytearray(content), _place(content, rng)
    length = int(rng.choice((1, 2, 4, 16, 64, 300)))
    match int(rng.integers(8)):
        case 0:
            for _ in range(length):
                place = _place(content, rng)
                if made:
                    made[place] ^= 1 << int(rng.integers(8))
        case 1:
            made[at : at + length] = rng.bytes(min(length, len(made) - at))
        case 2:
            made[at : at + length] = bytes([int(rng.choice((0, 0xFF)))]) * min(length, len(made) - at)
        case 3:
            del made[at : at + length]
        case 4:
            made[at:at] = made[at : at + length] * int(rng.integers(1, 4))
        case 5:
            made[at:at] = rng.bytes(length)
        case 6:
            size = int(rng.choice((1, 2, 4)))
            number = int(rng.choice(_NUMBERS)) & (1 << 8 * size) - 1
            made[at : at + size] = number.to_bytes(size, "little" if rng.random() < 0.5 else "big")
        case _:
            start = _place(other, rng)
            made[at : at + length] = other[start : start + length]
    return bytes(made)


def _shuffle(parts: list[bytes], others: list[bytes], rng: Rng) -> None:
    """Leave out, repeat, exchange, damage or take over a part."""
    if not parts or not others:
        return
    i, k = (int(n) for n in rng.integers(len(parts), size=2))
    match int(rng.integers(6)):
        case 0:
            del parts[i]
        case 1:
            parts.insert(k, parts[i])
        case 2:
            parts[i], parts[k] = parts[k], parts[i]
        case 3:
            parts.insert(i, others[rng.integers(len(others))])
        case _:
            parts[i] = _bytes_of(parts[i], others[rng.integers(len(others))], rng)


def _png_parts(content: bytes) -> list[bytes]:
    """Name and data of every chunk; the pixels uncompressed."""
    parts, at = [], 8
    while at + 12 <= len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        name, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        if name == b"IDAT":
            with contextlib.suppress(zlib.error):
                data, name = zlib.decompress(data), b"idat"
        parts.append(name + data)
        at += 12 + length
    return parts


def _png_join(parts: Sequence[bytes]) -> bytes:
    """Return the file with lengths and checksums that fit."""
    made = [b"\x89PNG\r\n\x1a\n"]
    for part in parts:
        if part[:4] == b"idat":
            part = b"IDAT" + zlib.compress(part[4:], 1)
        made.append(struct.pack(">I", max(len(part) - 4, 0)) + part + struct.pack(">I", zlib.crc32(part)))
    return b"".join(made)


def _jpeg_parts(content: bytes) -> list[bytes]:
    """Segments, each scan with its data."""
    parts, at = [], 2
    while at + 4 <= len(content) and content[at] == 0xFF:
        length = int.from_bytes(content[at + 2 : at + 4], "big")
        end = at + 2 + length
        if content[at + 1] == 0xDA:
            while end + 1 < len(content) and (content[end] != 0xFF or content[end + 1] in (0, *range(0xD0, 0xD8))):
                end += 1
        parts.append(content[at:end])
        at = end
    return [*parts, content[at:]]


def _riff_parts(content: bytes) -> list[bytes]:
    parts, at = [], 12
    while at + 8 <= len(content):
        length = int.from_bytes(content[at + 4 : at + 8], "little")
        parts.append(content[at : at + 4] + content[at + 8 : at + 8 + length])
        at += 8 + length + length % 2
    return parts


def _riff_join(parts: Sequence[bytes]) -> bytes:
    body = b"WEBP" + b"".join(
        part[:4] + struct.pack("<I", max(len(part) - 4, 0)) + part[4:] + bytes(len(part) % 2) for part in parts
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _tiff_parts(content: bytes) -> list[bytes]:
    """The entries of the first directory, with what lies before and behind them."""
    order = "<" if content[:2] == b"II" else ">"
    if len(content) < 8 or content[2:4] not in (b"*\0", b"\0*"):
        return [content]
    (at,) = struct.unpack(order + "I", content[4:8])
    if at + 2 > len(content):
        return [content]
    (count,) = struct.unpack(order + "H", content[at : at + 2])
    first, last = at + 2, min(at + 2 + 12 * count, len(content))
    return [content[:first], *(content[k : k + 12] for k in range(first, last, 12)), content[last:]]


def _codestream_parts(content: bytes) -> list[bytes]:
    """The marker segments of a JPEG 2000 codestream, with what lies before and behind them."""
    at = content.find(b"\xff\x4f\xff\x51")
    if at < 0:
        return [content]
    parts, at = [content[: at + 2]], at + 2
    while at + 4 <= len(content) and content[at] == 0xFF and content[at + 1] != 0x93:
        end = at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        parts.append(content[at:end])
        at = end
    return [*parts, content[at:]]


_PARTS: dict[str, tuple[Callable[[bytes], list[bytes]], Callable[[Sequence[bytes]], bytes]]] = {
    "PNG": (_png_parts, _png_join),
    "JPEG": (_jpeg_parts, lambda parts: b"\xff\xd8" + b"".join(parts)),
    "WEBP": (_riff_parts, _riff_join),
    "TIFF": (_tiff_parts, b"".join),
    "JPEG2000": (_codestream_parts, b"".join),
}
