"""The arguments that the benchmarks for a GPU share."""

from __future__ import annotations

import argparse

import torch

__all__ = ["parsed", "parser"]


def parser(doc: str | None, seconds: float) -> argparse.ArgumentParser:
    """``--quick``, ``--seconds`` and ``--device``, under a script's docstring.

    Args:
        seconds: that the script plans with if nothing else is said.
    """
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="less of everything, and shorter")
    p.add_argument("--seconds", type=float, default=seconds, help="what does not fit into this time is left out")
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu only tries the script out")
    return p


def parsed(p: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the arguments. Exits if they ask for a GPU that torch does not see."""
    args = p.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU; --device cpu tries the script out without one")
    return args
