"""How much CPU time does a script need before its first batch?

Prediction: import, loader and first batch together take at most 0.5 s, most of it for DALI's own import.

Each measurement is a fresh process that has already imported torch and torchvision. It imports ``DataLoader``, makes a
loader over 640 JPEG files of torchvision's ``ImageFolder`` whose index exists, and gets the first batch. The result has
the CPU seconds of these three steps, with those of child processes, and beside them those of ``import nvidia.dali``
alone. Another checkout takes turns with this one; the ratio of a round is this checkout's seconds by the other's.

    python benchmarks/startup.py [FOLDER] [--rounds N] [--other PATH]     # writes results/startup_cpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import IMAGES, ROOT, Table, heading, photographs, save

FILES = 640
STEPS = ("import", "loader", "first batch")

PROBE = """
import json, resource, sys
import torch
from torchvision_ops import define_missing_operators
define_missing_operators()
import torchvision.transforms as T
from torchvision.datasets import ImageFolder
for name in [name for name in sys.modules if name.partition(".")[0] == "gpupipe"]:
    del sys.modules[name]
transform = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize([0.5], [0.5])])
images = ImageFolder(sys.argv[1], transform)

def cpu():
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)

times = [cpu()]
from gpupipe import DataLoader
times.append(cpu())
loader = DataLoader(images, batch_size=64, shuffle=True, num_workers=2, device="cpu", engine="dali", seed=0)
times.append(cpu())
next(iter(loader))
times.append(cpu())
print(json.dumps([b - a for a, b in zip(times, times[1:])]))
"""
DALI = """
import resource, torch
def cpu():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime
began = cpu()
import nvidia.dali
print(cpu() - began)
"""


def _fresh(code: str, checkout: Path, caches: str, *arguments: str) -> Any:
    """Return the output of a fresh process, with byte code and indexes in ``caches``."""
    own = {
        "PYTHONPATH": os.pathsep.join([str(checkout), str(ROOT / "tests")]),  # for torchvision_ops
        "PYTHONPYCACHEPREFIX": f"{caches}/bytecode",
        "GPUPIPE_CACHE": f"{caches}/indexes",
    }
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | own
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    done = subprocess.run(command, env=environment, cwd=caches, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def _measured(checkout: Path, folder: str, caches: str) -> dict[str, float]:
    steps = dict(zip(STEPS, _fresh(PROBE, checkout, caches, folder), strict=True))
    return {**steps, "together": sum(steps.values())}


def _summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="photographs; by default the test data, or generated ones")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--other", type=Path, metavar="PATH", help="a second checkout, which takes turns with this one")
    args = parser.parse_args()
    checkouts = {"this": ROOT, **({"other": args.other.resolve()} if args.other else {})}
    found: dict[str, dict[str, list[float]]] = {name: {} for name in checkouts}
    dali: list[float] = []
    given = args.folder or (IMAGES if IMAGES.is_dir() else None)
    with tempfile.TemporaryDirectory(prefix="gpupipe-bench-") as made, photographs(given, count=64) as paths:
        for i in range(FILES):
            target = Path(made, "images", str(i % 10), f"{i:04d}.jpg")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(paths[i % len(paths)], target)
        caches = {name: tempfile.mkdtemp(dir=made) for name in checkouts}
        for number in range(args.rounds + 1):
            names = list(checkouts)
            for name in names if number % 2 else names[::-1]:
                for step, seconds in _measured(checkouts[name], str(Path(made, "images")), caches[name]).items():
                    if number:  # the first round compiles byte code and builds the index
                        found[name].setdefault(step, []).append(seconds)
            alone = _fresh(DALI, ROOT, caches["this"])
            dali += [alone] if number else []
    settings = {"rounds": args.rounds, "files": FILES, "compared": args.other is not None}
    result: dict[str, Any] = {**heading(__doc__, settings), "import nvidia.dali": _summary(dali), "steps": {}}
    table = Table("step, CPU s", "this", "other", "ratio", "least", "most")
    for step in (*STEPS, "together"):
        row = {name: _summary(found[name][step]) for name in checkouts}
        if args.other:
            row["ratio"] = _summary([a / b for a, b in zip(found["this"][step], found["other"][step], strict=True)])
        result["steps"][step] = row
        ratio = row.get("ratio", dict.fromkeys(("median", "min", "max")))
        table.row(step, row["this"]["median"], row["other"]["median"] if args.other else None, *ratio.values())
    table.row("import nvidia.dali", result["import nvidia.dali"]["median"])
    print(save("startup_cpu", result))


if __name__ == "__main__":
    main()
