"""What happens to a run when files are bad: what is noticed, what is lost, and what it costs.

Two tables. Faults: each kind is injected into some of the files, before the index is built and after it; both engines
run an epoch with on_error="replace", each in a process of its own. A lost sample is a good one that was not
delivered, a wrong one differs in a bit from what its engine gave over good files (for DALI: and from the reference's,
which makes the batches that DALI must not see, or refuses without a sample to blame), an unnamed one is neither
delivered nor named; a process that ends before it has told what came has crashed, and one that takes five minutes
hangs. There must be none of any. The time to notice is what the slowest next() took beyond the median one. Speed: 1 %
of the files truncated, against the same files whole, in alternating epochs. Prediction: no loss where the index knows
them, since they are replaced when the plan is made; where they are met while reading, two decodings more of the
batches that they are in, in the first epoch only. Target: at least 0.8 of the clean speed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common
import numpy as np
from PIL import Image

from gpupipe import DataLoader
from gpupipe.datasets import ImageFolder
from gpupipe.pipelines import imagenet

MEASURES = ("gpupipe/codecs", "gpupipe/datasets/index", "gpupipe/planning", "gpupipe/reading")
BOUND = 300.0
"""Seconds, for a fault in one engine; what has not ended then hangs."""
FILES = 96
EVERY = 12
"""One file in this many is damaged."""


def cut(path: Path) -> None:
    """The first tenth of the pixels, and the headers."""
    data = path.read_bytes()
    start = data.rindex(b"\xff\xda")
    path.write_bytes(data[: start + 14 + (len(data) - start) // 10])


def scrambled_tail(path: Path) -> None:
    """Cut, with an end-of-image marker put back: no reader can tell from the end of the file."""
    cut(path)
    path.write_bytes(path.read_bytes() + b"\xff\xd9")


def gif(path: Path) -> None:
    with Image.open(path) as image:
        frame = image.convert("P")
    frame.save(path, "GIF")


def png(path: Path) -> None:
    with Image.open(path) as image:
        pixels = image.convert("RGB")
    pixels.save(path, "PNG")


def smaller(path: Path) -> None:
    with Image.open(path) as image:
        half = image.convert("RGB").resize((image.size[0] // 2, image.size[1] // 3))
    half.save(path, "JPEG")


def bomb(path: Path) -> None:
    Image.new("1", (30_000, 30_000)).save(path, "PNG", compress_level=1)


FAULTS: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "empty": lambda p: p.write_bytes(b""),
    "truncated": cut,
    "truncated, end put back": scrambled_tail,
    "header only": lambda p: p.write_bytes(p.read_bytes()[:64]),
    "random bytes": lambda p: p.write_bytes(np.random.default_rng(0).bytes(20_000)),
    "HTML": lambda p: p.write_text("<!DOCTYPE html><title>404</title>" * 50),
    "PNG called .jpg": png,
    "GIF called .jpg": gif,
    "decompression bomb": bomb,
    "another picture": smaller,
}


def tree(files: list[str], root: Path, count: int) -> list[Path]:
    """``count`` copies in class folders of their own: the label of a sample is its index."""
    made = []
    for i in range(count):
        folder = root / f"class{i:05d}"
        folder.mkdir(parents=True)
        made.append(folder / "photo.jpg")
        shutil.copyfile(files[i % len(files)], made[-1])
    return made


def epoch(loader: DataLoader) -> tuple[dict[int, set[int]], list[float]]:
    """(checksums of the images that came, by label; seconds of every next())."""
    seen: dict[int, set[int]] = {}
    waits: list[float] = []
    iterator = iter(loader)
    while True:
        began = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            return seen, waits
        waits.append(time.perf_counter() - began)
        for image, label in zip(batch[0].numpy(), batch[1].tolist(), strict=True):
            seen.setdefault(label, set()).add(zlib.crc32(np.ascontiguousarray(image).tobytes()))


def load(dataset: ImageFolder, engine: Any) -> DataLoader:
    return DataLoader(
        dataset, batch_size=16, shuffle=True, num_workers=2, engine=engine, seed=0, device="cpu", on_error="replace"
    )


def whole(files: list[str], engine: Any, folder: Path) -> dict[str, Any]:
    """The checksums of an epoch over good files."""
    tree(files, folder, FILES)
    with load(ImageFolder(folder, imagenet.train(64)), engine) as loader:
        return {"wanted": epoch(loader)[0]}


def inject(
    files: list[str], engine: Any, folder: Path, fault: str, when: str, wanted: dict[int, set[int]]
) -> dict[str, Any]:
    paths = tree(files, folder, FILES)
    spoilt = set(range(5, FILES, EVERY))
    dataset = ImageFolder(folder, imagenet.train(64)) if when == "after" else None
    for i in spoilt:
        FAULTS[fault](paths[i])
    if dataset is None:
        dataset = ImageFolder(folder, imagenet.train(64))
    with load(dataset, engine) as loader:
        images, waits = epoch(loader)
        seen = set(images)
        bad = {s.index: s.kind for s in loader.report().samples}
        repaired = loader.stats()["repaired"]
    kinds = sorted({bad[i] for i in spoilt if i in bad})
    return {
        "count": len(spoilt),
        "named_bad": len(spoilt & set(bad)),
        "kinds": kinds,
        "delivered": len(spoilt & seen),
        "good_samples_lost": FILES - len(spoilt) - len(seen - spoilt) + len(set(bad) - spoilt),
        "good_samples_wrong": sum(wanted[i].isdisjoint(images[i]) for i in seen - spoilt),
        "unaccounted": len(spoilt - seen - set(bad)),
        "batches_read_again": repaired,
        "seconds_to_notice": max(waits) - statistics.median(waits),
    }


def alone(work: Callable[..., dict[str, Any]], files: list[str], engine: str, *arguments: Any) -> dict[str, Any]:
    """Run ``work`` in a new process with its own folder, where nothing has run except imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gpupipe.engines.dali.engine", "gpupipe.engines.torch", "torch._dynamo"])
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="gpupipe-faults-") as copies:
        process = context.Process(target=_send, args=(theirs, work, files, engine, Path(copies), *arguments))
        process.start()
        theirs.close()
        try:
            if not ours.poll(BOUND):
                return {"hung": 1}
            return {**ours.recv(), "hung": 0, "crashed": 0}
        except EOFError:
            process.join()
            return {"crashed": 1, "exit_code": process.exitcode}
        finally:
            process.kill()
            process.join()


