"""Does ``loader.stats()`` name the bottleneck? Ten are planted on the CPU, each in a process of its own.

Prediction: all ten are named, and measuring takes less than 1 % of the processor time.

    python benchmarks/bottlenecks.py                    # writes results/bottlenecks.json
    python benchmarks/bottlenecks.py --plant slow-disk  # one of them
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import IMAGES, RESULTS
from PIL import Image

from gpupipe import DataLoader, datasets, stages, transforms as T
from gpupipe.bench.machine import cores, facts
from gpupipe.testing.photos import make_photos, photograph

STEPS: Any = T.Compose(
    [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,) * 3, (0.2,) * 3)]
)
SLOW_OPEN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void slow(const char *path) { if (path && strstr(path, "/slow/")) usleep(30000); }
#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list a; va_start(a, flags); int mode = va_arg(a, int); va_end(a); slow(path); \
    return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); }
OPEN(open) OPEN(open64)
#define FOPEN(name) \
  FILE *name(const char *path, const char *mode) { slow(path); \
    return ((FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, #name))(path, mode); }
FOPEN(fopen) FOPEN(fopen64)
"""
"""Opening a file in a folder named "slow" takes 30 ms in every thread and process, as on a disk that has to seek."""


class Own(torch.utils.data.Dataset[Any]):
    """A Dataset of a script. Its code may compute, and return something large."""

    def __init__(self, root: Path, seconds: float = 0.0):
        self.files, self.seconds = sorted(root.rglob("*.jpg")), seconds
        self.transform = STEPS

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            sum(range(1000))
        return self.transform(Image.open(self.files[index]).convert("RGB")), index


class Objects(torch.utils.data.Dataset[Any]):
    """A Dataset whose samples are large nests of Python objects."""

    def __init__(self) -> None:
        self.sample = [(f"{number}", number) for number in range(3000)]

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> Any:
        return self.sample


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def photos(root: Path, count: int = 96) -> Path:
    if not IMAGES.is_dir():
        return make_photos(root / "photos", classes=4, per_class=count // 4)
    for number, file in enumerate(sorted(IMAGES.rglob("*.JPEG"))[:count]):
        (root / "photos" / str(number % 4)).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / "photos" / str(number % 4) / f"{number}.jpg")
    return root / "photos"


def slow_disk(root: Path) -> DataLoader:
    (root / "slow").mkdir()
    return DataLoader(
        datasets.ImageFolder(photos(root / "slow"), STEPS), 16, shuffle=True, num_workers=cores(), device="cpu"
    )


def one_worker(root: Path) -> DataLoader:
    return DataLoader(Own(photos(root)), 16, shuffle=True, num_workers=1, engine="torch", device="cpu")


def large_pngs(root: Path) -> DataLoader:
    (root / "pngs" / "a").mkdir(parents=True)
    for number in range(6):
        photo = Image.fromarray(photograph(450, 600, number)).resize((2400, 1800))
        photo.save(root / "pngs" / "a" / f"{number}.png", compress_level=6)
    return DataLoader(datasets.ImageFolder(root / "pngs", STEPS), 2, shuffle=True, num_workers=cores(), device="cpu")


def slow_user_code(root: Path) -> DataLoader:
    return DataLoader(Own(photos(root), 0.02), 16, shuffle=True, num_workers=cores(), device="cpu")


def tiny_batches(root: Path) -> DataLoader:
    images = datasets.Arrays(np.zeros((20_000, 16, 16, 3), np.uint8), transform=T.Compose([T.ToTensor()]))
    return DataLoader(images, 1, shuffle=True, num_workers=cores(), device="cpu", engine="dali")


@contextmanager
def slow_store(root: Path) -> Iterator[DataLoader]:
    from remote import Condition, served

    files = sorted(photos(root).rglob("*.jpg"))
    for shard in range(2):
        with tarfile.open(root / f"00{shard}.tar", "w") as tar:
            for number, file in enumerate(files[shard::2]):
                tar.add(file, f"{number}.jpg")
                (root / "label").write_text(str(number % 4))
                tar.add(root / "label", f"{number}.cls")
    with served(root, Condition(0.3)) as server:
        dataset = datasets.WebDataset(server.url, STEPS, remote=datasets.Remote(cache_bytes=1 << 20))
        yield DataLoader(dataset, 4, shuffle=True, num_workers=cores(), device="cpu")


def slow_hand_over(root: Path) -> DataLoader:
    return DataLoader(Objects(), 32, num_workers=cores(), collate_fn=as_list, device="cpu")


def photographs(root: Path) -> DataLoader:
    return DataLoader(datasets.ImageFolder(photos(root), STEPS), 16, shuffle=True, num_workers=cores(), device="cpu")


