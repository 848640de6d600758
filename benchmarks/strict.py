"""What does ``strict=True`` cost, and what does it find in damaged JPEG files?

Cost: photographs are probed, as the index does it once for each file, and decoded, as a torch dataset's images are each
time that they are read, with and without; alternating, in one thread, from memory. Found: each photograph is damaged in
several ways between its first scan and its end, and counted is what the index refuses anyway, what Pillow refuses when
it decodes, what only ``strict`` names, and what is delivered with other pixels and not named by anybody. Photographs as
they are must all pass.

Prediction: probing becomes ten times as slow or worse, since all of a file is read and decoded to an eighth; decoding a
third slower. A cut or missing stretch is always found, overwritten bytes mostly, one flipped bit half the time: a
decoder of Huffman codes finds its way again, and what it made meanwhile is an image like another.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common
import numpy as np

from gpupipe.codecs.decode import decode, open_rgb, peek
from gpupipe.codecs.files import Undecodable
from gpupipe.codecs.limits import Limits
from gpupipe.codecs.pillow import quiet

Rng = np.random.Generator


def flipped(data: bytearray, at: int, rng: Rng) -> None:
    data[at] ^= 1 << int(rng.integers(8))


def overwritten(data: bytearray, at: int, rng: Rng) -> None:
    data[at : at + 40] = rng.bytes(40)


def zeros(data: bytearray, at: int, rng: Rng) -> None:
    data[at : at + 512] = bytes(len(data[at : at + 512]))


def missing(data: bytearray, at: int, rng: Rng) -> None:
    del data[at : at + 512]


def cut(data: bytearray, at: int, rng: Rng) -> None:
    del data[at:]


DAMAGE: dict[str, Callable[[bytearray, int, Rng], None]] = {
    "one bit flipped": flipped,
    "40 bytes overwritten": overwritten,
    "512 bytes zeroed": zeros,
    "512 bytes missing": missing,
    "cut, end put back": cut,
}


def damaged(content: bytes, how: str, rng: Rng) -> bytes:
    """Damaged anywhere between the first scan and the end mark, which stays."""
    start, end = content.index(b"\xff\xda") + 14, content.rindex(b"\xff\xd9")
    data = bytearray(content[:end])
    DAMAGE[how](data, int(rng.integers(start, end)), rng)
    return bytes(data) + b"\xff\xd9"


def verdict(content: bytes, damaged: bytes) -> str:
    try:
        peek(damaged)
    except Undecodable:
        return "refused by the index"
    try:
        made = decode(damaged)
    except Undecodable:
        return "refused by Pillow"
    try:
        peek(damaged, Limits(strict=True))
    except Undecodable:
        return "named by strict"
    return "not noticed, same pixels" if np.array_equal(made, decode(content)) else "not noticed, other pixels"


def seconds(work: Callable[[bytes], Any], contents: list[bytes]) -> float:
    began = time.perf_counter()
    for content in contents:
        work(content)
    return (time.perf_counter() - began) / len(contents)


def cost(contents: list[bytes], rounds: int) -> dict[str, Any]:
    works: dict[str, Callable[[bytes], Any]] = {
        "probe": peek,
        "probe_strict": lambda content: peek(content, Limits(strict=True)),
        "decode": decode,
        "decode_strict": lambda content: np.asarray(open_rgb(content, Limits(strict=True))),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work, contents))
    middle = {name: statistics.median(found) for name, found in times.items()}
    return {
        "seconds_per_file": middle,
        "probe_ratio": middle["probe_strict"] / middle["probe"],
        "decode_ratio": middle["decode_strict"] / middle["decode"],
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = _common.IMAGES if _common.IMAGES.is_dir() else None
    parser.add_argument(
        "folder", nargs="?", type=Path, default=default, help="JPEG files; without it they are generated"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--each", type=int, default=3, help="times that each photograph is damaged in each way")
    args = parser.parse_args()
    with _common.photographs(args.folder, count=128) as paths, quiet():
        contents = [Path(path).read_bytes() for path in paths]
        about = _common.describe_files(paths)
        refused = 0
        for content in contents:
            try:
                peek(content, Limits(strict=True))
            except Undecodable as e:
                refused += 1
                print(f"a good photograph is refused: {e}")
        measured = cost(contents, args.rounds)
        print(f"probing {measured['probe_ratio']:.1f} times as long, decoding {measured['decode_ratio']:.2f} times")
        rng, found = np.random.default_rng(0), {}
        for how in DAMAGE:
            counts = Counter(verdict(c, damaged(c, how, rng)) for c in contents for _ in range(args.each))
            found[how] = dict(counts.most_common())
            print(f"{how}: {found[how]}", flush=True)
    _common.save(
        "strict",
        {
            "question": "What does strict=True cost, and what does it find in damaged JPEG files?",
            "machine": _common.machine(),
            "files": about,
            "good_files_refused": refused,
            "cost": measured,
            "found": found,
        },
    )


if __name__ == "__main__":
    main()
