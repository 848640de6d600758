"""What processes that may die have delivered, and what became of every sample.

Each process of a run writes a line per batch. A run that continues from a state takes back what came after it, as it
does with the model, so a sample counts if it came before the state from which the next attempt began.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from gpupipe import DataLoader, World, transforms as T
from gpupipe.datasets import ImageFolder
from gpupipe.testing.photos import make_photos

__all__ = ["BATCH", "EPOCHS", "N", "Notes", "judge", "loader_of", "photos"]

N = 97
"""Samples, each with its index as its label."""
BATCH = 8
EPOCHS = 2
AUGMENT = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()])


def photos(root: Path) -> Path:
    return make_photos(root, classes=N, per_class=1, sizes=((40, 48), (48, 40)))


def loader_of(root: Path, world: World | None = None, **arguments: Any) -> DataLoader:
    """A loader whose batches are the same on every number of processes."""
    world = world or World.here()
    given: dict[str, Any] = {"global_batch_size": BATCH, "shard": world.shard, "device": world.device, "num_workers": 1}
    return DataLoader(ImageFolder(root, AUGMENT), shuffle=True, seed=5, **given | arguments)


def _samples(images: Any, labels: Any, valid: int) -> list[list[int]]:
    """(index, checksum of the pixels) of every sample that is no padding."""
    pixels = images.cpu().contiguous().numpy()
    return [[int(i), zlib.crc32(pixels[row].tobytes())] for row, i in enumerate(labels[:valid])]


class Notes:
    """Lines of one process. Make it before the state is loaded, and call :meth:`begin` after it."""

    def __init__(self, folder: Path, world: World):
        self._world = world
        self._file = folder / f"{time.time_ns()}-{world.rank}-{os.getpid()}.jsonl"

    def begin(self, loader: DataLoader) -> None:
        state = loader.state_dict()
        self._write(began=True, epoch=state["epoch"], delivered=state["delivered"])

    def batch(self, loader: DataLoader, images: Any, labels: Any) -> int:
        """Note a batch. Returns the number of samples of all ranks that the epoch has delivered."""
        state = loader.state_dict()
        self._write(epoch=state["epoch"], delivered=state["delivered"], samples=_samples(images, labels, loader.valid))
        return int(state["delivered"])

    def _write(self, **what: Any) -> None:
        line = {"time": time.time(), "rank": self._world.rank, "ranks": self._world.world_size, **what}
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _whole(root: Path) -> dict[tuple[int, int], list[list[int]]]:
    """The batches of a run of one process that nothing disturbs, by epoch and samples delivered after them."""
    found = {}
    with loader_of(root, World(source="test"), num_workers=0) as loader:
        for epoch in range(EPOCHS):
            for images, labels in loader:
                found[epoch, loader.state_dict()["delivered"]] = _samples(images, labels, loader.valid)
    return found


def judge(folder: Path, root: Path) -> dict[str, Any]:
    """Return what became of every sample, from the notes of all processes in ``folder``.

    ``ranks`` are the numbers of processes of the attempts.
    """
    lines = [json.loads(text) for file in sorted(folder.glob("*.jsonl")) for text in file.read_text().splitlines()]
    began = sorted((it for it in lines if it.get("began") and it["rank"] == 0), key=lambda it: it["time"])
    batches = [it for it in lines if "samples" in it]
    kept: dict[tuple[int, int], dict[int, list[list[int]]]] = {}
    for k, attempt in enumerate(began):
        until = began[k + 1] if k + 1 < len(began) else None
        # A process that survives its group may write once more after the others have begun again.
        mine = [
            it
            for it in batches
            if it["time"] >= attempt["time"] - 1e-3
            and it["ranks"] == attempt["ranks"]
            and (until is None or it["time"] < until["time"])
        ]
        end = (until["epoch"], until["delivered"]) if until is not None else (EPOCHS, 0)
        for it in mine:
            place = (it["epoch"], it["delivered"])
            if place <= end:
                kept.setdefault(place, {})[it["rank"]] = it["samples"]
    whole = _whole(root)
    joined = {place: [sample for _, part in sorted(parts.items()) for sample in part] for place, parts in kept.items()}
    lost = twice = 0
    for epoch in range(EPOCHS):
        counts = Counter(i for place, samples in joined.items() if place[0] == epoch for i, _ in samples)
        lost += sum(1 for i in range(N) if counts[i] == 0)
        twice += sum(count - 1 for count in counts.values() if count > 1)
    return {
        "ranks": [it["ranks"] for it in began],
        "lost": lost,
        "twice": twice,
        "batches": len(whole),
        "equal_batches": sum(joined.get(place) == samples for place, samples in whole.items()),
    }
