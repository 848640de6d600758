"""Files that are compressed as a whole, such as ``a.tar.gz``, whose samples cannot be read one by one."""

from __future__ import annotations

import re
import zlib
from typing import IO

_ENDINGS = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_SHORT = {".tgz": ".tar", ".tbz2": ".tar", ".txz": ".tar", ".tzst": ".tar"}
_CODECS = (
    ("gzip", "unpack it once with gunzip", re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")),
    ("bzip2", "unpack it once with bunzip2", re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")),
    ("xz", "unpack it once with unxz", re.compile(rb"\xfd7zXZ\0")),
    ("zstd", "unpack it once with unzstd", re.compile(rb"\x28\xb5\x2f\xfd")),
    ("zlib", "write it again without compression", re.compile(rb"\x78[\x01\x5e\x9c\xda]")),
)
"""(name, what to do, beginning of a file)"""
_HEAD = 1 << 10


def plain_name(name: str) -> str:
    """Return the name that a file has after unpacking.

    >>> plain_name("a.tar.gz"), plain_name("a.tgz"), plain_name("a.tar")
    ('a.tar', 'a.tar', 'a.tar')
    """
    stem, dot, ending = name.rpartition(".")
    ending = f"{dot}{ending}".lower()
    return stem if ending in _ENDINGS else stem + _SHORT[ending] if ending in _SHORT else name


def compression_of(file: IO[bytes]) -> str:
    """Explain by its beginning that a file is compressed, and what to do; empty if it is not.

    A file of another format may begin so too: first try to read it as what it should be.
    """
    file.seek(0)
    head = file.read(_HEAD)
    for name, advice, begins in _CODECS:
        if begins.match(head) and (name != "zlib" or _inflates(head)):
            return f"it is compressed with {name}, so its samples cannot be read one by one; {advice}"
    return ""


def _inflates(head: bytes) -> bool:
    # Two bytes say little.
    try:
        zlib.decompressobj().decompress(head, 1)
    except zlib.error:
        return False
    return True
