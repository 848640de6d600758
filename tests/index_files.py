"""Trees of files to be indexed, and index files made by hand: what a program could write that knows the format."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from PIL import Image

__all__ = ["COLUMN", "OLD_NS", "age", "arrays_of", "hostile", "index_file", "png", "regions", "rewritten", "sealed"]

OLD_NS = 1_500_000_000_000_000_000
BLOCK = 4096
COLUMN = {"name": "x", "dtype": "<i8", "shape": [4], "offset": 0}


def png(path: Path, height: int = 5, width: int = 7) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height)).save(path)
    return path


def age(root: Path, ns: int = OLD_NS) -> None:
    """Make everything below ``root`` old, so that its index is not racy."""
    for folder, _, files in os.walk(root):
        for name in files:
            os.utime(os.path.join(folder, name), ns=(ns, ns), follow_symlinks=False)
        os.utime(folder, ns=(ns, ns))


def index_file(ds: Any) -> Path:
    path = ds.index_summary().path
    assert path is not None
    return Path(path)


def _aligned(n: int) -> int:
    return -(-n // BLOCK) * BLOCK


def sealed(header: bytes, data: bytes = bytes(BLOCK)) -> bytes:
    """A file with these, whose sums are right."""
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
    sums = b"".join(struct.pack("<Q", xxhash.xxh3_64_intdigest(block)) for block in blocks)

    def head(digest: bytes) -> bytes:
        prefix = struct.pack("<8sIIQ16s", b"GPUPIDX\n", 2, len(header), len(blocks), digest)
        return (prefix.ljust(64, b"\0") + header).ljust(_aligned(64 + len(header)), b"\0")

    return head(hashlib.blake2b(head(bytes(16)) + sums, digest_size=16).digest()) + data + sums


def hostile(meta: Any = None, columns: Any = None) -> bytes:
    """A file whose sums are right around any header."""
    return sealed(json.dumps({"columns": columns, "meta": meta}).encode())


def _parts(content: bytes) -> tuple[int, int, int]:
    """(length of the header, where the data begins, where it ends)"""
    _, _, length, blocks, _ = struct.unpack("<8sIIQ16s", content[:40])
    first = _aligned(64 + length)
    return length, first, first + blocks * BLOCK


def rewritten(content: bytes, header: Any) -> bytes:
    """A good file with another header: bytes, or a function of the one it has."""
    length, first, end = _parts(content)
    if callable(header):
        parsed = json.loads(content[64 : 64 + length])
        header(parsed)
        header = json.dumps(parsed).encode()
    return sealed(header, content[first:end])


def regions(path: Path) -> dict[str, tuple[int, int]]:
    """The parts of an index file, by name: where each begins and ends. They leave no byte out."""
    content = path.read_bytes()
    length, first, end = _parts(content)
    found = {
        "magic": (0, 8),
        "version": (8, 12),
        "header length": (12, 16),
        "blocks": (16, 24),
        "digest": (24, 40),
        "prefix padding": (40, 64),
        "header": (64, 64 + length),
        "header padding": (64 + length, first),
        "sums": (end, len(content)),
    }
    at = first
    for column in sorted(json.loads(content[64 : 64 + length])["columns"], key=lambda c: c["offset"]):
        size = int(np.prod(column["shape"])) * np.dtype(column["dtype"]).itemsize
        start = first + column["offset"]
        if at < start:
            found[f"padding before {column['name']}"] = at, start
        if size:
            found[column["name"]] = start, start + size
        at = start + size
    found["last padding"] = at, end
    assert sum(b - a for a, b in found.values()) == len(content)
    return {name: part for name, part in found.items() if part[0] < part[1]}


def arrays_of(columns: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of all columns of an open file."""
    return {name: column.all.copy() for name, column in columns.columns.items()}
