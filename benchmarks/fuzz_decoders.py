"""Which files can end the process, hang it, or differ in silence, if DALI's own decoders get them?

Files of every format that DALI knows, of every mode and option that Pillow writes, photographs and odd files among
them, are damaged at random (see ``_mutate.py``). What the index would refuse is refused here too. The rest goes to
DALI in processes that may die, with gpupipe's settings: whole, as a window, and in a batch of four with good files and
the damaged one before; and to Pillow, whose pixels are the truth.

A file is *given* to DALI if its coding is one that gpupipe gives to it: JPEG with a plain structure. All others are
*kept* away. Both kinds are tried and counted apart: what the kept ones do says what they are kept for. Goes on until
``--files`` of JPEG were given, and as many of each other format were kept.

- crash, hang: the process died, or did nothing for ``--patience`` seconds
- wrong: pixels that are not Pillow's; of the file itself, or of a good file beside it
- lenient: DALI delivers what Pillow refuses
- alone: DALI refuses what Pillow delivers. Such a batch is decoded by Pillow, see :mod:`gpupipe.engines.dali`
- fine: both deliver the same, or both refuse

Also measured is how fast one thread of each decodes good files.

Goes on where it was left; ``--minutes`` ends it in time, ``--formats`` takes some of them. Case number N of a format is
the same file at each time: ``--show FORMAT N`` writes it to a file. Prediction: crashes in PNG (animated ones above
all), JPEG 2000 and TIFF; none in JPEG, whose library Pillow shares, and there some lenient ones, because DALI does not
read on behind the last row that it needs. Pillow as fast as DALI but for JPEG, of which DALI has a newer library.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import _common
import _mutate
import numpy as np
import numpy.typing as npt
from PIL import Image

from gpupipe.codecs.decode import decode
from gpupipe.codecs.files import Undecodable
from gpupipe.codecs.limits import Limits
from gpupipe.codecs.pillow import quiet
from gpupipe.codecs.probe import KINDS, probe_bytes
from gpupipe.datasets.index.progress import Progress
from gpupipe.engines.dali.codings import is_safe
from gpupipe.testing.photos import photograph

MEASURES = ("benchmarks/_mutate.py", "gpupipe/codecs", "gpupipe/engines/dali/codings.py")


U8 = npt.NDArray[np.uint8]

VERSION = 1
"""Version of the cases. A new version starts again."""
CHUNK = 1000
"""Cases of one process, if it lives so long."""
MAX_PIXELS = 1 << 20
"""Larger ones are as little decoded as bombs are."""
MEMORY = 4 << 30
"""Bytes that a decoder may take."""
KEEP = 20
"""Case numbers of each finding that are written down."""


@cache
def files_of(kind: str) -> tuple[bytes, ...]:
    """Images that the cases of a format are made from."""
    folder = _common.IMAGES.parent
    found = [*folder.glob("odd/*"), *folder.glob("images/*/*"), *folder.glob("cifar10/test/*/*1.jpg")]
    with quiet():
        return tuple(_mutate.seeds(kind, sorted(found)))


def case(kind: str, number: int, files: Sequence[bytes]) -> bytes:
    return _mutate.mutated(kind, files, np.random.default_rng((VERSION, _mutate.FORMATS.index(kind), number)))


# ---- in a process that may die


class Decoders:
    """DALI's, with gpupipe's settings."""

    def __init__(self) -> None:
        from nvidia.dali import fn

        from gpupipe.engines.dali.graph import MEDIA, DecoderOptions, encoded, new_pipeline

        self._media, arguments = MEDIA, DecoderOptions().arguments(False)

        def pipeline(batch: int, window: bool) -> Any:
            pipe = new_pipeline(batch_size=batch, num_threads=min(batch, 2), device_id=None, prefetch=1)
            with pipe:
                raw = encoded("encoded")
                if window:
                    start, shape = (fn.external_source(name=n, ndim=1) for n in ("start", "shape"))
                    image = fn.decoders.image_slice(raw, start=start, shape=shape, axes=[0, 1], **arguments)
                else:
                    image = fn.decoders.image(raw, **arguments)
                pipe.set_outputs(image, fn.peek_image_shape(raw, adjust_orientation=False))
            pipe.build()
            return pipe

        self._whole, self._window, self._batch = pipeline(1, False), pipeline(1, True), pipeline(4, True)

    def whole(self, content: bytes) -> U8 | None:
        try:
            image, shape = self._whole.run(**{self._media: [np.frombuffer(content, np.uint8)]})
        except RuntimeError:
            return None
        made = np.array(image[0])
        return made if tuple(np.asarray(shape[0])) == made.shape else np.empty(0, np.uint8)

    def windows(self, contents: list[bytes], windows: list[tuple[int, int, int, int]]) -> list[U8] | None:
        """``windows`` are (top, left, height, width)."""
        pipe = self._window if len(contents) == 1 else self._batch
        numbers = np.array(windows, np.int32)
        media = [np.frombuffer(content, np.uint8) for content in contents]
        try:
            images, _ = pipe.run(**{self._media: media, "start": numbers[:, :2], "shape": numbers[:, 2:]})
        except RuntimeError:
            return None
        return [np.array(images[i]) for i in range(len(contents))]


class Judge:
    """Gives one file to all decoders, and says how they agree."""

    def __init__(self, kind: str, files: Sequence[bytes]):
        self._decoders = Decoders()
        self._good: list[tuple[bytes, U8]] = []
        for content in (*files[:40], *files_of("JPEG")[:10]):
            if _given(content)[0] != "refused" and (whole := self._decoders.whole(content)) is not None:
                with contextlib.suppress(Undecodable):
                    if np.array_equal(whole, pixels := decode(content)):
                        self._good.append((content, pixels))
        self._last: tuple[bytes, U8 | None, tuple[int, int]] | None = None

    def __call__(self, content: bytes, size: tuple[int, int], rng: np.random.Generator, tell: Any) -> str:
        """``tell`` is told what comes next."""
        try:
            want = decode(content, Limits(max_pixels=MAX_PIXELS))
        except Undecodable:
            want = None
        tell("whole")
        whole = self._decoders.whole(content)
        box = _window(size, rng)
        tell("window")
        window = self._decoders.windows([content], [box])
        verdict = _compare(want, whole, "whole") or _compare(
            None if want is None else _cut(want, box), None if window is None else window[0], "window"
        )
        tell("batch")
        beside = self._beside(content, want, size, box, rng)
        self._last = content, want, size
        return verdict or beside or ("fine" if want is not None else "fine, refused")

    def _beside(
        self, content: bytes, want: U8 | None, size: tuple[int, int], box: tuple[int, int, int, int], rng: Any
    ) -> str | None:
        """In a batch with two good files, and with the last damaged one or a third."""
        picks = [self._good[k] for k in rng.integers(len(self._good), size=3)]
        rows = [(data, pixels, _window(pixels.shape[:2], rng)) for data, pixels in picks]
        if self._last is not None and rng.random() < 0.5:
            rows[2] = (self._last[0], self._last[1], _window(self._last[2], rng))
        rows.insert(1, (content, want, box))
        images = self._decoders.windows([row[0] for row in rows], [row[2] for row in rows])
        if images is None:
            return None
        for (data, pixels, window), image in zip(rows, images, strict=True):
            if pixels is not None and not np.array_equal(_cut(pixels, window), image):
                return f"wrong {'in a batch' if data is content else 'beside it'}"
        return None


def _given(content: bytes) -> tuple[str, str, tuple[int, int]]:
    """(given, kept or refused; coding or reason; height and width)"""
    seen = probe_bytes(content, Limits(max_pixels=MAX_PIXELS))
    if seen.status:
        return "refused", KINDS[seen.status], (0, 0)
    return ("given" if is_safe(seen.coding) else "kept"), str(seen.coding), (seen.height, seen.width)


def _window(size: tuple[int, int], rng: np.random.Generator) -> tuple[int, int, int, int]:
    """At least two pixels wide: see :func:`gpupipe.engines.dali.graph.build_graph`."""
    height, width = int(rng.integers(1, size[0] + 1)), int(rng.integers(min(2, size[1]), size[1] + 1))
    return int(rng.integers(size[0] - height + 1)), int(rng.integers(size[1] - width + 1)), height, width


def _cut(pixels: U8, window: tuple[int, int, int, int]) -> U8:
    top, left, height, width = window
    return pixels[top : top + height, left : left + width]


def _compare(want: U8 | None, got: U8 | None, where: str) -> str | None:
    if want is None or got is None:
        return None if want is got else f"lenient, {where}" if want is None else f"alone, {where}"
    return None if np.array_equal(want, got) else f"wrong, {where}"


def work(kind: str, first: int, last: int, out: int) -> None:
    """Cases ``first`` to ``last``, told to ``out`` line by line. Runs in a fork."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # libraries complain about every one of them
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files = files_of(kind)

    def tell(*words: Any) -> None:
        os.write(out, ("\t".join(map(str, words)) + "\n").encode())

    with quiet():
        judge = Judge(kind, files)
        for number in range(first, last):
            content = case(kind, number, files)
            what, coding, shape = _given(content)
            if what == "refused":
                tell("done", number, what, coding)
                continue
            tell("next", number, what, coding)
            rng = np.random.default_rng((number, 1))
            verdict = judge(content, shape, rng, lambda stage: tell("stage", stage))
            tell("done", number, what, verdict)


