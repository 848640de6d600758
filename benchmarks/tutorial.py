"""What does each change of docs/tutorial.md gain?

Prediction: the import 2.5 times, the cache of decoded images twice as much again, smaller images between the two.

Runs the code of the page, block by block, on generated photographs. Each block makes a loader, and all loaders then
take turns in one process. A ratio divides the rates of one round.

    python benchmarks/tutorial.py [FOLDER] [--rounds N] [--seconds S]    # writes results/tutorial_cpu.json
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from _common import ROOT, describe_files, heading, import_torchvision, photographs, save
from typer.testing import CliRunner

from gpupipe.bench.measure import alternate
from gpupipe.cli import app

PAGE = ROOT / "docs" / "tutorial.md"


def loaders(page: str) -> dict[str, Any]:
    """Run the blocks of a page. Return the loader of each numbered section that makes one, by its title."""
    names: dict[str, Any] = {}
    made = {}
    for section in re.split(r"(?m)^## ", page)[1:]:
        title = section.partition("\n")[0]
        for kind, code in re.findall(r"```(python|sh)\n(.*?)```", section, re.DOTALL):
            if kind == "python":
                exec(compile(code, f"docs/tutorial.md, {title}", "exec"), names)
                made[title] = names["loader"]
            else:
                for line in code.splitlines():
                    done = CliRunner().invoke(app, line.split()[1:])
                    if done.exit_code:
                        raise SystemExit(f"{line}: {done.output}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="JPEG files; generated ones by default")
    parser.add_argument("--photographs", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    import_torchvision()
    work = Path(tempfile.mkdtemp(prefix="gpupipe-tutorial-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    os.environ["GPUPIPE_CACHE"] = str(work / "cache")
    try:
        with photographs(args.folder, count=args.photographs, ram=True) as paths:
            for i, path in enumerate(paths):
                to = work / "photos" / "train" / f"class{i % 4}" / f"{i:05d}.jpg"
                to.parent.mkdir(parents=True, exist_ok=True)
                to.symlink_to(path)
            os.chdir(work)
            made = loaders(PAGE.read_text())
            for loader in made.values():  # fills the caches
                for _ in loader:
                    pass
            found = alternate(
                {title: loader.__iter__ for title, loader in made.items()},
                rounds=args.rounds,
                seconds=args.seconds,
                progress=lambda name, round_, rate: print(f"{round_} {name}: {rate:,.0f} images/s", flush=True),
            )
            files = describe_files(paths)
    finally:
        os.chdir(ROOT)
        shutil.rmtree(work, ignore_errors=True)  # a folder of our own, made above
    steps = {
        title: {
            "images_per_second": rates,
            "median_images_per_second": statistics.median(rates),
            "ratio": dict(zip(("median", "min", "max"), found.ratio(title), strict=True)),
        }
        for title, rates in found.rates.items()
    }
    print(save("tutorial_cpu", {**heading(__doc__, args), "files": files, "steps": steps}))


if __name__ == "__main__":
    main()
