"""What do damaged videos give: the frames of a plain loop over them, a named bad sample, or frames that are neither?

Small videos of every codec, in every container that takes it, are damaged: bytes overwritten, removed or repeated, bits
flipped, single packets filled with noise, the beginning or the end spoilt, the file cut. Half of them are indexed after
that, the other half were indexed before, as happens to files that break while a training runs. Then random clips are
decoded.

A delivered frame must be the one of that number in a plain loop over the damaged file with PyAV's defaults, which stops
at its first error: ``right``. Or it is the loop's frame of that time, if the decoder silently left out some before it:
``shifted``. Or it is the frame of that time of the file before it was damaged, because the decoder of the loop had not
recovered from damage before it: ``intact``. If the loop did not get that far, it may be the frame of a loop that goes
on after errors: ``beyond the loop``. ``unnoticed`` are damaged frames of which no decoder says anything, while the loop
delivers a damaged frame at this place, too: HEVC and VP8 leave what they miss of a picture to whatever the memory held
before. Everything else is ``wrong``. ``concealed`` counts delivered frames that the loop's own decoder marked as
damaged. ``lost`` counts clips that were refused although the loop got all of their frames, unmarked and equal to the
whole file's: they share a group of pictures with the damage. Of whole files none may be lost.

Prediction: nothing wrong, nothing concealed, no crash, no hang. Seen: nothing concealed, no crash, no hang; about one
frame in ten thousand is wrong, of MPEG-4 part 2, whose decoder does not notice damage at the end of the first picture
that it decodes, and of VP8, whose decoder notices few things.

    python benchmarks/fuzz_videos.py [--files N] [--seed N]

Files of ``../shared/data/videos`` take part if they are there. Writes results/fuzz_videos.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common
import numpy as np
from videos import B2, CLOSED, OPEN, VPX, X265, copied, make_video

CODECS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "h264": ("libx264", {"options": CLOSED}, ("mp4", "mkv", "ts", "avi", "flv")),
    "h264-open": ("libx264", {"options": OPEN}, ("mp4", "mkv", "ts")),
    "hevc": ("libx265", {"options": X265}, ("mp4", "mkv", "ts")),
    "mpeg4": ("mpeg4", {"options": B2}, ("mp4", "mkv", "avi", "ts")),
    "mpeg2": ("mpeg2video", {"options": B2}, ("mp4", "mkv", "ts", "mpg")),
    "mjpeg": ("mjpeg", {"pixels": "yuvj420p"}, ("mp4", "mkv", "avi")),
    "vp8": ("libvpx", {"options": VPX}, ("webm", "mkv", "avi")),
    "vp9": ("libvpx-vp9", {"options": VPX}, ("webm", "mkv", "mp4")),
    "av1": ("libsvtav1", {"options": {"g": "12", "preset": "12"}}, ("webm", "mkv", "mp4")),
    "ffv1": ("ffv1", {"options": {"g": "8"}}, ("mkv", "avi")),
}
"""Name: (encoder, arguments of ``make_video``, containers)."""
CLIPS = 6
"""Clips of each damaged file."""
PATIENCE = 60.0
"""Seconds without an answer, after which a file counts as one that hangs."""

Damage = Callable[[bytearray, random.Random, list[tuple[int, int]]], None]


def make_seeds(folder: Path) -> list[Path]:
    import av

    made = []
    for name, (codec, arguments, containers) in CODECS.items():
        if codec not in av.codecs_available:
            continue
        made += [make_video(folder / f"{name}.{container}", codec, **arguments) for container in containers]
    real = _common.IMAGES.parent / "videos" / "eat" / "eat.mkv"
    if real.is_file():
        for container in ("mkv", "mp4", "ts"):
            made.append(copied(real, folder / f"real.{container}"))
    return made


# ---- damage


def overwrite(data: bytearray, rng: random.Random, packets: list[tuple[int, int]]) -> None:
    n = rng.choice((1, 2, 8, 32, 188, 1500))
    at = rng.randrange(len(data))
    data[at : at + n] = rng.randbytes(len(data[at : at + n]))


def scatter(data: bytearray, rng: random.Random, packets: list[tuple[int, int]]) -> None:
    for _ in range(rng.choice((1, 3, 10))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def blank(data: bytearray, rng: random.Random, packets: list[tuple[int, int]]) -> None:
    n = rng.choice((16, 188, 512, 4096))
    at = rng.randrange(len(data))
    data[at : at + n] = bytes([rng.choice((0, 255))]) * len(data[at : at + n])


def remove(data: bytearray, rng: random.Random, packets: list[tuple[int, int]]) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 7, 188, 1000, 4096))]


def repeat(data: bytearray, rng: random.Random, packets: list[tuple[int, int]]) -> None:
    at = rng.randrange(len(data))
    n = rng.choice((1, 188, 1000, 4096))
    data[at:at] = data[at : at + n]


def cut(data: bytearray, rng: random.Random, packets: list[tuple[int, int]]) -> None:
    del data[rng.randrange(len(data) // 20, len(data)) :]


def garbage_packet(data: bytearray, rng: random.Random, packets: list[tuple[int, int]]) -> None:
    if not packets:
        return overwrite(data, rng, packets)
    at, size = rng.choice(packets)
    skip = rng.choice((0, 5, size // 2))
    data[at + skip : at + size] = rng.randbytes(max(size - skip, 0))
    return None


def ends(data: bytearray, rng: random.Random, packets: list[tuple[int, int]]) -> None:
    """The first or the last part, where containers keep their directories."""
    part = min(rng.choice((256, 1024, 4096)), len(data) - 1)
    start = rng.choice((0, len(data) - part))
    for _ in range(rng.choice((1, 4, 16))):
        data[start + rng.randrange(part)] = rng.randrange(256)


DAMAGES: dict[str, Damage] = {
    "overwritten": overwrite,
    "scattered bits": scatter,
    "blank": blank,
    "removed": remove,
    "repeated": repeat,
    "cut": cut,
    "garbage packet": garbage_packet,
    "first or last part": ends,
}


# ---- one file, in a process that may crash


def packets_of(path: Path) -> list[tuple[int, int]]:
    """(position, size) of the video's packets, if the container says where their bytes are."""
    import av

    if path.suffix not in (".mp4", ".mkv", ".webm", ".avi", ".flv"):
        return []
    data = path.read_bytes()
    found = []
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            if packet.size and packet.pos is not None:
                at = data.find(bytes(packet)[:64], packet.pos)
                if at >= 0:
                    found.append((at, packet.size))
    return found