# ---- in the process that stays


class Campaign:
    """Findings so far, kept in a file."""

    def __init__(self, path: Path):
        self.path = path
        self.state: dict[str, Any] = {"version": VERSION, "formats": {}}
        if path.exists():
            found = json.loads(path.read_text())
            if found["version"] == VERSION:
                self.state = found

    def of(self, kind: str) -> dict[str, Any]:
        empty = {"tried": 0, "refused": {}, "given": {}, "kept": {}, "cases": {}, "seconds": 0.0}
        made: dict[str, Any] = self.state["formats"].setdefault(kind, empty)
        return made

    def count(self, kind: str, number: int, what: str, verdict: str) -> None:
        found = self.of(kind)
        found["tried"] = number + 1
        found[what][verdict] = found[what].get(verdict, 0) + 1
        if what != "refused" and not verdict.startswith("fine"):
            cases = found["cases"].setdefault(f"{what}: {verdict}", [])
            if len(cases) < KEEP:
                cases.append(number)

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.state))
        os.replace(partial, self.path)


def fork(kind: str, first: int) -> tuple[int, int]:
    """(process, what it tells)"""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive this process
        try:
            work(kind, first, first + CHUNK, writing)
        except BaseException as e:
            os.write(writing, f"failed\t{type(e).__name__}: {e}\n".encode())
        finally:
            os._exit(0)
    os.close(writing)
    return pid, reading


