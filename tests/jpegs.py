"""JPEG files of every sampling, scan and restart interval, coded one block at a time as T.81 describes it.

Slow and plain, so that what reads them shares no code with what wrote them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from gpupipe.testing.photos import photograph

__all__ = ["KINDS", "Kind", "jpeg", "pillow_jpeg"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, (i // 8 if (i // 8 + i % 8) % 2 else i % 8)))
"""Row-major places of the coefficients in zigzag order (T.81, figure A.6)."""
_BASIS = np.array([[(0.5 if u else 8**-0.5) * np.cos((2 * x + 1) * u * np.pi / 16) for x in range(8)]
                   for u in range(8)])  # fmt: skip
Code = dict[int, tuple[int, int]]
"""Symbol to (word, bits)."""


def code(lengths: dict[int, int]) -> tuple[bytes, Code]:
    """(counts and symbols as DHT has them, the words) of symbols with these lengths."""
    order = sorted(lengths, key=lambda s: (lengths[s], s))
    counts = bytes(sum(length == n for length in lengths.values()) for n in range(1, 17))
    words, word, before = {}, 0, 0
    for symbol in order:
        word <<= lengths[symbol] - before
        before = lengths[symbol]
        words[symbol] = (word, before)
        word += 1
    return counts + bytes(order), words


FLAT_DC = code(dict.fromkeys(range(12), 4))
FLAT_AC = code(dict.fromkeys([0, 0xF0, *(run << 4 | size for run in range(16) for size in range(1, 11))], 8))


@dataclass(frozen=True)
class Kind:
    """A way to code an image. ``sampling`` has (h, v) of each component."""

    sampling: tuple[tuple[int, int], ...]
    restart: int = 0
    interleaved: bool = True
    step: int = 8
    """Of the quantization."""


def jpeg(pixels: npt.NDArray[np.uint8], kind: Kind) -> bytes:
    """Encode u8[H, W, 3], or u8[H, W] for one component, as a baseline JPEG."""
    height, width = pixels.shape[:2]
    h = max(a for a, _ in kind.sampling) if len(kind.sampling) > 1 else 1
    v = max(b for _, b in kind.sampling) if len(kind.sampling) > 1 else 1
    rows, columns = -(-height // (8 * v)), -(-width // (8 * h))
    image = Image.fromarray(pixels).convert("YCbCr" if len(kind.sampling) > 1 else "L")
    full = np.asarray(image).reshape(height, width, -1)
    full = np.pad(full, ((0, rows * 8 * v - height), (0, columns * 8 * h - width), (0, 0)), "edge").astype(float)
    grids = []
    for i, (a, b) in enumerate(kind.sampling if len(kind.sampling) > 1 else [(1, 1)]):
        plane = full[: full.shape[0] // v * v, :, i]
        plane = plane.reshape(plane.shape[0] * b // v, v // b, plane.shape[1] * a // h, h // a).mean(axis=(1, 3))
        blocks = plane.reshape(plane.shape[0] // 8, 8, plane.shape[1] // 8, 8).transpose(0, 2, 1, 3) - 128
        found = np.rint(_BASIS @ blocks @ _BASIS.T / kind.step).astype(int)
        grids.append(found.reshape(*found.shape[:2], 64)[:, :, ZIGZAG])
    out = b"\xff\xd8" + _segment(0xDB, bytes([0] + [kind.step] * 64))
    names = b"".join(bytes([i + 1, a << 4 | b, 0]) for i, (a, b) in enumerate(kind.sampling))
    out += _segment(0xC0, b"\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big")
                    + bytes([len(kind.sampling)]) + names)  # fmt: skip
    out += _segment(0xC4, b"\0" + FLAT_DC[0]) + _segment(0xC4, b"\x10" + FLAT_AC[0])
    if kind.restart:
        out += _segment(0xDD, kind.restart.to_bytes(2, "big"))
    components = list(range(len(kind.sampling)))
    for scan in [components] if kind.interleaved else [[i] for i in components]:
        mcus = []
        if len(scan) > 1:
            for y in range(rows):
                for x in range(columns):
                    mcus.append([(i, grids[i][y * b + j, x * a + k]) for i, (a, b) in enumerate(kind.sampling)
                                 for j in range(b) for k in range(a)])  # fmt: skip
        else:
            (i,) = scan
            a, b = kind.sampling[i] if len(components) > 1 else (1, 1)
            high, wide = -(-height * b // (8 * v)), -(-width * a // (8 * h))
            mcus = [[(i, grids[i][y, x])] for y in range(high) for x in range(wide)]
        named = b"".join(bytes([i + 1, 0]) for i in scan)
        out += _segment(0xDA, bytes([len(scan)]) + named + b"\0\x3f\0") + _coded(mcus, kind)
    return out + b"\xff\xd9"


def _coded(mcus: Sequence[Sequence[tuple[int, I64]]], kind: Kind) -> bytes:
    step = kind.restart or len(mcus)
    parts = []
    for at in range(0, len(mcus), step):
        bits, before = [], [0, 0, 0]
        for mcu in mcus[at : at + step]:
            for i, block in mcu:
                bits.append(_symbol(FLAT_DC[1], 0, int(block[0]) - before[i]))
                before[i] = int(block[0])
                bits += _ac(block, FLAT_AC[1])
        text = "".join(bits)
        text += "1" * (-len(text) % 8)
        data = int(text, 2).to_bytes(len(text) // 8, "big")
        parts.append(data.replace(b"\xff", b"\xff\0"))
    return b"".join(p + (bytes([0xFF, 0xD0 + n % 8]) if n < len(parts) - 1 else b"") for n, p in enumerate(parts))


def _ac(block: I64, code: Code) -> list[str]:
    out, run = [], 0
    for value in block[1:].tolist():
        if not value:
            run += 1
            continue
        while run > 15:
            out.append(_symbol(code, 0xF, 0))
            run -= 16
        out.append(_symbol(code, run, value))
        run = 0
    return out + ([_symbol(code, 0, 0)] if run else [])


def _symbol(code: Code, run: int, value: int) -> str:
    size = abs(value).bit_length()
    word, bits = code[run << 4 | size]
    return f"{word:0{bits}b}" + (f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else "")


def _segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


def pillow_jpeg(height: int, width: int, seed: int, mode: str = "RGB", **options: object) -> bytes:
    """A photograph as Pillow writes it; ``options`` are those of ``Image.save``."""
    out = io.BytesIO()
    Image.fromarray(photograph(height, width, seed)).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


KINDS = {
    "4:4:4": Kind(((1, 1), (1, 1), (1, 1))),
    "4:2:2": Kind(((2, 1), (1, 1), (1, 1))),
    "4:2:0": Kind(((2, 2), (1, 1), (1, 1))),
    "4:4:0": Kind(((1, 2), (1, 1), (1, 1))),
    "4:1:1": Kind(((4, 1), (1, 1), (1, 1))),
    "4:1:0": Kind(((4, 2), (1, 1), (1, 1))),
    "2x2 chroma of 4x4": Kind(((2, 2), (2, 1), (1, 2))),
    "gray": Kind(((1, 1),)),
    "gray, named 2x2": Kind(((2, 2),)),
    "restarts": Kind(((2, 2), (1, 1), (1, 1)), restart=3),
    "restarts within rows and over them": Kind(((1, 1), (1, 1), (1, 1)), restart=7),
    "one scan each": Kind(((2, 2), (1, 1), (1, 1)), interleaved=False),
    "one scan each, restarts": Kind(((2, 1), (1, 1), (1, 1)), interleaved=False, restart=5),
    "fine": Kind(((2, 2), (1, 1), (1, 1)), step=1),
}
