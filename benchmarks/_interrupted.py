"""What ``interrupts.py`` interrupts: epochs without an end, as a script or as a notebook that goes on afterwards.

    python _interrupted.py FOLDER LOADER USE

Prints a line when it begins. A notebook prints what it found after the interrupt, as JSON.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset

from gpupipe import DataLoader, transforms as T
from gpupipe.datasets import ImageFolder
from gpupipe.system import children

PATIENCE = 10.0
PIPELINE = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.PILToTensor()])


class Own(Dataset[Any]):
    """A Dataset as scripts have it, which a live loader runs."""

    def __init__(self, folder: Path):
        self.files = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return PIPELINE(Image.open(self.files[index])), index


def make_loader(folder: Path, kind: Any) -> DataLoader:
    options: Any = {"shuffle": True, "num_workers": 2, "device": "cpu", "seed": 3}
    if kind == "live":
        return DataLoader(Own(folder), 8, **options)
    return DataLoader(ImageFolder(folder, PIPELINE), 8, engine=kind, **options)


def labels_of(batches: Any) -> list[int]:
    return sorted(int(i) for batch in batches for i in batch[1])


def started() -> tuple[set[int], set[str]]:
    """Processes and Python's threads."""
    return set(children()), {thread.name for thread in threading.enumerate()}


def left_after(before: tuple[set[int], set[str]]) -> tuple[set[int], set[str]]:
    """What there is when everything has ended, or patience has."""
    until = time.monotonic() + PATIENCE
    while started() != before and time.monotonic() < until:
        time.sleep(0.01)
    return started()


def in_next(error: BaseException) -> bool:
    """Whether it came while a batch was made. In between, such as in ``iter()``, a loader keeps what it has started."""
    return any(frame.name == "_next_of" for frame in traceback.extract_tb(error.__traceback__)[:-1])


def main(folder: str, kind: str, use: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    tempfile.gettempdir()  # tries folders with a file that an interrupt leaves there, once per process
    wanted = []
    if use == "notebook":
        with make_loader(Path(folder), "torch" if kind == "dali" else kind) as calm:
            wanted = labels_of(calm)
    before = started()
    loader = make_loader(Path(folder), kind)
    if use == "script":
        print("begins", flush=True)
        while True:
            for _ in loader:
                pass
    try:
        print("begins", flush=True)
        while True:
            for _ in loader:
                pass
    except KeyboardInterrupt as e:
        caught, ended_by_it = time.monotonic(), in_next(e)
    left = left_after(before) if ended_by_it else before
    gone = time.monotonic()
    right = labels_of(loader) == wanted
    loader.close()
    if not ended_by_it:
        left = left_after(before)
    more = [sorted(map(str, left[0] - before[0])), sorted(left[1] - before[1])]
    found = {"caught": caught, "gone": gone, "left": more}
    print(json.dumps({**found, "right": right}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
