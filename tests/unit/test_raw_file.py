"""Files that are not on a disk read like files that are."""

from __future__ import annotations

import io
import os
from typing import IO, Any

import numpy as np
import pytest

from gpupipe.codecs.raw_file import RawFile

CONTENT = np.random.default_rng(0).bytes(50_000)


class Pieces(RawFile):
    """Returns less than it is asked for, as networks do."""

    def at(self, position: int, count: int) -> bytes:
        return CONTENT[position : position + min(count, 700)]


def test_reads_as_a_file_on_a_disk(tmp_path: Any) -> None:
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    rng = np.random.default_rng(1)
    with open(path, "rb") as real, io.BufferedReader(Pieces(len(CONTENT)), 1024) as made:
        for _ in range(300):
            offset, count = (int(rng.integers(0, 60_000)) for _ in range(2))
            whence = (os.SEEK_SET, os.SEEK_END)[int(rng.integers(2))]

            def read(file: IO[bytes], *to: int, count: int = count) -> tuple[int, bytes, int]:
                return file.seek(*to), file.read(count), file.tell()

            to = (offset, whence) if whence == os.SEEK_SET else (-min(offset, len(CONTENT)), whence)
            assert read(real, *to) == read(made, *to)
        assert real.seek(10) == made.seek(10) and real.seek(5, 1) == made.seek(5, 1) and real.read(9) == made.read(9)


def test_nothing_lies_before_the_beginning() -> None:
    raw = Pieces(len(CONTENT))
    raw.seek(7)
    with pytest.raises(ValueError, match=r"byte -1 is before the beginning"):
        raw.seek(-8, os.SEEK_CUR)
    assert raw.tell() == 7
