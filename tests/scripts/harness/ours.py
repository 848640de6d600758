"""All that the harness knows of gpupipe: which loaders were made, on which engine, what they warned of, how exact they
must be. Nothing else here looks behind a loader."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gpupipe
from gpupipe.parity.difference import gray_levels
from gpupipe.parity.tolerances import Tolerance, tolerance, widest
from gpupipe.transforms.ops import Views

__all__ = ["Promise", "Watch", "engine_of", "is_loader", "promise_of", "watching"]

F64 = npt.NDArray[np.float64]

_FRAME = 3
"""Pixels from each edge for which a filter may have reached over it: there the promise for the border holds."""


@dataclass(frozen=True)
class Promise:
    """How far pixels may be from torch's, in gray levels; ``None``: they must be equal."""

    tolerance: Tolerance | None = None
    factor: tuple[float, ...] = (1.0,)
    """Gray levels per unit of the output, one for all channels or one for each."""

    def broken(self, got: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> list[str]:
        """What of the promise ``got`` [..., C, H, W] does not keep, in words."""
        if np.array_equal(got, wanted, equal_nan=got.dtype.kind == "f"):
            return []
        if self.tolerance is None:
            apart = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
            return [f"they must be equal, and differ by up to {apart.max():.4g} in {(apart > 0).mean():.2%} of values"]
        factor = np.asarray(self.factor)
        if got.shape[-3] % factor.size == 0:  # images may be stacked along their channels
            factor = np.tile(factor, got.shape[-3] // factor.size)
        else:
            return [f"the pipeline has {factor.size} channels, the batch {got.shape[-3]}"]
        apart = np.abs(got.astype(np.float64) - wanted.astype(np.float64)) * factor[:, None, None]
        height, width = apart.shape[-2:]
        inside = np.zeros((height, width), np.bool_)
        inside[_FRAME : height - _FRAME, _FRAME : width - _FRAME] = True
        bound = self.tolerance.interior
        parts = [
            ("inside", apart[..., inside], bound),
            ("at the border", apart[..., ~inside], self.tolerance.border or bound),
        ]
        problems = []
        for where, values, limit in parts:
            if values.size and values.max() > limit.max + 0.01:
                problems.append(f"{where} they differ by up to {values.max():.4g} levels, promised are {limit.max:.4g}")
            if values.size and values.mean() > limit.mean + 0.001:
                problems.append(
                    f"{where} they differ by {values.mean():.4g} levels on average, promised {limit.mean:.4g}"
                )
        return problems


@dataclass
class Watch:
    """gpupipe's loaders and messages of one run."""

    loaders: list[Any] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


class _Messages(logging.Handler):
    def __init__(self, watch: Watch):
        super().__init__(logging.WARNING)
        self.watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        self.watch.messages.append(record.getMessage())


@contextmanager
def watching() -> Iterator[Watch]:
    """Note every ``gpupipe.DataLoader`` that is made, and what gpupipe logs as a warning."""
    watch = Watch()
    made = gpupipe.DataLoader.__init__

    def noted(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        watch.loaders.append(self)

    handler, log = _Messages(watch), logging.getLogger("gpupipe")
    log.addHandler(handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpupipe.DataLoader, "__init__", noted)
            yield watch
    finally:
        log.removeHandler(handler)


def is_loader(x: Any) -> bool:
    return isinstance(x, gpupipe.DataLoader)


def engine_of(loader: Any) -> str:
    """What ``repr`` says, which is all that a user sees."""
    try:
        found = re.search(r"engine: (\w+)", repr(loader))
    except Exception as e:  # a subclass may have made it impossible
        return f"unknown, repr() raises {type(e).__name__}"
    return found[1] if found else "unknown"


def promise_of(loader: Any) -> Promise:
    """What the table of promises says of the loader's pipeline; only DALI may differ from torch at all."""
    if engine_of(loader) != "dali":
        return Promise()
    ops = loader._session.resolved.setup.pipeline.skeleton
    branches = [(*ops[:-1], *branch) for branch in ops[-1].branches] if ops and isinstance(ops[-1], Views) else [ops]
    device = loader.device.type
    found = [tolerance("dali/torch", branch, device) for branch in branches]
    if any(t is None for t in found):
        return Promise()
    factor = tuple(np.atleast_1d(gray_levels(branches[0])[0]).tolist())
    return Promise(reduce(widest, [t for t in found if t is not None]), factor)
