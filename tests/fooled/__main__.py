"""A table of all cases: python -m tests.fooled [names] [--engine dali] [--workers 0 2] [--start fork spawn]."""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader as TorchLoader

import gpupipe

from .base import Case, cases, differs, run, write_pictures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these cases")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--start", nargs="+", default=["fork"], choices=["fork", "spawn", "forkserver"])
    options = parser.parse_args()
    chosen = [case for name, case in cases().items() if not options.names or name in options.names]
    logging.getLogger("gpupipe").setLevel(logging.ERROR)
    # A forkserver pickles what spawn pickles, but its children do not import torch and torchvision anew.
    multiprocessing.set_forkserver_preload(["tests.fooled.base"])
    wrong = ran = on = 0
    for number, case in enumerate(chosen):
        print(f"{number}/{len(chosen)} {case.name}", end="\x1b[K\r", file=sys.stderr, flush=True)
        for arguments in ways(case, options.workers, options.start):
            found, engine = judged(case, options.engine, arguments)
            ran, on, wrong = ran + 1, on + (engine == "dali"), wrong + (found is not None)
            if found is not None or options.names:
                print(f"{case.name} {arguments or ''}: {engine}, {found or 'as torch has it'}", flush=True)
    print(f"{len(chosen)} cases, {ran} runs, {on} on DALI, {wrong} differ")
    return wrong > 0


def ways(case: Case, workers: list[int], starts: list[str]) -> list[dict[str, Any]]:
    """Arguments of the loader to run a case with."""
    found: list[dict[str, Any]] = []
    for count, start in itertools.product(workers, starts):
        if not count and start == starts[0]:
            found.append({"num_workers": 0})
        elif count and (start == "fork" or not case.forks):
            found.append({"num_workers": count, "multiprocessing_context": start})
    return found


def judged(case: Case, engine: Any, arguments: dict[str, Any]) -> tuple[str | None, str]:
    """(what differs from torch, what made the batches)"""
    made: list[gpupipe.DataLoader] = []

    def ours(*args: Any, **kwargs: Any) -> Any:
        made.append(gpupipe.DataLoader(*args, device="cpu", engine=engine, **kwargs))
        return made[-1]

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        want = run(case, TorchLoader, write_pictures(Path(one)), **arguments)
        got = run(case, ours, write_pictures(Path(other)), **arguments)
    engine = "dali" if made and all(on_dali(loader) for loader in made) else "torch's loader" if made else "none"
    for loader in made:
        loader.close()
    return differs(got, want), engine


def on_dali(loader: gpupipe.DataLoader) -> bool:
    try:
        return "engine: dali" in repr(loader)
    except RuntimeError:  # of a dataset that cannot be shown
        return False


if __name__ == "__main__":
    sys.exit(main())
