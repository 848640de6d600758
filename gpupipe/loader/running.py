"""What a loader has started, until it is closed; and what becomes of it in a forked child."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterator

import torch

from ..engines.base import Engine, Run
from ..engines.delivery import KeepAlive
from ..errors import EngineError
from ..types import Batch, Plan

__all__ = ["Running"]


class Running:
    """The engine and its run. It refers to nothing that refers to it, so that a finaliser can hold it."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self._run: Run | None = None
        self._kept: KeepAlive | None = None
        self._forked_from = 0
        """The process whose threads and processes these are, if it is not this one."""
        _ALL.add(self)

    def run(self, plans: Iterator[Plan]) -> Run:
        """Let the engine start on plans. What it ran before must have been closed."""
        assert self.engine is not None
        self._run = self.engine.run(plans)
        return self._run

    def keep(self, batch: Batch, device: torch.device) -> None:
        """Keep what a batch points into until the consumer's stream has passed."""
        if batch.keep is not None:
            if self._kept is None:
                self._kept = KeepAlive(device)
            self._kept.take(batch.keep)

    def renew(self) -> None:
        """The consumer asks for another batch: what it did with the last one is queued on its stream by now."""
        if self._kept is not None:
            self._kept.renew()

    def stop(self) -> None:
        """End the run. The engine stays."""
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def close(self) -> None:
        """End every thread and process, and free the memory. Only in the process that started them."""
        if not self.ours:
            return
        self.stop()
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.end()
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    # ---- forks

    @property
    def ours(self) -> bool:
        """Whether this process started it, and not one that this is a fork of."""
        return not self._forked_from

    def check(self, device: torch.device) -> None:
        """Refuse what cannot work in a forked child."""
        if self._forked_from:
            raise EngineError(
                f"this loader was started in process {self._forked_from}, and process {os.getpid()} is a fork of it: "
                "threads, worker processes and CUDA do not survive a fork. Make a loader in the child, or close() this "
                "one before forking"
            )
        if device.type == "cuda" and torch.cuda._is_in_bad_fork():
            raise EngineError(
                f"device={str(device)!r}: CUDA was initialised in the parent before this process ({os.getpid()}) was "
                "forked, and does not work here. Start the process with multiprocessing.get_context('spawn'), or touch "
                "no GPU before forking"
            )

    def forked(self) -> None:
        """Called in a forked child. What was started belongs to the parent, and here nothing may end it: a destructor
        would wait for threads that the child does not have."""
        if self.engine is not None and not self._forked_from:
            self._forked_from = os.getppid()
            self.engine.forked()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


_ALL: weakref.WeakSet[Running] = weakref.WeakSet()


def _in_forked_child() -> None:
    for running in list(_ALL):
        running.forked()


os.register_at_fork(after_in_child=_in_forked_child)
