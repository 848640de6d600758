"""Registry of the forms of every op, on one image and on a batch.

A form only defines what its op does. Selecting the images of an op, and taking those of a batch out and putting them
back, is common to all ops and done here::

    @form(ops.Invert)
    def invert(image, op, i): ...       # one image, for row i of the op

    @batch_form(ops.Invert)
    def invert_batch(x, op): ...        # [n, C, H, W], and an op of n rows
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import PipelineError
from ..transforms.ops import Op
from .device_random import on
from .picture import Picture

Form = Callable[[Picture, Any, int], Picture]
BatchForm = Callable[[Tensor, Any], Tensor]
RowMode = Literal["drawn", "each", "all"]
Together = Literal["never", "nearest", "pil", "always"]

_Form = TypeVar("_Form", bound=Form)
_BatchForm = TypeVar("_BatchForm", bound=BatchForm)
_Arithmetic = TypeVar("_Arithmetic", bound=Callable[..., Tensor])

FORMS: dict[type[Op], Form] = {}
"""``FORMS[type(op)](image, op, i)``: apply row ``i`` of the op to one image.

Bit-identical to torchvision for equal numbers. Images outside the mask are returned unchanged.
"""

FAST_FORMS: dict[type[Op], Form] = {}
"""Alternative forms with results within a few gray levels (see the promises of the ops), for ops with a slow
exact form."""

BATCH_FORMS: dict[type[Op], BatchForm] = {}
"""``BATCH_FORMS[type(op)](x, op)``: apply the op to [B, C, H, W] on any device.

It may write to ``x``, and returns it or another tensor. Images outside the mask are returned unchanged.
"""

ARITHMETIC: dict[type[Op], Callable[..., Tensor]] = {}
"""Pointwise ops, which commute with moving pixels: ``f(x, op, layout, inplace)`` on [..., C, H, W].

``layout`` is the memory format to use if ``x`` is copied anyway, ``inplace`` says that ``x`` may be written to.
"""


_TOGETHER: dict[type[Op], Together] = {}

_AT_ONCE = 1 << 19
"""Values of images that are processed at once. With more, intermediate results would leave the cache; with
fewer, calls cost more than the work (``benchmarks/small_loaders.py``)."""


def form(kind: type[Op], *, exact: bool = True) -> Callable[[_Form], _Form]:
    """Register the form of an op for one image: ``function(image, op, i)``, called if the mask is set for ``i``.

    Args:
        exact: whether it is bit-identical to torchvision; otherwise it is added to :data:`FAST_FORMS`.
    """

    def register(function: _Form) -> _Form:
        @wraps(function)
        def masked(image: Picture, op: Any, i: int) -> Picture:
            return image if op.passes(i) else function(image, op, i)

        (FORMS if exact else FAST_FORMS)[kind] = masked
        return function

    return register


def batch_form(
    kind: type[Op], *, rows: RowMode = "drawn", together: Together = "never"
) -> Callable[[_BatchForm], _BatchForm]:
    """Register the form of an op for a batch: ``function(x, op)``, which may write to ``x``.

    Args:
        rows: which images ``function`` gets. ``"drawn"``: those that the mask selects, at once on a GPU, see
            ``together`` for the CPU. ``"each"``: those that the mask selects, one by one on every device. ``"all"``:
            the whole batch, for ops that have no mask or need all images.
        together: whether ``function`` gives bit-identical results for several images and for one on the CPU:
            ``"always"``, only if the op is of PIL images, only if it also takes the nearest pixels, or ``"never"``. If
            so, it gets as many small images as fit into the cache.
    """

    def register(function: _BatchForm) -> _BatchForm:
        @wraps(function)
        def masked(x: Tensor, op: Any) -> Tensor:
            return _drawn(x, op, function, one_by_one=rows == "each")

        BATCH_FORMS[kind] = function if rows == "all" else masked
        _TOGETHER[kind] = together
        return function

    return register


def change_of(op: Op) -> BatchForm:
    """Return the form from :data:`BATCH_FORMS` for images that all drew the op."""
    masked = BATCH_FORMS.get(type(op))
    if masked is None:
        raise PipelineError(f"{type(op).__name__} cannot work on a whole batch")
    change: BatchForm = getattr(masked, "__wrapped__", masked)
    return change


def arithmetic(kind: type[Op]) -> Callable[[_Arithmetic], _Arithmetic]:
    """Register a pointwise op; see :data:`ARITHMETIC`."""

    def register(function: _Arithmetic) -> _Arithmetic:
        ARITHMETIC[kind] = function
        return function

    return register


def is_arithmetic(op: Op) -> bool:
    """Return whether the op is pointwise."""
    return type(op) in ARITHMETIC


def has_batch_form(op: Op) -> bool:
    """Return whether the op can be applied to a whole batch."""
    return is_arithmetic(op) or type(op) in BATCH_FORMS


def works_together(op: Op) -> bool:
    """Return whether the batch form gives bit-identical results for several images and for one on the CPU."""
    together = _TOGETHER.get(type(op), "never")
    if together in ("pil", "nearest") and getattr(op, "kind", None) == "pil":
        return together == "pil" or getattr(op, "interpolation", None) == "nearest"
    return together == "always"


def group_size(values: int) -> int:
    """Return how many images of ``values`` values a CPU processes at once."""
    return max(1, _AT_ONCE // max(values, 1))


def _drawn(x: Tensor, op: Any, change: BatchForm, *, one_by_one: bool) -> Tensor:
    """Apply ``change`` to the rows whose mask is set."""
    drawn = np.flatnonzero(op.mask)
    whole = len(drawn) == len(x)
    if not len(drawn):
        return x
    if one_by_one or x.device.type == "cpu":
        together = not one_by_one and x.dtype != torch.bfloat16 and works_together(op)
        return _in_groups(x, op, change, drawn, group_size(x[0].numel()) if together else 1)
    if whole:
        return change(x, op)
    at = on(drawn, x.device)
    made = change(x.index_select(0, at), op.take(drawn))
    if made.shape[1:] != x.shape[1:]:
        raise different_sizes()
    return x.index_copy_(0, at, made)


def _in_groups(x: Tensor, op: Any, change: BatchForm, drawn: npt.NDArray[np.int64], size: int) -> Tensor:
    """Apply ``change`` to the rows ``drawn``, ``size`` at a time."""
    out = x
    for start in range(0, len(drawn), size):
        some = drawn[start : start + size]
        neighbors = some[-1] - some[0] == len(some) - 1
        rows: Any = slice(int(some[0]), int(some[-1]) + 1) if neighbors else some
        part = x[rows] if neighbors else torch.from_numpy(x.numpy()[rows])  # torch takes six times as long
        made = change(part, op.take(rows))
        # A form may change the size, but of all images.
        if made.shape[1:] != out.shape[1:]:
            if start or len(drawn) < len(x):
                raise different_sizes()
            out = x.new_empty((len(x), *made.shape[1:]))
        if not neighbors:
            out.numpy()[rows] = made.numpy()
        elif made.data_ptr() != out[rows].data_ptr():  # otherwise it was changed in place
            out[rows] = made
    return out


def different_sizes() -> ValueError:
    return ValueError("a batch whose images come out in different sizes cannot be stacked")
