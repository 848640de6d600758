"""Compares the batches of a live loader with those of torch's loader from the same seed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader as TorchLoader

from ..global_rng import lent, seed_all
from ..loader.dataloader import DataLoader

_BATCHES = 3
_SEED = 0
_LEAST = 8
"""Edges of an image, at least."""


def compared(arguments: Mapping[str, Any], torchs: Mapping[str, Any]) -> str:
    """Compare the first batches of a script's dataset, and return what was found.

    Args:
        arguments: of gpupipe's loader.
        torchs: of torch's loader.
    """
    try:
        theirs = _first(TorchLoader(**torchs))
        with closing(DataLoader(**{**arguments, "live": True, "device": "cpu"})) as loader:
            ours = _first(loader)
    except Exception as e:  # raised by the script's code
        return f"not compared with torch's: {type(e).__name__}: {e}"
    differences = [_apart(a, b) for a, b in zip(ours, theirs, strict=False)]
    if len(ours) != len(theirs) or None in differences:
        number = differences.index(None) if None in differences else min(len(ours), len(theirs))
        return f"batch {number} is not torch's from the same seed: does the script draw from a generator of its own?"
    most = max((apart for apart in differences if apart is not None), default=0.0)
    pixels = f"pixels differ by at most {100 * most:.2g} % on average" if most else "all pixels are equal"
    return f"{len(ours)} batches are torch's from the same seed; {pixels}"


def _first(loader: Any) -> list[Any]:
    with lent(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_all(_SEED)
        return list(islice(loader, _BATCHES))


def _apart(ours: Any, theirs: Any) -> float | None:
    """Return the mean difference of the image that differs most, as a share of its range; ``None`` if anything else
    differs."""
    (mine, form), (wanted, expected) = _pytree.tree_flatten(ours), _pytree.tree_flatten(theirs)
    if form != expected:
        return None
    most = 0.0
    for a, b in zip(mine, wanted, strict=True):
        if not isinstance(b, (torch.Tensor, np.ndarray)):
            if type(a) is not type(b) or (isinstance(b, (int, str, bytes)) and a != b):
                return None
            continue
        x, y = (torch.as_tensor(value).detach().cpu() for value in (a, b))
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return None
        if y.ndim < 3 or min(y.shape[-2:]) < _LEAST:
            if not torch.equal(x, y):
                return None
        elif not torch.equal(x, y):
            span = float(y.max()) - float(y.min())
            most = max(most, float((x.double() - y.double()).abs().mean()) / (span or 1.0))
    return most
