"""How many images per second does each loader put on a GPU, and which settings matter?

Measured: RandomResizedCrop(224), flip, normalize, batch 256, photographs in /dev/shm, nothing consumes the batches. The
candidates take turns, each in a process of its own (see ``_candidates.py``). One setting after the other is changed and
compared with the default in the same rounds, the most telling first. A graph by hand has the settings that gpupipe
chose: threads, prefetch, output, upsampling and share of the decoding engines.

    python benchmarks/gpu_loader.py [FOLDER] [--quick] [--seconds 480] [--only STAGE ...]   # results/gpu_loader.json
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from _candidates import Candidate, Reading, ratio, rounds, summary
from _common import Budget, Table, describe_files, heading, photographs, recoded, save
from _gpu_arguments import parsed, parser
from _loaders import Job, Work, left_out, resolved

MEASURES = ("benchmarks/_by_hand.py", "benchmarks/_loaders.py", "gpupipe/engines", "gpupipe/kernels", "gpupipe/reading")
OURS = Job("gpupipe, DALI engine", "gpupipe-dali", prefetch=2)
HAND = Job("DALI by hand", "dali-by-hand", prefetch=2)
TORCHVISION = Job("torch DataLoader + torchvision", "torchvision")
HALF = replace(OURS, name="float16, channels last", dtype="float16", channels_last=True)
HALF_HAND = replace(HAND, name="by hand, float16, channels last", dtype="float16", channels_last=True)
CHROMA = ("4:2:0", "4:4:4")
LOADS = (0.0, 0.25, 0.4, 0.5, 0.65, 0.8, 1.0)


def upsampling(fancy: bool) -> str:
    return "fancy" if fancy else "plain"


STAGES: dict[str, list[Job]] = {
    "main": [OURS, HAND, TORCHVISION, HALF, HALF_HAND],
    "upsampling": [
        replace(HALF, name=f"{upsampling(fancy)}, {files}", fancy_upsampling=fancy, files=files)
        for fancy in (False, True)
        for files in CHROMA
    ],
    "hw_decoder_load": [replace(HALF, name=f"hw_decoder_load={x}", hw_decoder_load=x) for x in LOADS],
    "others": [
        OURS,
        Job("torchvision's decode_jpeg on the GPU", "torchvision-gpu"),
        Job("decode_jpeg, DALI's torchvision API", "dali-torchvision"),
        Job("gpupipe, reference engine", "gpupipe-torch"),
    ],
    "by hand, plain and fancy": [
        replace(job, name=f"{name}, {upsampling(fancy)}", fancy_upsampling=fancy)
        for fancy in (False, True)
        for name, job in (("gpupipe", HALF), ("by hand", HALF_HAND))
    ],
    "threads": [HALF, *(replace(HALF, name=f"{n} threads", workers=n) for n in (8, 12, 24))],
    "prefetch": [HALF, *(replace(HALF, name=f"prefetch {n}", prefetch=n) for n in (1, 3, 5))],
    "staging": [
        Job(f"reference engine, {staging}", "gpupipe-torch", staging=staging)
        for staging in ("ring", "pin_memory", "pageable")
    ],
}  # fmt: skip
"""In the order of what they tell; a run that is cut has the first ones."""


class Stages:
    """Runs groups of jobs, and writes the JSON after every round of each."""

    def __init__(self, args: argparse.Namespace, work: Work, result: dict[str, Any]):
        self._args, self._work, self._result = args, work, result
        self._budget = Budget(args.seconds)
        self._start = 8.0
        """Seconds that a candidate needs until it has its first batch: a guess, then what it was."""

    def run(self, stage: str, jobs: list[Job]) -> None:
        a = self._args
        if not self._budget.enough(len(jobs) * (self._start + 2 * (a.reading + 1)), f"stage {stage}"):
            self._result["left_out"].append(stage)
            return
        failed: dict[str, str] = {}
        began = time.monotonic()
        candidates = self._begun(jobs, failed)
        self._start = (time.monotonic() - began) / len(jobs)
        try:
            readings: dict[str, list[Reading]] = {c.job.name: [] for c in candidates}
            for done in rounds(candidates, a.rounds, a.reading) if candidates else ():
                for name, reading in done.items():
                    readings[name].append(reading)
                self._save(stage, candidates, readings, failed)
                if not self._budget.enough(len(candidates) * (a.reading + 1), f"another round of {stage}"):
                    break
        except RuntimeError as e:  # a process that dies later on
            failed[stage] = str(e)
            self._result["failed"][stage] = str(e)
        finally:
            for candidate in candidates:
                candidate.close()
        self._show(stage, failed)

    def _begun(self, jobs: list[Job], failed: dict[str, str]) -> list[Candidate]:
        """They import side by side, and start one after the other, so that each start is measured by itself."""
        found = []
        for candidate in [Candidate(job, self._work, begin=False) for job in jobs]:
            try:
                candidate.begin()
                found.append(candidate)
            except RuntimeError as e:  # one setting that a machine cannot run must not end the others
                failed[candidate.job.name] = str(e)
                candidate.close()
        return found

    def _save(
        self, stage: str, candidates: list[Candidate], readings: dict[str, list[Reading]], failed: dict[str, str]
    ) -> None:
        speed = {name: [r.images_per_second for r in rows] for name, rows in readings.items()}
        base = next(iter(speed.values()))
        self._result["stages"][stage] = {
            c.job.name: {**summary(c, readings[c.job.name]), "to_first": ratio(speed[c.job.name], base)}
            for c in candidates
        } | {name: {"failed": why} for name, why in failed.items()}
        save(self._args.name, self._result)

    def _show(self, stage: str, failed: dict[str, str]) -> None:
        rows = self._result["stages"].setdefault(stage, {name: {"failed": why} for name, why in failed.items()})
        table = Table(stage, "images/s", "to first", "CPU ms", "start s", "GPU MB", "USS MB")
        for name, row in rows.items():
            if "failed" in row:
                print(f"{name}: failed: {row['failed'].strip().splitlines()[-1]}", flush=True)
                continue
            speed, times = row["median_images_per_second"], row["to_first"]["median"]
            table.row(name, speed, times, row["cpu_ms_per_image"], row["start_seconds"], row["gpu_mb"], row["uss_mb"])


def main() -> None:
    p = parser(__doc__, 480)
    p.add_argument("folder", nargs="?", type=Path, help="JPEG files; without it they are made")
    p.add_argument("--rounds", type=int)
    p.add_argument("--reading", type=float, help="seconds of one reading")
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--workers", type=int, default=16, help="threads or worker processes")
    p.add_argument("--only", nargs="+", choices=STAGES, metavar="STAGE", help="of " + ", ".join(STAGES))
    args = parsed(p)
    args.rounds = args.rounds or (2 if args.quick else 3)
    args.reading = args.reading or (0.5 if args.quick else 2.0)
    args.name = "gpu_loader" if args.device == "cuda" else "gpu_loader_dry_run"
    began, count = time.monotonic(), 128 if args.quick else 1024
    with photographs(args.folder, count=count, ram=True) as paths, recoded(paths, CHROMA, ram=True) as sets:
        work = Work(tuple(paths), args.batch_size, args.workers, args.device, sets=sets)
        result: dict[str, Any] = {
            **heading(__doc__, args),
            "files": {"mixed": describe_files(paths)} | {name: describe_files(s) for name, s in sets.items()},
            "chosen": {k: v for k, v in asdict(resolved(OURS, work)).items() if k == "fancy_upsampling"},
            "stages": {},
            "left_out": [],
            "failed": {},
        }
        print(f"photographs after {time.monotonic() - began:.0f} s; chosen: {result['chosen']}")
        stages = Stages(args, work, result)
        for name in args.only or list(STAGES)[: 3 if args.quick else None]:
            stages.run(name, left_out(STAGES[name]))
    print()
    print(save(args.name, result))


if __name__ == "__main__":
    main()
