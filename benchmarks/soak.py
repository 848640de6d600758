"""Does a long run stay exact and flat? Many epochs with faults, signals, breaks, resumes and two loaders at once.

The photographs and, beside the checkout, the odd files, with 5 % of all truncated on top. The DALI engine and the
reference run in lockstep over the same epochs with on_error="replace". At every batch: both have the samples that
the plan says, computed apart from the loaders, and the pictures of the two agree; every tenth batch of the
reference is equal in every bit to decoding the plan anew. Meanwhile, at random: files vanish or become something
else between two epochs, a worker process is killed and the script goes on from the last state, a signal's handler
raises in the middle of whatever happens, an epoch is left in the middle, a new loader goes on from the saved state of
the old one. Memory and file descriptors are read after every epoch. Prediction: no difference at all, every bad file
named by both engines, the script has a handler's exception within 1 s, and memory is flat after the first tens of
epochs, when DALI's pools have met the largest pictures.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import _common
import numpy as np
import torch
from _soak_parts import SPOILT, Alarm, Interrupted, collect

from gpupipe import DataLoader, Shard, transforms as T
from gpupipe.datasets import ImageFolder
from gpupipe.engines.torch.reference import reference
from gpupipe.errors import BadSample
from gpupipe.planning.bad_samples import BadSamples
from gpupipe.planning.batches import Slices
from gpupipe.planning.epoch import EpochPlan
from gpupipe.planning.order import Shuffle
from gpupipe.system import children

MEASURES = ("benchmarks/_soak_parts.py", "gpupipe/engines", "gpupipe/loader", "gpupipe/planning", "gpupipe/reading")
BATCH, SEED = 16, 7
PIPELINE = T.Compose([T.RandomResizedCrop(64), T.RandomHorizontalFlip(), T.PILToTensor()])
EVENTS = ("break", "resume", "kill", "signal", "nothing")
"""Each epoch draws one of these events."""
COUNTED = (
    "batches", "compared_in_every_bit", "breaks", "resumes", "workers_killed", "signals", "files_spoilt",
)  # fmt: skip
SPOILS = 12
"""Number of files that are damaged over the whole run."""


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

    def states(self) -> list[dict[str, Any]]:
        return [loader.state_dict() for loader in self.loaders]

    def iterate(self, states: list[dict[str, Any]] | None = None) -> list[Any]:
        """Iterators of the next epoch, or of what is left after some states."""
        for loader, state in zip(self.loaders, states or (), strict=False):
            loader.load_state_dict(state)
        return [iter(loader) for loader in self.loaders]

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


def check(
    plans: EpochPlan, step: int, batches: list[Any], dataset: ImageFolder, exact: bool
) -> tuple[list[str], float]:
    """(what is not the plan's, mean difference of the two engines in gray levels)."""
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
        wrong.append(f"epoch {plan.epoch}, step {step}: the engines differ by {difference:.2f} gray levels")
    return wrong, difference


class Soak:
    """The run, and what it has seen."""

    def __init__(self, dataset: ImageFolder):
        self.dataset = dataset
        self.pair = Pair(dataset)
        self.events = random.Random(0)
        self.alarm = Alarm()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.differences: list[float] = []
        self.seconds_to_the_script: list[float] = []
        """Seconds from a handler's exception until the loop has it. All threads and processes end in between."""
        self.known = BadSamples("replace", None, dataset)
        self.bad: dict[int, str] = {}
        """Kinds of the bad samples, by index."""
        self.named: tuple[set[int], set[int]] = (set(), set())
        """Indices of the bad samples that each engine named."""

    def meet(self) -> None:
        """The first epoch, in which every file that was bad from the beginning is met once."""
        for _ in zip(*self.pair.iterate(), strict=True):
            pass
        bad = [sorted(loader.report().samples) for loader in self.pair.loaders]
        if [b.index for b in bad[0]] != [b.index for b in bad[1]]:
            raise SystemExit(f"the engines refuse different files: {bad}")
        self.known.learn(bad[0])
        self.bad = {b.index: b.kind for b in bad[0]}

    def spoil(self) -> None:
        """A good file is good no more. The index does not know."""
        index = self.events.choice([i for i in range(len(self.dataset)) if i not in self.bad])
        kind = list(SPOILT)[self.counts["files_spoilt"] % len(SPOILT)]
        path = Path(self.dataset.describe(index))
        SPOILT[kind](path)
        self.known.learn([BadSample(index, str(path), kind, "spoilt")])
        self.bad[index] = kind
        self.counts["files_spoilt"] += 1

    def kill_a_worker(self) -> None:
        workers = children()
        if workers:
            os.kill(self.events.choice(sorted(workers)), signal.SIGKILL)
            self.counts["workers_killed"] += 1

    def epoch(self, number: int) -> None:
        n = len(self.dataset)
        order, slices = Shuffle(n, SEED, number), Slices(n, BATCH, Shard(), False)
        plans = EpochPlan(self.dataset, PIPELINE, order, slices, SEED, number, self.known)
        event, at = self.events.choice(EVENTS), self.events.randrange(1, len(slices))
        iterators, states, step = self.pair.iterate(), self.pair.states(), 0
        self.alarm.set(self.events.uniform(0.001, 1.0) if event == "signal" else None)
        while True:
            try:
                states = self.pair.states()
                batches = [next(it, None) for it in iterators]
                if None in batches:
                    self.alarm.set(None)
                    break
                self.look(plans, step, batches)
            except (Interrupted, RuntimeError) as e:
                if isinstance(e, Interrupted):
                    self.seconds_to_the_script.append(time.monotonic() - self.alarm.called)
                    self.counts["signals"] += 1
                elif "DataLoader worker" not in str(e):  # torch's words for one that was killed
                    raise
                iterators = self.pair.iterate(states)  # one of the two may have been a batch ahead
                step = -(-states[0]["delivered"] // BATCH)
                continue
            step += 1
            if step == at and event == "break":
                self.counts["breaks"] += 1
                return
            if step == at and event == "resume":
                iterators = self.resume()
            if step == at and event == "kill":
                self.kill_a_worker()
        if batches != [None, None] or step != len(slices):
            raise SystemExit(f"epoch {number} ended after {step} of {len(slices)} batches")

    def look(self, plans: EpochPlan, step: int, batches: list[Any]) -> None:
        exact = self.counts["batches"] % 10 == 0
        self.alarm.put_off = True
        unlike, difference = check(plans, step, batches, self.dataset, exact)
        self.alarm.put_off = False
        self.wrong += unlike
        self.differences.append(difference)
        self.counts["batches"] += 1
        self.counts["compared_in_every_bit"] += exact

    def resume(self) -> list[Any]:
        """Continue with new loaders where these stand."""
        states = self.pair.states()
        self.end()
        self.pair = Pair(self.dataset)
        self.counts["resumes"] += 1
        return self.pair.iterate(states)

    def end(self) -> None:
        for named, loader in zip(self.named, self.pair.loaders, strict=True):
            named |= {sample.index for sample in loader.report().samples}
        self.pair.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="JPEG files; by default photographs beside the checkout")
    parser.add_argument("--epochs", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = args.folder or (_common.IMAGES if _common.IMAGES.is_dir() else None)
    memory, descriptors = [], []
    with (
        _common.photographs(folder, count=64) as files,
        tempfile.TemporaryDirectory(prefix="gpupipe-soak-") as work,
    ):
        os.environ["GPUPIPE_CACHE"] = str(Path(work, "cache"))
        soak = Soak(ImageFolder(collect(files, Path(work, "photos")), PIPELINE))
        soak.meet()
        spoil_every = max(args.epochs // (SPOILS + 1), 1)
        for epoch in range(1, args.epochs + 1):
            soak.epoch(epoch)
            memory.append(_common.memory_mb(os.getpid())["pss"])
            descriptors.append(len(os.listdir("/proc/self/fd")))
            if epoch % spoil_every == 0 and epoch < args.epochs:
                soak.spoil()
            if epoch % 10 == 0:
                print(
                    f"epoch {epoch}: {dict(soak.counts)}, {memory[-1]:.0f} MB, {descriptors[-1]} descriptors",
                    flush=True,
                )
        for _ in zip(*soak.pair.iterate(), strict=True):  # whole: the last ones may have been left in the middle
            pass
        soak.end()
    quarter = max(len(memory) // 4, 1)
    growth = statistics.median(memory[-quarter:]) / statistics.median(memory[quarter : 2 * quarter])
    seconds = soak.seconds_to_the_script
    names = dict(zip(("dali", "torch"), soak.named, strict=True))
    unnamed = {engine: sorted(set(soak.bad) - named) for engine, named in names.items()}
    good_named = {engine: sorted(named - set(soak.bad)) for engine, named in names.items()}
    _common.save(
        "soak",
        {
            "question": "Does a long run stay exact and flat?",
            "machine": _common.machine(),
            "epochs": args.epochs,
            "samples": len(soak.dataset),
            "bad": dict(Counter(soak.bad.values())),
            **{name: soak.counts[name] for name in COUNTED},
            "bad_and_unnamed": unnamed,
            "good_and_named": good_named,
            "unlike_the_plan": soak.wrong,
            "median_seconds_from_signal_to_script": statistics.median(seconds) if seconds else None,
            "worst_seconds_from_signal_to_script": max(seconds, default=None),
            "mean_difference_of_the_engines_in_gray_levels": statistics.mean(soak.differences),
            "memory_mb": memory,
            "file_descriptors": descriptors,
            "memory_of_the_last_quarter_over_the_second": growth,
            "descriptors_grew_by": max(descriptors[-quarter:]) - max(descriptors[quarter : 2 * quarter]),
        },
    )
    print(f"{args.epochs} epochs, {dict(soak.counts)}; unlike the plan: {soak.wrong or 'none'}; memory {growth:.3f}")
    print(f"bad and unnamed: {unnamed}; good and named: {good_named}; worst signal {max(seconds, default=0):.2f} s")
    raise SystemExit(1 if soak.wrong or any(unnamed.values()) or any(good_named.values()) else 0)


if __name__ == "__main__":
    main()
