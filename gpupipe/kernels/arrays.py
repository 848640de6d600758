"""Code that is the same for numpy arrays and for tensors.

On small images a call costs more than its work, and a call of numpy costs a third of torch's. So kernels for bytes, and
for bytes in float32, compute on numpy arrays on a CPU and on tensors elsewhere. Operators, and functions like
``maximum`` and ``floor``, have the same names and results in both libraries.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Values: TypeAlias = Any
"""A numpy array or a tensor, whose operators are the same."""


def values_of(x: Tensor) -> Values:
    """Return the numpy array on the memory of a tensor on the CPU; other tensors as they are."""
    return x.numpy() if x.device.type == "cpu" else x


def tensor_of(x: Values) -> Tensor:
    """Return the tensor on the memory of a numpy array; tensors as they are."""
    return torch.from_numpy(x) if isinstance(x, np.ndarray) else x


def library(x: Values) -> ModuleType:
    """Return the module with the functions for ``x``: numpy or torch."""
    return np if isinstance(x, np.ndarray) else torch


def cast(x: Values, dtype: str) -> Values:
    """Convert to another type."""
    return x.astype(dtype) if isinstance(x, np.ndarray) else x.to(getattr(torch, dtype))


def looked_up(table: Values, index: Values) -> Values:
    """Return ``table[index]`` for an index that is inside the table."""
    if isinstance(table, np.ndarray):
        out = np.empty(index.shape, table.dtype)
        return np.take(table, index, out=out, mode="wrap")  # "raise" would copy first
    return table.index_select(0, index.flatten()).view_as(index)
