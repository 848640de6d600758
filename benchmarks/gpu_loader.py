"""How many images per second does each loader put on a GPU, and which settings matter?

Prediction, from documentation: with 16 cores and an H200, at least 12,000 images/s of plain JPEGs; gpupipe at least
0.97 of the graph written by hand; decoding whole images costs more than windows where windows work.
Written from documentation; not run yet on the machine that it is for.

Measured: RandomResizedCrop(224), flip, normalise, batch 256, photographs in /dev/shm, nothing consumes the batches. The
candidates take turns, each in a process of its own (see ``_candidates.py``). Then one setting after the other is
changed and compared with the default in the same rounds.

    python benchmarks/gpu_loader.py [FOLDER] [--quick] [--seconds 540]      # writes results/gpu_loader.json
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _candidates import Candidate, Job, Reading, Work, ratio, rounds, summary
from _common import Budget, Table, describe_files, left_out, machine, photographs, save

OURS = Job("gpupipe, DALI engine", "gpupipe-dali")
HAND = Job("DALI by hand", "dali-by-hand")
TORCHVISION = Job("torch DataLoader + torchvision", "torchvision")

MAIN = [OURS, HAND, Job("gpupipe, reference engine", "gpupipe-torch"), TORCHVISION]
SWEEPS: dict[str, list[Job]] = {
    "output": [
        replace(OURS, name="float16, channels last", dtype="float16", channels_last=True),
        replace(HAND, name="by hand, float16, channels last", dtype="float16", channels_last=True),
    ],
    "roi": [replace(OURS, name=f"roi={roi}", roi=roi) for roi in (True, False)]
    + [replace(HAND, name=f"by hand, roi={roi}", roi=roi) for roi in (True, False)],
    "hw_decoder_load": [
        replace(OURS, name=f"hw_decoder_load={load}", hw_decoder_load=load) for load in (0.0, 0.25, 0.5, 0.8, 0.9, 1.0)
    ],
    "upsampling": [replace(OURS, name="plain chroma upsampling", fancy_upsampling=False)],
    "threads": [replace(OURS, name=f"{n} threads", workers=n) for n in (4, 8, 32)],
    "prefetch": [replace(OURS, name=f"prefetch {n}", prefetch=n) for n in (3, 5)],
    "staging": [
        Job(f"reference engine, {staging}", "gpupipe-torch", staging=staging)
        for staging in ("ring", "pin_memory", "pageable")
    ],
}
START = 15.0
"""Seconds that a candidate may need until it has its first batch, for planning."""


class Stages:
    """Runs groups of jobs, and writes the JSON after every round of each."""

    def __init__(self, args: argparse.Namespace, work: Work, result: dict[str, Any]):
        self._args, self._work, self._result = args, work, result
        self._budget = Budget(args.seconds)

    def run(self, stage: str, jobs: list[Job]) -> None:
        a = self._args
        if not self._budget.enough(len(jobs) * (START + a.rounds * (a.reading + 1)), f"stage {stage}"):
            return
        base = jobs[0].name
        candidates: list[Candidate] = []
        table = Table(stage, "images/s", f"x {base}"[:20], "CPU ms", "start s", "GPU MB", "USS MB")
        failed: dict[str, str] = {}
        try:
            for job in jobs:
                try:
                    candidates.append(Candidate(job, self._work))
                except RuntimeError as e:  # one setting that a machine cannot run must not end the others
                    failed[job.name] = str(e)
                    print(f"{job.name}: failed: {str(e).strip().splitlines()[-1]}", flush=True)
            readings: dict[str, list[Reading]] = {c.job.name: [] for c in candidates}
            for done in rounds(candidates, a.rounds, a.reading):
                for name, reading in done.items():
                    readings[name].append(reading)
                self._save(stage, candidates, readings, failed)
        finally:
            for candidate in candidates:
                candidate.close()
        for name, row in self._result["stages"].get(stage, {}).items():
            if "failed" not in row:
                speed, times = row["median_images_per_second"], (row["to_first"] or {}).get("median")
                table.row(
                    name, speed, times, row["cpu_ms_per_image"], row["start_seconds"], row["gpu_mb"], row["uss_mb"]
                )

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


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", nargs="?", type=Path, help="JPEG files; made where it is not given")
    p.add_argument("--quick", action="store_true", help="few and short rounds, and only the first sweeps")
    p.add_argument("--seconds", type=float, default=540, help="stages that do not fit into this time are left out")
    p.add_argument("--rounds", type=int)
    p.add_argument("--reading", type=float, help="seconds of one reading")
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--workers", type=int, default=16, help="threads or worker processes")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu only tries the script out")
    p.add_argument("--only", nargs="*", help="stages to run: main, " + ", ".join(SWEEPS))
    args = p.parse_args()
    args.rounds = args.rounds or (2 if args.quick else 5)
    args.reading = args.reading or (1.0 if args.quick else 3.0)
    args.name = "gpu_loader" if args.device == "cuda" else "gpu_loader_dry_run"
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU; --device cpu tries the script out without one")
    with photographs(args.folder, count=128 if args.quick else 1024, ram=True) as paths:
        result: dict[str, Any] = {
            "question": (__doc__ or "").splitlines()[0],
            "machine": machine(),
            "files": describe_files(paths),
            "settings": {k: v for k, v in vars(args).items() if k != "folder"},
            "stages": {},
        }
        work = Work(tuple(paths), args.batch_size, args.workers, args.device)
        stages = Stages(args, work, result)
        chosen = {"main": MAIN} | {name: [OURS, *jobs] for name, jobs in SWEEPS.items()}
        names = args.only or (["main", "output", "roi"] if args.quick else list(chosen))
        for name in names:
            stages.run(name, left_out(chosen[name]))
    print(save(args.name, result))


if __name__ == "__main__":
    main()
