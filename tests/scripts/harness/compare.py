"""Where gpupipe's run of a script differs from torch's run from the same seed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from .record import Batch, Epoch, Run

__all__ = ["differences", "unlike"]

Array = npt.NDArray[Any]

_ROUNDING = 1e-5
"""Tolerance for float32, because an engine may compute in another order."""
_LEVELS = 2.5 / 255
"""Mean difference allowed between pixels of DALI and of Pillow, in values of 0 to 1."""


def differences(ours: Run, theirs: Run, *, exact: bool) -> list[str]:
    """Return what is not as torch has it, for runs from one seed.

    Args:
        exact: whether pixels must be equal, too, or may be those of another decoder.
    """
    if len(ours.epochs) != len(theirs.epochs):
        return [f"the script has {len(theirs.epochs)} epochs with torch, {len(ours.epochs)} with gpupipe"]
    found = []
    for number, (mine, wanted) in enumerate(zip(ours.epochs, theirs.epochs, strict=True)):
        found += [f"epoch {number}{problem}" for problem in _of_epoch(mine, wanted, exact)]
    return found


def _of_epoch(ours: Epoch, theirs: Epoch, exact: bool) -> list[str]:
    if (ours.length, len(ours.batches)) != (theirs.length, len(theirs.batches)):
        counts = f"{len(ours.batches)} batches, len() {ours.length}"
        return [f": {counts}, torch {len(theirs.batches)}, len() {theirs.length}"]
    pairs = enumerate(zip(ours.batches, theirs.batches, strict=True))
    return [f", batch {i}{problem}" for i, (a, b) in pairs for problem in _of_batch(a, b, exact)][:4]


def _of_batch(ours: Batch, theirs: Batch, exact: bool) -> list[str]:
    if ours.form != theirs.form:
        return [f": {ours.form}, torch {theirs.form}"]
    return [
        f"{path}: {found}"
        for path, wanted in theirs.leaves.items()
        if (found := _of_leaf(ours.leaves[path], wanted, exact))
    ]


def _of_leaf(ours: Any, theirs: Any, exact: bool) -> str:
    if not isinstance(theirs, np.ndarray):
        same = np.isclose(ours, theirs, rtol=1e-4) if isinstance(theirs, float) else ours == theirs
        return "" if same else f"{ours!r}, torch {theirs!r}"
    if theirs.dtype.kind not in "fc" and (exact or not _is_image(theirs)):
        return "" if np.array_equal(ours, theirs) else "other values"
    apart = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    scale = max(1.0, float(np.abs(theirs).max(initial=0)))
    limit, found = (_ROUNDING, apart.max(initial=0)) if exact else (2 * _LEVELS, apart.mean() if apart.size else 0)
    if np.array_equal(ours, theirs, equal_nan=theirs.dtype.kind == "f") or found <= limit * scale:
        return ""
    return f"{found:.4g} apart{'' if exact else ' on average'}"


def _is_image(x: Array) -> bool:
    return x.dtype == np.uint8 and x.ndim >= 3 and min(x.shape[-2:]) >= 8 and x.shape[-3] in (1, 3)


def unlike(ours: Run, theirs: Run) -> list[str]:
    """Return what is of another kind than torch's, for a run whose random numbers are others: the number of epochs and
    batches, types, keys, shapes, and the numbers of samples that an epoch has."""
    if len(ours.epochs) != len(theirs.epochs):
        return [f"the script has {len(theirs.epochs)} epochs with torch, {len(ours.epochs)} with gpupipe"]
    found = []
    for number, (mine, wanted) in enumerate(zip(ours.epochs, theirs.epochs, strict=True)):
        forms = [sorted(re.sub(r"\d+", "n", batch.form) for batch in epoch.batches) for epoch in (mine, wanted)]
        if mine.length != wanted.length or forms[0] != forms[1]:
            found.append(f"epoch {number}: {forms[0][:1]}, len() {mine.length}, torch {forms[1][:1]}, {wanted.length}")
            continue
        for path in wanted.paths:
            counts = [sum(_count(leaf) for leaf in epoch.column(path)) for epoch in (mine, wanted)]
            if counts[0] != counts[1]:
                found.append(f"epoch {number}{path}: {counts[0]} values, torch {counts[1]}")
    return found


def _count(leaf: Any) -> int:
    return leaf.shape[0] if isinstance(leaf, np.ndarray) and leaf.ndim else 1
