"""Does a long run stay exact and flat? Many epochs with bad files, breaks, resumes and two loaders at once.

The photographs and, beside the checkout, the odd files, with 5 % of all truncated on top. The DALI engine and the
reference run in lockstep over the same epochs with on_error="replace". At every batch: both have the samples that
the plan says, computed apart from the loaders, and the pictures of the two agree; every tenth batch of the
reference is equal in every bit to decoding the plan anew. At random an epoch is left in the middle, or a new loader
goes on from the saved state of the old one. Memory and file descriptors are read after every epoch. Prediction: no
difference at all, and flat after the first tens of epochs, when DALI's pools have met the largest pictures.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import zlib
from pathlib import Path
from typing import Any

import _common
import numpy as np
import torch

from gpupipe import DataLoader, Shard, transforms as T
from gpupipe.datasets import ImageFolder
from gpupipe.engines.forms.reference import reference
from gpupipe.planning.bad_samples import BadSamples
from gpupipe.planning.batches import Slices
from gpupipe.planning.epoch import EpochPlan
from gpupipe.planning.order import Shuffle

BATCH, SEED = 16, 7
PIPELINE = T.Compose([T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.PILToTensor()])


def collect(files: list[str], root: Path) -> Path:
    """The photographs in four classes, the odd files in a fifth; every twentieth file of all cut in the middle."""
    for i, file in enumerate(files):
        folder = root / f"class{i % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / f"{i:04d}.jpg")
    odd = _common.IMAGES.parent / "odd"
    if odd.is_dir():
        shutil.copytree(odd, root / "odd", copy_function=shutil.copyfile)
    every = sorted(p for p in root.rglob("*") if p.is_file())
    for path in every[3::20]:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
    return root


class Pair:
    """The two loaders, as one run."""

    def __init__(self, dataset: ImageFolder):
        self.dataset = dataset
        self.loaders = [self._make("dali"), self._make("torch")]

    def _make(self, engine: Any) -> DataLoader:
        return DataLoader(
            self.dataset,
            batch_size=BATCH,
            shuffle=True,
            num_workers=1,
            engine=engine,
            device="cpu",
            seed=SEED,
            on_error="replace",
        )

    def resumed(self) -> Pair:
        """A run that goes on where this one stands."""
        states = [loader.state_dict() for loader in self.loaders]
        self.close()
        other = Pair(self.dataset)
        for loader, state in zip(other.loaders, states, strict=True):
            loader.load_state_dict(state)
        return other

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


def expected(dataset: ImageFolder, known: BadSamples, epoch: int) -> EpochPlan:
    """The plans of an epoch when all bad files are known beforehand."""
    n = len(dataset)
    return EpochPlan(dataset, PIPELINE, Shuffle(n, SEED, epoch), Slices(n, BATCH, Shard(), False), SEED, epoch, known)


def check(
    plans: EpochPlan, step: int, batches: list[Any], dataset: ImageFolder, exact: bool
) -> tuple[list[str], float]:
    """(what is not the plan's, mean difference of the two engines in grey levels)."""
    plan, wrong = plans[step], []
    labels = np.asarray(dataset.labels)[plan.indices]
    for name, batch in zip(("dali", "torch"), batches, strict=True):
        if not np.array_equal(batch[1].numpy(), labels):
            wrong.append(f"epoch {plan.epoch}, step {step}: the {name} engine has other samples")
    if exact:
        want = reference(dataset, plan, PIPELINE)
        if zlib.crc32(want.numpy().tobytes()) != zlib.crc32(batches[1][0].contiguous().numpy().tobytes()):
            wrong.append(f"epoch {plan.epoch}, step {step}: the reference's pictures are others")
    difference = (batches[0][0].float() - batches[1][0].float()).abs().mean().item()
    if difference > 0.5:
        wrong.append(f"epoch {plan.epoch}, step {step}: the engines differ by {difference:.2f} grey levels")
    return wrong, difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="JPEG files; by default photographs beside the checkout")
    parser.add_argument("--epochs", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    events = random.Random(0)
    folder = args.folder or (_common.IMAGES if _common.IMAGES.is_dir() else None)
    memory, descriptors, differences, wrong = [], [], [], []
    counts = {"batches": 0, "breaks": 0, "resumes": 0, "compared_in_every_bit": 0}
    with (
        _common.photographs(folder, count=64) as files,
        tempfile.TemporaryDirectory(prefix="gpupipe-soak-") as work,
    ):
        os.environ["GPUPIPE_CACHE"] = str(Path(work, "cache"))
        dataset = ImageFolder(collect(files, Path(work, "photos")), PIPELINE)
        pair = Pair(dataset)
        for _ in zip(*pair.loaders, strict=True):  # meets every bad file once
            pass
        bad = [sorted(loader.report().samples) for loader in pair.loaders]
        if [b.index for b in bad[0]] != [b.index for b in bad[1]]:
            raise SystemExit(f"the engines refuse different files: {bad}")
        known = BadSamples("replace", None, dataset)
        known.learn(bad[0])
        for epoch in range(1, args.epochs + 1):
            plans, step = expected(dataset, known, epoch), 0
            count = len(pair.loaders[0])
            leave = events.randrange(count) if events.random() < 0.3 else None
            resume = events.randrange(1, count) if leave is None and events.random() < 0.3 else None
            iterators = [iter(loader) for loader in pair.loaders]
            while True:
                batches = [next(i, None) for i in iterators]
                if batches[0] is None or batches[1] is None:
                    if batches != [None, None] or step != count:
                        raise SystemExit(f"epoch {epoch} ended after {step} of {count} batches")
                    break
                exact = counts["batches"] % 10 == 0
                unlike, difference = check(plans, step, batches, dataset, exact)
                wrong += unlike
                differences.append(difference)
                counts["batches"] += 1
                counts["compared_in_every_bit"] += exact
                step += 1
                if step - 1 == leave:
                    counts["breaks"] += 1
                    break
                if step == resume:
                    pair = pair.resumed()
                    iterators = [iter(loader) for loader in pair.loaders]
                    counts["resumes"] += 1
            memory.append(_common.memory_mb(os.getpid())["pss"])
            descriptors.append(len(os.listdir("/proc/self/fd")))
            if epoch % 10 == 0:
                print(
                    f"epoch {epoch}: {counts['batches']} batches, {memory[-1]:.0f} MB, {descriptors[-1]} descriptors",
                    flush=True,
                )
        pair.close()
    quarter = max(len(memory) // 4, 1)
    growth = statistics.median(memory[-quarter:]) / statistics.median(memory[quarter : 2 * quarter])
    _common.save(
        "soak",
        {
            "question": "Does a long run stay exact and flat?",
            "machine": _common.machine(),
            "epochs": args.epochs,
            "samples": len(dataset),
            "bad": [{"path": Path(b.path).name, "kind": b.kind} for b in bad[0]],
            **counts,
            "unlike_the_plan": wrong,
            "mean_difference_of_the_engines_in_grey_levels": statistics.mean(differences),
            "memory_mb": memory,
            "file_descriptors": descriptors,
            "memory_of_the_last_quarter_over_the_second": growth,
            "descriptors_grew_by": max(descriptors[-quarter:]) - max(descriptors[quarter : 2 * quarter]),
        },
    )
    print(f"{args.epochs} epochs, {counts}; unlike the plan: {wrong or 'none'}; memory {growth:.3f}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
