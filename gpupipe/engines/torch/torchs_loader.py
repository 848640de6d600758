"""Detection of torch's DataLoader reading what gpupipe should read."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch.utils.data import default_collate, get_worker_info

from ...reasons import Reason
from ...script_warnings import warn

_FRAMES = 8
"""Calls between torch's loader and a sample, with datasets of torch such as Subset in between."""


def is_read_by_torchs_loader() -> bool:
    """Return whether a loader of torch's calls the caller's caller, in this process or in its first worker."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == "torch.utils.data._utils.fetch":
            worker = get_worker_info()
            # One warning is enough for all workers.
            return worker is None or worker.id == 0
        frame = frame.f_back
    return False


class CollateOfLoader:
    """``default_collate``, as the attribute ``collate_fn`` of a loader of gpupipe.

    Frameworks that build a torch DataLoader from the attributes of a loader pass it on. Then it warns once, unless the
    loader's ``sampler``, which they may pass on too, has done so.
    """

    def __init__(self, sampler: Any = None):
        self._sampler = sampler
        self._has_warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return CollateOfLoader, ()  # a worker that is spawned needs no sampler

    def __call__(self, samples: list[Any]) -> Any:
        has_warned = self._has_warned or getattr(self._sampler, "has_warned", False)
        if not has_warned and is_read_by_torchs_loader():
            self._has_warned = True
            if get_worker_info() is not None:
                return _FromWorker(default_collate(samples))
            _warn()
        return default_collate(samples)

    def __repr__(self) -> str:
        return repr(default_collate)


class _FromWorker:
    """A batch that warns in the training process, because nobody reads the output of workers."""

    def __init__(self, batch: Any):
        self._batch = batch

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self._batch,)


def _arrived(batch: Any) -> Any:
    _warn()
    return batch


def _warn() -> None:
    text = "it was built from the attributes of that loader, and lacks its engine, its order and its state"
    warn("torch's DataLoader reads the dataset of a gpupipe loader", [Reason(text, "rebuilt")])
