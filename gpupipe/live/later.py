"""Calls of torch's functions that are made later, where an engine has made the tensors that they wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .steps import DEEPEST, CallStep, mapped
from .tensors import WaitingTensor, waiting_in

_MEANT = (int, float, bool, str, type(None), np.number, torch.dtype, torch.device, torch.memory_format)


def can_keep(value: Any) -> bool:
    """Return whether an argument can be kept with a call: a constant, a tensor that waits, or one like a mask."""
    if isinstance(value, (tuple, list)):
        return all(map(can_keep, value))
    if type(value) is Tensor:  # not indices, which may be too large
        known = value.dtype is torch.bool or value.dtype.is_floating_point
        return known and value.device.type == "cpu" and not value.requires_grad
    return value is Ellipsis or isinstance(value, (*_MEANT, slice, WaitingTensor))


def _as_step(value: Any) -> Any:
    """Return the step of a tensor that waits, and a copy of a true one, which a script may change."""
    if isinstance(value, WaitingTensor):
        return value.step
    return value.clone() if isinstance(value, Tensor) else value


def as_meta(value: Any) -> Any:
    """Return a tensor without values for a tensor."""
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, Tensor) else value


def later(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a call, which waits."""
    # A true tensor that stands for another one may change.
    waiting = list(waiting_in((args, kwargs)))
    if any("value" in vars(tensor) or tensor.step.depth >= DEEPEST for tensor in waiting):
        return NotImplemented
    if kwargs.get("out") is not None:
        return NotImplemented
    metas, named = mapped((args, kwargs), as_meta)
    try:
        with torch.no_grad():
            meta = function(*metas, **named)
    except Exception:  # raised again with true tensors
        return NotImplemented
    if not isinstance(meta, Tensor):
        return NotImplemented
    if meta is metas[0] and not _asks_for_layout(function, kwargs):
        return args[0]
    given, named = mapped((args, kwargs), _as_step)
    return WaitingTensor(CallStep(_BY_NAME.get(function, function), given, named, tuple(meta.shape), meta.dtype))


_BY_NAME: dict[Any, Callable[..., Any]] = {Tensor.__pow__: Tensor.pow}
"""Functions that can be pickled, by those that cannot."""


def _asks_for_layout(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function may copy depending on the order of values in memory, which nothing here knows."""
    return function is Tensor.contiguous or "memory_format" in kwargs


def like(function: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that only asks a tensor for its shape and type"""
    if not isinstance(tensor, WaitingTensor) or list(waiting_in((args, kwargs))):
        return NotImplemented
    return function(torch.empty(tensor.shape, dtype=tensor.dtype), *args, **kwargs)
