"""A table of all cases: python -m tests.fooled [names] [--dali] [--workers 0 2] [--start fork spawn]."""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from by_reference import by_reference
from torch.utils.data import DataLoader as TorchLoader

import gpupipe
from gpupipe.live.looks import Looks
from gpupipe.loader.live_session import LiveSession

from .base import Case, cases, differs, run, write_pictures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these cases")
    parser.add_argument("--dali", action="store_true", help="pixels by DALI, which are compared within a tolerance")
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
            found, looks = judged(case, arguments, exact=not options.dali)
            ran, on, wrong = ran + 1, on + (0 < looks.opened == looks.waited), wrong + (found is not None)
            if found is not None or options.names:
                waited = f"{looks.waited} of {looks.opened} images waited"
                print(f"{case.name} {arguments or ''}: {waited}, {found or 'as torch has it'}", flush=True)
    print(f"{len(chosen)} cases, {ran} runs, all images of {on} waited to the end, {wrong} differ")
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


def judged(case: Case, arguments: dict[str, Any], *, exact: bool = True) -> tuple[str | None, Looks]:
    """Return what differs from torch, and what happened to the images.

    Args:
        exact: whether the reference makes the images that wait, so that batches are compared bit by bit.
    """
    made: list[gpupipe.DataLoader] = []

    def ours(*args: Any, **kwargs: Any) -> Any:
        made.append(gpupipe.DataLoader(*args, device="cpu", live=True, **kwargs))
        return made[-1]

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        want = run(case, TorchLoader, write_pictures(Path(one)), **arguments)
        with by_reference() if exact else nullcontext():
            got = run(case, ours, write_pictures(Path(other)), **arguments)
    looks = Looks()
    for loader in made:
        session = loader._session
        looks.add(session.looks if isinstance(session, LiveSession) else Looks())
        loader.close()
    return differs(got, want, exact=exact), looks


if __name__ == "__main__":
    sys.exit(main())