def _send(to: Any, work: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    multiprocessing.set_start_method("fork", force=True)  # of workers; that of a script, and not this process's own
    to.send(work(*arguments))


def speed(files: list[str], engine: str, when: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Ratio of an epoch with 1 % truncated files to one without, alternating. Every epoch finds them again."""
    count = 800
    loaders: dict[str, list[float]] = {"clean": [], "bad": []}
    datasets = {}
    for name in loaders:
        paths = tree(files, folder / name, count)
        if name == "bad" and when == "before":
            for path in paths[7::100]:
                cut(path)
        datasets[name] = ImageFolder(folder / name, imagenet.train(224))
        if name == "bad" and when == "after":
            for path in paths[7::100]:
                cut(path)
    kwargs: dict[str, Any] = {"batch_size": 64, "shuffle": True, "num_workers": 2, "engine": engine, "device": "cpu"}
    for r in range(rounds + 1):
        for name, dataset in datasets.items():
            with DataLoader(dataset, **kwargs, seed=r, on_error="replace") as loader:
                iterator = iter(loader)
                next(iterator)  # starts processes and builds graphs
                began = time.perf_counter()
                batches = sum(1 for _ in iterator)
                seconds = time.perf_counter() - began
                if r:
                    loaders[name].append(batches * 64 / seconds)
    ratios = [b / c for b, c in zip(loaders["bad"], loaders["clean"], strict=True)]
    return {
        "engine": engine,
        "known": "to the index" if when == "before" else "only when read",
        "images_per_second": {k: statistics.median(v) for k, v in loaders.items()},
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
    }


SUMMED = {
    "files": "count",
    "lost": "good_samples_lost",
    "wrong": "good_samples_wrong",
    "unnamed": "unaccounted",
    "crashed": "crashed",
    "hung": "hung",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="JPEG files; by default photographs beside the checkout")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "question": "What happens to a run when files are bad, and what does it cost?",
        "machine": _common.machine(),
        "faults": [],
        "speed_with_1_percent_bad": [],
    }
    folder = args.folder or (_common.IMAGES if _common.IMAGES.is_dir() else None)
    with _common.photographs(folder, count=64) as files, tempfile.TemporaryDirectory(prefix="gpupipe-cache-") as cache:
        os.environ["GPUPIPE_CACHE"] = cache
        small = [f for f in files if Path(f).stat().st_size < 300_000][:64] or files
        result["summary"] = summary = dict.fromkeys(SUMMED, 0)
        theirs, ours = (alone(whole, small, engine)["wanted"] for engine in ("torch", "dali"))
        wanted = {"torch": theirs, "dali": {label: theirs[label] | ours[label] for label in theirs}}
        for fault in FAULTS:
            for when in ("before", "after"):
                for engine in ("torch", "dali"):
                    if (fault, when) == ("missing", "before"):
                        continue  # a folder without a picture is no class
                    named = {"fault": fault, "injected": when + " the index was built", "engine": engine}
                    row = named | alone(inject, small, engine, fault, when, wanted[engine])
                    result["faults"].append(row)
                    for name, column in SUMMED.items():
                        summary[name] += row.get(column, 0)
                    if "count" not in row:
                        print(f"{fault:26s} {when:6s} {engine:5s} {row}", flush=True)
                    else:
                        print(
                            f"{fault:26s} {when:6s} {engine:5s} {row['count']:3d} injected, {row['named_bad']:3d} "
                            f"named {','.join(row['kinds']) or '-':22s} {row['delivered']:3d} delivered, "
                            f"{row['good_samples_lost']} good lost, {row['good_samples_wrong']} wrong, noticed in "
                            f"{row['seconds_to_notice']:.2f} s",
                            flush=True,
                        )
        print(summary, flush=True)
        for when in ("before", "after"):
            for engine in ("torch", "dali"):
                with tempfile.TemporaryDirectory(prefix="gpupipe-faults-") as copies:
                    row = speed(files, engine, when, Path(copies), args.rounds)
                result["speed_with_1_percent_bad"].append(row)
                print(f"1 % bad, known {row['known']}, {engine}: {row['ratio']['median']:.3f} of clean", flush=True)
    _common.save("faults", result)


if __name__ == "__main__":
    main()