def little_memory(root: Path) -> DataLoader:
    """Pixels in a file that is mapped into memory; something takes the pages away as a memory limit would."""
    shape = (600, 224, 224, 3)
    np.save(root / "images.npy", np.random.default_rng(0).integers(0, 256, shape, np.uint8))
    os.sync()
    images = np.load(root / "images.npy", mmap_mode="r")
    libc, file = ctypes.CDLL(None), os.open(root / "images.npy", os.O_RDONLY)
    address = images.ctypes.data & ~(mmap.PAGESIZE - 1)

    libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(images.nbytes), mmap.MADV_RANDOM)

    def take() -> None:
        while True:
            libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(images.nbytes), 21)  # MADV_PAGEOUT
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            time.sleep(0.01)

    threading.Thread(target=take, daemon=True).start()
    return DataLoader(datasets.Arrays(images, transform=STEPS), 32, shuffle=True, num_workers=cores(), device="cpu")


def compute() -> None:
    """Hold Python's lock, as the code of a training loop may in another thread."""
    while True:
        sum(range(1000))


PLANTS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "slow-disk": (slow_disk, "storage", "disk"),
    "one-worker": (one_worker, "", "num_workers="),
    "large-pngs": (large_pngs, "decoding", "JPEG"),
    "slow-user-code": (slow_user_code, "user code", "__getitem__"),
    "tiny-batches": (tiny_batches, "hand-over", "batch_size"),
    "slow-store": (slow_store, "storage", "local disk"),
    "slow-hand-over": (slow_hand_over, "hand-over", "objects"),
    "slow-model": (photographs, "model", "model"),
    "too-little-memory": (little_memory, "memory", "memory"),
    "pythons-lock": (photographs, "lock", "lock"),
}
"""How each bottleneck is planted, the stage that must be named ("": any), and a word of the next step."""


def plant(name: str, seconds: float) -> dict[str, Any]:
    """Run a loop of some seconds with a planted bottleneck. Returns what the loader's statistics say."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPUPIPE_CACHE"] = f"{folder}/cache"
        made = PLANTS[name][0](Path(folder))
        with made if not isinstance(made, DataLoader) else _itself(made) as loader:
            until, warm = time.perf_counter() + seconds, False
            while time.perf_counter() < until or loader.stats()["batches"] <= 8:
                for _ in loader:
                    if name == "pythons-lock" and not warm:
                        threading.Thread(target=compute, daemon=True).start()
                    warm = True
                    if name == "slow-model":
                        time.sleep(0.3)
                    if time.perf_counter() > until and loader.stats()["batches"] > 8:
                        break
            found = loader.stats()
            loader.close()
    return found


@contextmanager
def _itself(loader: DataLoader) -> Iterator[DataLoader]:
    yield loader


def run(name: str, seconds: float) -> dict[str, Any]:
    """Plant a bottleneck in a process of its own."""
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        if name == "slow-disk":
            source, library = Path(folder, "slow.c"), Path(folder, "slow.so")
            source.write_text(SLOW_OPEN)
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
            environment["LD_PRELOAD"] = str(library)
        command = [sys.executable, __file__, "--child", name, "--seconds", str(seconds)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def is_named(name: str, stats: dict[str, Any]) -> bool:
    _, stage, word = PLANTS[name]
    found = stats["bottleneck"]
    return found is not None and (not stage or found["stage"] == stage) and word in found["next_step"]


def cost(seconds: float) -> dict[str, float]:
    """Processor time of measuring, as a share of a loader's: what one stage costs, times the stages of an image."""
    entered = 0
    enter = stages.Stage.__enter__

    def counted(self: stages.Stage) -> None:
        nonlocal entered
        entered += 1
        enter(self)

    rounds = 20_000
    began = time.process_time()
    for _ in range(rounds):
        with stages.TRANSFORMS:
            pass
    each = (time.process_time() - began) / rounds
    with tempfile.TemporaryDirectory() as folder:
        loader = photographs(Path(folder))
        for _ in loader:
            pass
        stages.Stage.__enter__ = counted  # type: ignore[method-assign]
        began, until = time.process_time(), time.perf_counter() + seconds
        while time.perf_counter() < until:
            for _ in loader:
                pass
        total = time.process_time() - began
        stages.Stage.__enter__ = enter  # type: ignore[method-assign]
        loader.close()
    return {"microseconds_per_stage": 1e6 * each, "stages": entered, "share": entered * each / total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plant", choices=PLANTS, action="append")
    parser.add_argument("--child", choices=PLANTS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(plant(options.child, options.seconds)))
        return
    found = {}
    for name in options.plant or PLANTS:
        stats = run(name, options.seconds)
        named = is_named(name, stats)
        found[name] = {"named": named, **{key: stats[key] for key in ("stall", "stages", "bottleneck", "batches")}}
        print(name, "named" if named else "NOT NAMED", json.dumps(found[name]))
    if not options.plant:
        costs = cost(options.seconds)
        print("cost", costs)
        content = {
            "question": "Does loader.stats() name the bottleneck?",
            "machine": facts(),
            "seconds": options.seconds,
            "named": sum(one["named"] for one in found.values()),
            "of": len(found),
            "cost": costs,
            "planted": found,
        }
        (RESULTS / "bottlenecks.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