def same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and bool((a == b).all())


class Loop:
    """A plain loop over all frames of a file; and what comes after its first error, by time."""

    def __init__(self, path: Path):
        import av

        self.frames: list[Any] = []
        self.times: list[int | None] = []
        self.marked: list[bool] = []
        self.later: dict[int | None, list[Any]] = {}
        self.error = ""
        try:
            with av.open(str(path)) as container:
                for packet in container.demux(video=0):
                    try:
                        for frame in packet.decode():
                            self._take(frame)
                    except Exception as e:
                        self.error = self.error or f"{type(e).__name__}: {e}"
        except Exception as e:
            self.error = self.error or f"{type(e).__name__}: {e}"

    def _take(self, frame: Any) -> None:
        pixels = frame.to_ndarray(format="rgb24")
        self.later.setdefault(frame.pts, []).append(pixels)
        if not self.error:
            self.frames.append(pixels)
            self.times.append(frame.pts)
            self.marked.append(bool(frame.is_corrupt))

    def judge(self, k: int, time: int | None, pixels: Any, whole: Loop, before: bool) -> str:
        """Return what a loop over the file makes of frame ``k``, which has ``time`` in the index."""
        here = [k] if k < len(self.frames) else []
        if time is not None and time in self.times:
            here.append(self.times.index(time))
        for place, number in enumerate(here):
            if same(pixels, self.frames[number]):
                return "concealed" if self.marked[number] else "shifted" if place else "right"
        intact = list(whole.later.get(time, ())) + (whole.frames[k : k + 1] if before else [])
        if any(same(pixels, other) for other in intact):
            return "intact"
        after = [] if here else self.later.get(time, ())
        if any(same(pixels, other) for other in after):
            return "beyond the loop"
        silent = here and not any(self.marked[n] or same(self.frames[n], other) for n in here for other in whole.frames)
        elsewhere = any(same(pixels, other) for other in (*whole.frames, *self.frames))
        return "unnoticed" if silent and not elsewhere else "wrong"


