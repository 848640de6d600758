"""Does a loader hang whose worker processes are forked while other threads of the process are busy?

Threads decode with DALI, multiply with torch, and read with h5py, Arrow and obstore (what is installed), while loaders
of one short epoch start two workers each: gpupipe's reference engine, gpupipe's loader of a script's Dataset, and
torch's own loader through gpupipe, in turns. Some are left in the middle, in a cycle that the garbage collector has to
find. A start counts as slow after ``--slow`` seconds, and as a hang if its workers had to be replaced, or it took
longer than ``--limit``; then the run ends. Last, a deadlock is planted: another thread holds a lock over the fork. The
benchmark measures the seconds until the batch comes, with ``--patience`` in place of a minute.

Prediction: no hangs, and some workers replaced, fewer than one start in a thousand.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _common
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

import gpupipe
from gpupipe import datasets, transforms
from gpupipe.loader.torch_loader import Loader
from gpupipe.reading import worker_activity
from gpupipe.testing.photos import photograph

LOCK = threading.Lock()
COUNT = 8


class Own(Dataset[Any]):
    """A script's own, which gives out encoded images."""

    def __init__(self, paths: list[Path], lock: Path | None = None):
        self.paths, self.lock = paths, lock

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[bytes, int]:
        if self.lock is not None and self.lock.exists():
            self.lock.unlink()
            with LOCK:
                pass
        return self.paths[i].read_bytes(), i


class Shapes(Own):
    """One that torch's own loader collates."""

    def __getitem__(self, i: int) -> Any:
        return torch.from_numpy(np.array(Image.open(self.paths[i])))


# ---- threads that are busy


def torch_busy(_: Path) -> Callable[[], object]:
    a = torch.rand(256, 256)
    return lambda: a @ a


def h5py_busy(root: Path) -> Callable[[], object]:
    import h5py

    file = h5py.File(root / "numbers.h5", "w")
    data = file.create_dataset("numbers", data=np.arange(100_000), chunks=(1000,), compression="gzip")
    return lambda: data[::7]


def dali_busy(root: Path) -> Callable[[], object]:
    loader = gpupipe.DataLoader(_images(root), batch_size=2, engine="dali", device="cpu", num_workers=0)
    return lambda: list(loader)


def arrow_busy(root: Path) -> Callable[[], object]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({str(i): np.arange(20_000) for i in range(4)}), root / "numbers.parquet", row_group_size=4096
    )
    return lambda: pq.read_table(root / "numbers.parquet", use_threads=True)


def obstore_busy(root: Path) -> Callable[[], object]:
    import obstore
    from obstore.store import LocalStore

    store = LocalStore(root)
    obstore.put(store, "bytes", bytes(1 << 16))
    return lambda: obstore.get_ranges(store, "bytes", starts=[0, 1 << 15], lengths=[1 << 12, 1 << 12])


@contextmanager
def busy(root: Path) -> Iterator[list[str]]:
    """Threads at work, by name."""
    ended, names = threading.Event(), []
    kinds = {"torch": torch_busy, "h5py": h5py_busy, "dali": dali_busy, "arrow": arrow_busy, "obstore": obstore_busy}
    for name, make in kinds.items():
        try:
            once = make(root)
        except ImportError:
            continue
        once()
        names.append(name)
        threading.Thread(target=_again, args=(once, ended), daemon=True).start()
    try:
        yield names
    finally:
        ended.set()


def _again(once: Callable[[], object], ended: threading.Event) -> None:
    while not ended.is_set():
        once()
        time.sleep(0.001)


# ---- loaders


def _images(root: Path) -> Any:
    return datasets.ImageFolder(root / "images", _pipeline())


def _pipeline() -> Any:
    return transforms.Compose([transforms.CenterCrop(32), transforms.ToTensor()])


def loaders(root: Path, paths: list[Path]) -> dict[str, Callable[[], Any]]:
    common: dict[str, Any] = {"batch_size": 2, "num_workers": 2}
    own = datasets.from_torch(Own(paths), media="bytes", transform=_pipeline())
    return {
        "reference": lambda: gpupipe.DataLoader(_images(root), engine="torch", device="cpu", **common),
        "own Dataset": lambda: gpupipe.DataLoader(own, engine="torch", device="cpu", **common),
        "torch's own": lambda: Loader(Shapes(paths), **common),
    }


def start(make: Callable[[], Any], leave: bool) -> None:
    loader = make()
    iterator = iter(loader)
    if leave:
        next(iterator)
        cycle: list[Any] = [iterator]
        cycle.append(cycle)
    else:
        assert len(list(iterator)) == COUNT // 2
    if hasattr(loader, "close"):
        loader.close()


def planted(paths: list[Path], root: Path, patience: float) -> float:
    """Measure the seconds until an epoch ends in which a worker waits for a lock that is never released."""
    lock = root / "lock"
    lock.touch()
    own = datasets.from_torch(Own(paths, lock), media="bytes", transform=_pipeline())
    worker_activity.PATIENCE = patience
    with LOCK, gpupipe.DataLoader(own, batch_size=2, num_workers=2, engine="torch", device="cpu") as loader:
        began = time.monotonic()
        assert len(list(loader)) == COUNT // 2
        return time.monotonic() - began


class _Count(logging.Handler):
    """Count how often workers were replaced or delayed batches for long."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=60, help="after which no more start")
    parser.add_argument("--slow", type=float, default=2.0)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--patience", type=float, default=5.0, help="seconds, of the planted deadlocks")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logged = _Count()
    logging.getLogger("gpupipe").addHandler(logged)
    seconds: dict[str, list[float]] = {}
    slow: Counter[str] = Counter()
    until = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "images" / "one").mkdir(parents=True)
        paths = [root / "images" / "one" / f"{i}.jpg" for i in range(COUNT)]
        for i, path in enumerate(paths):
            Image.fromarray(photograph(48, 64, i)).save(path)
        with busy(root) as names:
            kinds = list(loaders(root, paths).items())
            for number in range(args.starts):
                if time.monotonic() > until:
                    break
                kind, make = kinds[number % len(kinds)]
                faulthandler.dump_traceback_later(args.limit, exit=True)
                began = time.monotonic()
                start(make, leave=number // len(kinds) % 4 == 3)
                faulthandler.cancel_dump_traceback_later()
                seconds.setdefault(kind, []).append(time.monotonic() - began)
                slow[kind] += seconds[kind][-1] > args.slow
                if (number + 1) % 100 == 0:
                    print(f"{number + 1} starts, {sum(slow.values())} slow, {len(logged.texts)} replaced", flush=True)
            hangs = list(logged.texts)
            replaced = [planted(paths, root, args.patience) for _ in range(3)]
    result = {
        **_common.heading(__doc__, args),
        "threads": names,
        "starts": {kind: len(times) for kind, times in seconds.items()},
        "median_seconds": {kind: statistics.median(times) for kind, times in seconds.items()},
        "longest_seconds": {kind: max(times) for kind, times in seconds.items()},
        "slow": dict(slow),
        "hangs": hangs,
        "planted_deadlocks_seconds": replaced,
    }
    print(result)
    print(_common.save("worker_starts", result))


if __name__ == "__main__":
    main()
