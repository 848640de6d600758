"""The walk over the segments of a JPEG: good files pass, and every oddity has its word."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from odd_files import encode, picture

from gpupipe.codecs.coding import Coding
from gpupipe.codecs.decode import decode
from gpupipe.codecs.jpeg_structure import ODD, walk
from gpupipe.codecs.probe import probe_bytes
from gpupipe.engines.dali.codings import is_safe

HEIGHT, WIDTH = 61, 83
GOOD = {
    "baseline": encode(picture()),
    "4:4:4": encode(picture(), subsampling="4:4:4"),
    "4:2:2": encode(picture(), subsampling="4:2:2"),
    "gray": encode(picture().convert("L")),
    "optimized": encode(picture(), optimize=True, quality=100),
    "restarts": encode(picture(), restart_marker_blocks=2),
    "metadata": encode(picture(), comment=b"a comment", icc_profile=bytes(70_000), dpi=(72, 72), exif=b"Exif\0\0II*\0"),
    "progressive": encode(picture(), progressive=True),
    "progressive, gray": encode(picture().convert("L"), progressive=True),
    "progressive, restarts": encode(picture(), progressive=True, restart_marker_rows=1),
    "progressive, and behind": encode(picture(), progressive=True) + b"camera \xff\xda" * 50,
}
PLAIN, PROGRESSIVE = GOOD["baseline"], GOOD["progressive"]


def odd(content: bytes) -> str:
    """The word that the index keeps."""
    return " ".join(probe_bytes(content).coding.notes)


@pytest.mark.parametrize("name", GOOD)
def test_good_files_are_not_odd(name: str) -> None:
    assert odd(GOOD[name]) == "" and is_safe(probe_bytes(GOOD[name]).coding)
    found = walk(GOOD[name], HEIGHT, WIDTH, whole=True)
    assert GOOD[name][found.scan :][:2] == b"\xff\xda" and found.progressive == name.startswith("progressive")


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def place(content: bytes, marker: int, number: int = 0) -> int:
    """Where a segment begins."""
    return [found.start() for found in re.finditer(bytes([0xFF, marker]), content)][number]


def before(content: bytes, marker: int, what: bytes) -> bytes:
    at = place(content, marker)
    return content[:at] + what + content[at:]


def byte(content: bytes, marker: int, offset: int, value: int, number: int = 0) -> bytes:
    """With another byte, ``offset`` behind the length of a segment."""
    at = place(content, marker, number) + 4 + offset
    return content[:at] + bytes([value]) + content[at + 1 :]


def without(content: bytes, marker: int, number: int = 0) -> bytes:
    at = place(content, marker, number)
    return content[:at] + content[at + 2 + int.from_bytes(content[at + 2 : at + 4], "big") :]


def scans(content: bytes) -> list[int]:
    return [found.start() for found in re.finditer(b"\xff\xda", content)]


SCANS = scans(PROGRESSIVE)
EXIF = segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\0\0")
ADOBE = segment(0xEE, b"Adobe\0\x64\0\0\0\0\x01")

ODDITIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "bytes between segments": ("junk", lambda: before(PLAIN, 0xDB, b"abc")),
    "a fill byte": ("junk", lambda: before(PLAIN, 0xDB, b"\xff")),
    "a restart in the head": ("markers", lambda: before(PLAIN, 0xDB, b"\xff\xd0")),
    "an unknown segment": ("markers", lambda: before(PLAIN, 0xDB, segment(0xF5, b"abc"))),
    "arithmetic conditioning": ("process", lambda: before(PLAIN, 0xDB, segment(0xCC, b"\0\0"))),
    "two frames": ("frame", lambda: before(PLAIN, 0xC4, PLAIN[place(PLAIN, 0xC0) : place(PLAIN, 0xC4)])),
    "odd sampling": ("frame", lambda: byte(PLAIN, 0xC0, 7, 0x14)),
    "a table of three parts": ("tables", lambda: byte(PLAIN, 0xDB, 0, 0x25)),
    "no quantization": ("tables", lambda: without(PLAIN, 0xDB, 1)),
    "no Huffman table": ("tables", lambda: without(PLAIN, 0xC4, 3)),
    "too many short codes": ("tables", lambda: byte(byte(PLAIN, 0xC4, 1, 2), 0xC4, 3, 3)),
    "a DC symbol of 16 bits": ("tables", lambda: byte(PLAIN, 0xC4, 17, 16)),
    "a restart interval of one byte": ("tables", lambda: before(PLAIN, 0xDA, segment(0xDD, b"\0"))),
    "a component twice": ("scan", lambda: byte(PLAIN, 0xDA, 3, 1)),
    "half a spectrum": ("scan", lambda: byte(PLAIN, 0xDA, 8, 31)),
    "two EXIF segments": ("exif", lambda: before(PLAIN, 0xDB, EXIF * 2)),
    "two Adobe segments": ("adobe", lambda: before(PLAIN, 0xDB, ADOBE * 2)),
    "the last scan is missing": ("unfinished", lambda: PROGRESSIVE[: SCANS[-1]] + b"\xff\xd9"),
    "the end mark comes early": ("unfinished", lambda: PROGRESSIVE[: SCANS[3]] + b"\xff\xd9"),
    "a refinement is missing": ("scan", lambda: PROGRESSIVE[: SCANS[5]] + PROGRESSIVE[SCANS[6] :]),
    "a scan comes twice": ("scan", lambda: PROGRESSIVE[: SCANS[-1]] + PROGRESSIVE[SCANS[-2] :]),
    "junk between scans": ("junk", lambda: PROGRESSIVE[: SCANS[4]] + b"\xff\xc4\x00\x02junk" + PROGRESSIVE[SCANS[4] :]),
    "another frame between scans": ("frame", lambda: PROGRESSIVE[: SCANS[-1]] + _frame() + PROGRESSIVE[SCANS[-1] :]),
}


def _frame() -> bytes:
    at = place(PROGRESSIVE, 0xC2)
    return PROGRESSIVE[at : at + 2 + int.from_bytes(PROGRESSIVE[at + 2 : at + 4], "big")]


@pytest.mark.parametrize("name", ODDITIES)
def test_every_oddity_has_its_word(name: str) -> None:
    word, make = ODDITIES[name]
    found = walk(make(), HEIGHT, WIDTH, whole=True)
    assert found.odd == word and word in ODD and not is_safe(Coding("JPEG", "RGB", "jpeg", "RGB", (word,)))


def test_every_word_is_met() -> None:
    assert {word for word, _ in ODDITIES.values()} == set(ODD)


@pytest.mark.parametrize("across", range(6))
@pytest.mark.parametrize("down", range(6))
def test_a_gray_file_may_name_any_sampling(across: int, down: int) -> None:
    """Pillow writes 2x2, and one component is stored without subsampling whatever it says."""
    content = byte(encode(picture().convert("L")), 0xC0, 7, across << 4 | down)
    is_usual = 1 <= across <= 4 and 1 <= down <= 4
    assert walk(content, HEIGHT, WIDTH).odd == ("" if is_usual else "frame")


def test_another_size_than_pillow_read() -> None:
    assert walk(PLAIN, WIDTH, HEIGHT).odd == "frame"


@pytest.mark.parametrize("content", [PLAIN, PROGRESSIVE], ids=["baseline", "progressive"])
def test_a_walk_ends_wherever_the_file_ends(content: bytes) -> None:
    for end in range(0, len(content), 7):
        found = walk(content[:end], HEIGHT, WIDTH, whole=True)
        assert found.scan <= end and (found.odd or not found.progressive or not found.scan)
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(content)
        for at in rng.integers(len(content), size=5):
            damaged[at] ^= 1 << int(rng.integers(8))
        walk(bytes(damaged), HEIGHT, WIDTH, whole=True)


def test_an_unfinished_progression_is_still_an_image() -> None:
    content = PROGRESSIVE[: SCANS[-1]] + b"\xff\xd9"
    assert odd(content) == "unfinished" and decode(content).shape == (HEIGHT, WIDTH, 3)