def piece(campaign: Campaign, kind: str, patience: float) -> None:
    """One process, from where the format stands until the process ends."""
    began, first = time.monotonic(), campaign.of(kind)["tried"]
    pid, told = fork(kind, first)
    now: tuple[int, str, str] | None = None
    stage, hung, rest = "start", False, b""
    poller = select.poll()
    poller.register(told, select.POLLIN)
    while True:
        if not poller.poll(1000 * patience):
            hung = True
            os.kill(pid, signal.SIGKILL)
            break
        data = os.read(told, 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            word, *fields = line.decode().split("\t")
            if word == "next":
                now, stage = (int(fields[0]), fields[1], fields[2]), "Pillow"
            elif word == "stage":
                stage = fields[0]
            elif word == "done":
                campaign.count(kind, int(fields[0]), fields[1], fields[2])
                now = None
            else:
                raise SystemExit(f"{kind} from case {first}: {line.decode()}")
    os.close(told)
    status = os.waitpid(pid, 0)[1]
    if hung or os.WIFSIGNALED(status):
        if now is None:
            raise SystemExit(f"{kind} from case {first}: died of {status} between two cases")
        why = "hang" if hung else f"crash, {signal.Signals(os.WTERMSIG(status)).name}"
        campaign.count(kind, now[0], now[1], f"{why}, {stage}")
    campaign.of(kind)["seconds"] += time.monotonic() - began


def tested(found: dict[str, Any]) -> int:
    """Files of a format that count."""
    return sum((found["given"] or found["kept"]).values())


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Counts by what happened, for the result and for a line of text."""

    def of(what: str) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for verdict, n in found[what].items():
            counts[verdict.split(",")[0].split(" ")[0]] += n
        return {"files": sum(counts.values()), **{k: counts[k] for k in ("crash", "hang", "wrong", "lenient", "alone")}}

    return {
        "tried": found["tried"],
        "refused": sum(found["refused"].values()),
        "given": of("given"),
        "kept": of("kept"),
    }


def _decode_all(contents: list[bytes]) -> None:
    for content in contents:
        decode(content)


def speeds(size: tuple[int, int] = (400, 500), batch: int = 16, rounds: int = 9) -> dict[str, dict[str, float]]:
    """Images per second of one thread of DALI's and of one of Pillow's, of a good photograph in each format, and the
    ratio of both, the median of alternating rounds."""
    from nvidia.dali import fn

    from gpupipe.engines.dali.graph import MEDIA, DecoderOptions, encoded, new_pipeline

    pipe = new_pipeline(batch_size=batch, num_threads=1, device_id=None, prefetch=1)
    with pipe:
        pipe.set_outputs(fn.decoders.image(encoded("encoded"), **DecoderOptions().arguments(False)))
    pipe.build()
    photo, made = Image.fromarray(photograph(*size, 0)), {}
    for kind in _mutate.FORMATS:
        content = _mutate.encode(photo, kind, **({"compression": "tiff_lzw"} if kind == "TIFF" else {}))
        media = [np.frombuffer(content, np.uint8)] * batch
        works: dict[str, Callable[[], Any]] = {
            "DALI": partial(pipe.run, **{MEDIA: media}),
            "Pillow": partial(_decode_all, [content] * batch),
        }
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(rounds):
            for name, work in works.items():
                began = time.perf_counter()
                work()
                times[name].append(time.perf_counter() - began)
        made[kind] = {name: batch / statistics.median(found) for name, found in times.items()}
        made[kind]["ratio"] = statistics.median(a / b for a, b in zip(times["DALI"], times["Pillow"], strict=True))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000, help="of JPEG that are given, and of others that are kept")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--formats", nargs="+", choices=_mutate.FORMATS, default=_mutate.FORMATS)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds without a sign of life are a hang")
    default = Path(tempfile.gettempdir(), "gpupipe-fuzz", "state.json")
    parser.add_argument("--state", type=Path, default=default, help="where it goes on from")
    parser.add_argument("--show", nargs=2, metavar=("FORMAT", "N"), help="write one case to a file, and end")
    args = parser.parse_args()
    if args.show:
        kind, number = args.show[0], int(args.show[1])
        path = Path(tempfile.gettempdir(), f"{kind}-{number}")
        path.write_bytes(case(kind, number, files_of(kind)))
        print(path)
        return
    import nvidia.dali  # noqa: F401, before the forks, which then need not

    campaign, budget = Campaign(args.state), _common.Budget(60 * args.minutes)
    for kind in args.formats:
        found = campaign.of(kind)
        files_of("JPEG"), files_of(kind)  # once, and not in every fork
        with Progress(kind, args.files) as progress:
            while (done := tested(found)) < args.files and budget.left() > 0:
                piece(campaign, kind, args.patience)
                campaign.save()
                progress(done)
        print(f"{kind}: {summary(found)}", flush=True)
    _common.save(
        "fuzz_decoders",
        {
            "question": "Which files can end the process, hang it, or differ in silence in DALI's decoders?",
            "machine": _common.machine(),
            "images_per_second": speeds(),
            "summary": {kind: summary(found) for kind, found in campaign.state["formats"].items()},
            **campaign.state,
        },
    )


if __name__ == "__main__":
    main()
