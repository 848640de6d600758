"""Arguments of the benchmarks that compare candidates in alternating rounds."""

from __future__ import annotations

import argparse
from pathlib import Path

from _common import IMAGES

__all__ = ["parsed", "parser"]


def parser(doc: str | None, *, rounds: int, seconds: float, epoch: int) -> argparse.ArgumentParser:
    """Parser with the defaults of one benchmark; more arguments can be added."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("folder", nargs="?", type=Path, default=IMAGES if IMAGES.is_dir() else None)
    found.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    found.add_argument("--batch-size", type=int, default=64)
    found.add_argument("--workers", type=int, default=2)
    found.add_argument("--rounds", type=int, default=rounds)
    found.add_argument("--seconds", type=float, default=seconds)
    found.add_argument("--epoch", type=int, default=epoch)
    found.add_argument(
        "--dry-run", action="store_true", help="one short round; the result goes to the temporary folder"
    )
    return found


def parsed(given: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments; of a dry run those that make it short."""
    args = given.parse_args()
    if args.dry_run:
        args.rounds, args.seconds, args.batch_size = 1, 0.5, 16
    return args