def judge(seed: Path, whole: Loop, kind: str | None, before: bool, number: int, folder: Path) -> dict[str, Any]:
    """Counts of one damaged file (``kind`` ``None``: of the whole one)."""
    from gpupipe.codecs.files import Undecodable
    from gpupipe.codecs.video.decode import decode_clip
    from gpupipe.datasets import VideoList

    rng = random.Random(number)
    path = folder / f"{number}{seed.suffix}"
    data = bytearray(seed.read_bytes())
    path.write_bytes(data)
    dataset = VideoList([path]) if before else None
    if kind is not None:
        DAMAGES[kind](data, rng, packets_of(seed) if kind == "garbage packet" else [])
        path.write_bytes(data)
    counts: Counter[str] = Counter(files=1)
    try:
        if dataset is None:
            dataset = VideoList([path])
        if dataset.bad(np.array([0])):
            counts["bad in the index"] += 1
            return {"counts": dict(counts), "wrong": []}
        loop, entry = Loop(path), dataset.entry(0)
        n, wrong = len(entry.pts), []
        for _ in range(CLIPS):
            length, stride = rng.choice((1, 4, 8)), rng.choice((1, 2, 4))
            start = rng.randrange(max(n - (length - 1) * stride, 1))
            frames = np.minimum(start + stride * np.arange(length), n - 1)
            counts["clips"] += 1
            try:
                clip = decode_clip(entry, frames)
            except Undecodable as e:
                counts["refused"] += 1
                counts[f"refused: {e.kind}"] += 1
                counts["lost"] += not before and all(
                    k < len(loop.frames) and not loop.marked[k] and any(same(loop.frames[k], w) for w in whole.frames)
                    for k in frames.tolist()
                )
                continue
            counts["frames"] += length
            for k, pixels in zip(frames.tolist(), clip, strict=True):
                verdict = loop.judge(k, int(entry.pts[k]) if entry.exact else None, pixels, whole, before)
                counts[verdict] += 1
                if verdict == "wrong":
                    wrong.append([k, frames.tolist()])
        return {"counts": dict(counts), "wrong": wrong}
    finally:
        path.unlink(missing_ok=True)


def serve(folder: Path) -> None:
    """Answer tasks from stdin, one line each."""
    wholes: dict[str, Loop] = {}
    for line in sys.stdin:
        seed, kind, before, number = json.loads(line)
        if seed not in wholes:
            wholes[seed] = Loop(Path(seed))
        answer = judge(Path(seed), wholes[seed], kind, before, number, folder)
        print(json.dumps(answer), flush=True)


class Judge:
    """:func:`serve` in a process that is restarted after a crash or a hang."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def ask(self, *task: Any) -> dict[str, Any]:
        if self._process is None:
            command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(self._folder)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        hung: list[bool] = []

        def give_up() -> None:
            hung.append(True)
            process.kill()

        timer = threading.Timer(PATIENCE, give_up)  # and not select(): the pipe is buffered by Python
        timer.daemon = True
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = process.wait()
        self._process = None
        what = "hangs" if hung else "crashes" if code < 0 else "errors"
        name = signal.Signals(-code).name if code < 0 and not hung else str(code)
        return {"counts": {"files": 1, what: 1}, "wrong": [], "died": name}

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the names of the files to start from")
    parser.add_argument("--show", action="store_true", help="print every file with wrong frames")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve)
        return
    began = time.perf_counter()
    totals: Counter[str] = Counter()
    parts: dict[str, Counter[str]] = {}
    found: list[list[Any]] = []
    with tempfile.TemporaryDirectory(prefix="gpupipe-fuzz-") as temporary:
        folder = Path(temporary)
        os.environ["GPUPIPE_CACHE"] = str(folder / "cache")
        seeds = [s for s in make_seeds(folder / "seeds") if args.only in s.name]
        (folder / "damaged").mkdir()
        judge_ = Judge(folder / "damaged")
        good: Counter[str] = Counter()
        try:
            for seed in seeds:
                for number in range(3):
                    good.update(judge_.ask(str(seed), None, False, number)["counts"])
            print(f"whole files: {dict(good)}", flush=True)
            for i in range(args.files):
                rng = random.Random(args.seed * 1_000_003 + i)
                seed, kind, before = rng.choice(seeds), rng.choice(list(DAMAGES)), rng.random() < 0.5
                answer = judge_.ask(str(seed), kind, before, args.seed * 1_000_003 + i)
                totals.update(answer["counts"])
                for name in (seed.name, kind, "indexed before" if before else "indexed after"):
                    parts.setdefault(name, Counter()).update(answer["counts"])
                if answer["wrong"] or "died" in answer:
                    found.append(
                        [seed.name, kind, before, args.seed * 1_000_003 + i, answer.get("died"), answer["wrong"]]
                    )
                    if args.show:
                        print(found[-1], flush=True)
                if i % 500 == 499:
                    print(f"{i + 1} files, {time.perf_counter() - began:.0f} s: {dict(totals)}", flush=True)
        finally:
            judge_.close()
    result = {
        **_common.heading(__doc__, {"files": args.files, "seed": args.seed, "seeds": len(seeds)}),
        "whole_files": dict(good),
        "damaged": dict(totals),
        "parts": {name: dict(counts) for name, counts in sorted(parts.items())},
        "found": found[:50],
    }
    for name, counts in sorted(parts.items()):
        print(f"{name:22s} {dict(counts)}")
    print(_common.save("fuzz_videos_dry_run" if args.only else "fuzz_videos", result))


if __name__ == "__main__":
    main()
