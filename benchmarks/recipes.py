"""How fast are whole recipes, DALI beside what a user writes with torchvision today?

Prediction (two CPU cores), from CPU milliseconds per image: RandomResizedCrop and flip alone 2.6 times torch's
DataLoader with torchvision, because most of the time left goes to decoding; with light color 2.4 times and with
RandAugment 2.3 times, because colors on whole planes take a third of Pillow's time; with TrivialAugment, bilinear warps
and MixUp 2.2 times, because the warps are Pillow's on both sides; SimCLR 2.6 times, because of hue and blur; DINO 2.2
times, because Pillow's blur, which it uses, is faster than torchvision's.

Measured: each recipe by itself; its candidates take turns in one run, each in a process of its own, in steady state
(see ``_candidates.py``), files in the page cache. SimCLR makes two views of each image and DINO ten; the figures count
images, not views.

    python benchmarks/recipes.py [FOLDER]     # writes results/recipes_<cpu|gpu>.json
"""

from __future__ import annotations

import argparse
from typing import Any

from _candidates import in_turns, ratio
from _common import Table, describe_files, heading, photographs, result_name, save
from _loaders import Job, Work
from _round_arguments import parsed, parser

MEASURES = ("benchmarks/_recipes.py", "gpupipe/engines", "gpupipe/kernels", "gpupipe/reading", "pipelines")
RECIPES = ("train", "train_light", "RandAugment", "train_strong", "SimCLR", "DINO")
BASE = "torch DataLoader + torchvision"
LOADERS = {"gpupipe, DALI engine": "gpupipe-dali", "gpupipe, reference engine": "gpupipe-torch", BASE: "torchvision"}


def measure(args: argparse.Namespace, paths: list[str]) -> dict[str, Any]:
    work = Work(tuple(paths), args.batch_size, args.workers, args.device, epoch=args.epoch)
    result: dict[str, Any] = {
        **heading(__doc__, args),
        "files": describe_files(paths),
        "recipes": {},
    }
    name = result_name("recipes", args)
    table = Table("recipe", *LOADERS, "ratio")
    for recipe in args.recipes:
        jobs = [Job(n, loader, recipe=recipe) for n, loader in LOADERS.items()]  # type: ignore[arg-type]
        for summaries, speed in in_turns(jobs, work, args.rounds, args.seconds):
            ratios = {n: ratio(speed[n], speed[BASE]) for n in LOADERS}
            result["recipes"][recipe] = {"candidates": summaries, "ratios": ratios}
        found = result["recipes"][recipe]
        medians = [found["candidates"][n]["median_images_per_second"] for n in LOADERS]
        table.row(recipe, *medians, next(iter(found["ratios"].values()))["median"])
        print(save(name, result))  # after every recipe, so that an interruption loses nothing
    return result


def main() -> None:
    p = parser(__doc__, rounds=5, seconds=6.0, epoch=20_000)  # the index of more takes half a minute to build
    p.add_argument("--recipes", nargs="+", choices=RECIPES, default=RECIPES)
    args = parsed(p)
    with photographs(args.folder, count=256, ram=args.device == "cuda") as paths:
        measure(args, paths)


if __name__ == "__main__":
    main()
