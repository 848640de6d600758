"""What the examples share: help that shows defaults, and a Ctrl-C that loses nothing."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Any, NoReturn

import torch
import torch.distributed as dist

__all__ = ["Help", "Stop"]

SAVED = 75
"""Exit code of a run that was asked to stop and has saved its state: starting it again will do (EX_TEMPFAIL)."""


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """For ``ArgumentParser(formatter_class=)``: the description as it is written, and defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        said = action.default is not None and action.default is not False
        return super()._get_help_string(action) if said else action.help


class Stop:
    """Ctrl-C and SIGTERM, which clusters send before they take a machine away, ask for an end after the present step.
    Ctrl-C once more ends at once."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
        print("stopping after this step; Ctrl-C once more to stop at once", file=sys.stderr)

    def agreed(self, step: int, device: torch.device) -> bool:
        """Return whether some rank was asked.

        All ranks get the same answer at the same step, or they would wait for each other for ever. As that costs a
        message, several ranks look at every 20th step only.
        """
        if not dist.is_initialized():
            return self.asked
        if step % 20:
            return False
        asked = torch.tensor(float(self.asked), device=device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return bool(asked)

    @staticmethod
    def leave(message: str) -> NoReturn:
        """End the process with the code that says so."""
        print(message, file=sys.stderr)
        raise SystemExit(SAVED)
