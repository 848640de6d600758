"""Which of the field's rules of thumb hold here? What a CPU can show is measured; the rest waits for a GPU.

Predictions for two cores: torch's loader gains from workers up to the number of cores and nothing beyond; more threads
than cores change gpupipe's speed by less than 10 %; DALI's CPU backend with gpupipe is two to three times as fast as
torch's loader with Pillow and torchvision. Pinning and overlap need a GPU (``gpu_copy.py``); a CPU shows what the copy
within the host costs that pinning adds, and how much of it is fresh memory.

    python benchmarks/claims.py [FOLDER]    # writes results/claims_cpu.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _common import IMAGES, RESULTS, import_torchvision
from PIL import Image

from gpupipe import DataLoader, datasets, transforms as T
from gpupipe.bench.machine import cores, facts
from gpupipe.bench.measure import alternate
from gpupipe.testing.photos import make_photos

WORKERS = (0, 1, 2, 4, 8)
BATCH = 32


class Photos(torch.utils.data.Dataset[Any]):
    """What a script writes: a file through Pillow and torchvision's transforms."""

    def __init__(self, root: Path, repeats: int):
        torchvision = import_torchvision()
        t = torchvision.transforms
        self.files = sorted(path for path in root.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")) * repeats
        steps = [t.RandomResizedCrop(224), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize((0.5,) * 3, (0.2,) * 3)]
        self.transform = t.Compose(steps)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB")), 0


def loaders(root: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Images per second of both loaders by the number of workers, and ratios within each round."""
    steps = [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,) * 3, (0.2,) * 3)]
    photos = Photos(root, 200)
    ours = datasets.ImageList(photos.files, transform=T.Compose(steps))
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "drop_last": True}
    found: dict[str, Any] = {}
    for workers in WORKERS:
        torchs = torch.utils.data.DataLoader(photos, num_workers=workers, **common)
        found[f"torch {workers}"] = torchs.__iter__
        if workers:
            found[f"gpupipe {workers}"] = DataLoader(ours, num_workers=workers, device="cpu", seed=0, **common).__iter__
    result = alternate(
        found, rounds=rounds, seconds=seconds, warm_up=2 * max(WORKERS) + 2, baseline=f"torch {min(cores(), 8)}"
    )
    return result.to_dict()


def copies(rounds: int) -> dict[str, Any]:
    """Seconds of a copy of a float32 batch within the host, to fresh memory and to memory that was used before."""
    batch = torch.rand(64, 3, 224, 224)
    kept = torch.empty_like(batch)
    times: dict[str, list[float]] = {"fresh": [], "reused": []}
    for _ in range(rounds):
        for name, copy in (("fresh", batch.clone), ("reused", lambda: kept.copy_(batch))):
            began = time.perf_counter()
            copy()
            times[name].append(time.perf_counter() - began)
    ratios = [a / b for a, b in zip(times["reused"], times["fresh"], strict=True)]
    nbytes = batch.nbytes
    return {
        "megabytes": nbytes / 1e6,
        "gigabytes_per_second": {name: nbytes / statistics.median(values) / 1e9 for name, values in times.items()},
        "reused_to_fresh": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        root = options.folder if options.folder.is_dir() else make_photos(Path(made), classes=4, per_class=32)
        content: dict[str, Any] = {
            "question": "Which of the field's rules of thumb hold here?",
            "machine": facts(),
            "settings": {"batch_size": BATCH, "rounds": options.rounds, "seconds": options.seconds},
            "loaders": loaders(root, options.rounds, options.seconds),
            "copies": copies(15),
        }
    print(
        json.dumps(content["copies"]), json.dumps({k: v["median"] for k, v in content["loaders"]["candidates"].items()})
    )
    (RESULTS / "claims_cpu.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
