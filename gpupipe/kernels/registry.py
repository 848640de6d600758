"""Who does what: the forms that every op has, on one image and on a batch.

A form says what its op does, and nothing else. Which images an op works on, and how those of a batch are taken out and
put back, is the same for all ops, and is done here::

    @form(ops.Invert)
    def invert(image, op, i): ...       # one image, which the op's row i is for

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
from ..transforms.ops import Call, Op
from .device_random import on
from .picture import Picture

__all__ = [
    "ARITHMETIC",
    "BATCH_FORMS",
    "FAST_FORMS",
    "FORMS",
    "LEVEL_FORMS",
    "Form",
    "Rows",
    "Together",
    "arithmetic",
    "batch_form",
    "change_of",
    "different_sizes",
    "form",
    "group_size",
    "has_batch_form",
    "is_arithmetic",
    "level_form",
    "works_together",
]

Form = Callable[[Picture, Any, int], Picture]
BatchForm = Callable[[Tensor, Any], Tensor]
Rows = Literal["drawn", "each", "all"]
Together = Literal["never", "pil", "always"]

_Form = TypeVar("_Form", bound=Form)
_BatchForm = TypeVar("_BatchForm", bound=BatchForm)
_LevelForm = TypeVar("_LevelForm", bound=Callable[..., Tensor])
_Arithmetic = TypeVar("_Arithmetic", bound=Callable[..., Tensor])

FORMS: dict[type[Op], Form] = {}
"""``FORMS[type(op)](image, op, i)``: row ``i`` of the op on one image, bit by bit as torchvision does it if the numbers
are the same. What the mask leaves out comes out as it came in."""

FAST_FORMS: dict[type[Op], Form] = {}
"""Other ways to the same within a few grey levels (see the promises of the ops), for ops whose exact form takes many
times as long."""

BATCH_FORMS: dict[type[Op], BatchForm] = {}
"""``BATCH_FORMS[type(op)](x, op)``: the op on [B, C, H, W] on any device. It may write to ``x``, and returns it or
another tensor; what the mask leaves out comes out as it came in."""

LEVEL_FORMS: dict[type[Op], Callable[[Tensor, Any], Tensor]] = {}
"""``LEVEL_FORMS[type(op)](values, op)``: an op of kind ``"pil"`` on f32[n, C, H, W], bytes in float32, which it may
write to. What comes out is in 0..255, and becomes bytes when its fractions are cut off. Several of such ops one after
another need not go through bytes in between."""

ARITHMETIC: dict[type[Op], Callable[..., Tensor]] = {}
"""What works on single values, all alike, and so commutes with moving pixels: ``f(x, op, layout, inplace)`` on
[..., C, H, W]. ``layout`` is the memory format to change to if ``x`` is copied in any case, ``inplace`` says that
``x`` may be written to."""


_TOGETHER: dict[type[Op], Together] = {}

_AT_ONCE = 1 << 19
"""Values of images that are worked on at once. With more, what is computed of them would leave the cache; with fewer,
calls cost more than the work (``benchmarks/small_loaders.py``)."""


def form(kind: type[Op], *, exact: bool = True) -> Callable[[_Form], _Form]:
    """Register what an op does to one image: ``function(image, op, i)``, called if the mask is set for ``i``.

    Args:
        exact: whether it is bit by bit what torchvision does; otherwise it goes to :data:`FAST_FORMS`.
    """

    def register(function: _Form) -> _Form:
        @wraps(function)
        def masked(image: Picture, op: Any, i: int) -> Picture:
            return image if op.passes(i) else function(image, op, i)

        (FORMS if exact else FAST_FORMS)[kind] = masked
        return function

    return register


def batch_form(
    kind: type[Op], *, rows: Rows = "drawn", together: Together = "never"
) -> Callable[[_BatchForm], _BatchForm]:
    """Register what an op does to a batch: ``function(x, op)``, which may write to ``x``.

    Args:
        rows: which images ``function`` gets. ``"drawn"``: those that the mask selects, on a GPU at once, on the CPU
            see ``together``. ``"each"``: the same, but one after another on every device. ``"all"``: the whole batch;
            for ops that have no mask, or need all of it.
        together: whether ``function`` makes the same bits of several images on the CPU as of one: ``"always"``, only
            if the op is of PIL images, or ``"never"``. If so, it gets as many small images as the cache holds.
    """

    def register(function: _BatchForm) -> _BatchForm:
        @wraps(function)
        def masked(x: Tensor, op: Any) -> Tensor:
            return _drawn(x, op, function, one_by_one=rows == "each")

        BATCH_FORMS[kind] = function if rows == "all" else masked
        _TOGETHER[kind] = together
        return function

    return register


def level_form(kind: type[Op]) -> Callable[[_LevelForm], _LevelForm]:
    """Register what an op does to bytes in float32, see :data:`LEVEL_FORMS`."""

    def register(function: _LevelForm) -> _LevelForm:
        LEVEL_FORMS[kind] = function
        return function

    return register


def change_of(op: Op) -> BatchForm:
    """What :data:`BATCH_FORMS` has, of images that all drew the op."""
    masked = BATCH_FORMS.get(type(op))
    if masked is None:
        raise PipelineError(f"{type(op).__name__} has no form for a whole batch")
    change: BatchForm = getattr(masked, "__wrapped__", masked)
    return change


def arithmetic(kind: type[Op]) -> Callable[[_Arithmetic], _Arithmetic]:
    """Register an op on single values, see :data:`ARITHMETIC`."""

    def register(function: _Arithmetic) -> _Arithmetic:
        ARITHMETIC[kind] = function
        return function

    return register


def is_arithmetic(op: Op) -> bool:
    """Whether it works on single values, all alike."""
    return type(op) in ARITHMETIC


def has_batch_form(op: Op) -> bool:
    """Whether it can be done to a whole batch; of functions only those that were made for one."""
    return is_arithmetic(op) or (type(op) in BATCH_FORMS and (not isinstance(op, Call) or op.batch))


def works_together(op: Op) -> bool:
    """Whether its batch form makes the same bits of several images on the CPU as of one."""
    together = _TOGETHER.get(type(op), "never")
    return together == "always" or (together == "pil" and getattr(op, "kind", None) == "pil")


def group_size(values: int) -> int:
    """How many images of so many values a CPU works on at once."""
    return max(1, _AT_ONCE // max(values, 1))


def _drawn(x: Tensor, op: Any, change: BatchForm, *, one_by_one: bool) -> Tensor:
    """``change`` done to the rows whose mask is set."""
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
    """``change`` done to the rows ``drawn``, ``size`` of them at once."""
    out = x
    for start in range(0, len(drawn), size):
        some = drawn[start : start + size]
        neighbours = some[-1] - some[0] == len(some) - 1
        rows: Any = slice(int(some[0]), int(some[-1]) + 1) if neighbours else some
        part = x[rows] if neighbours else torch.from_numpy(x.numpy()[rows])  # torch needs six times as long
        made = change(part, op.take(rows))
        # A form may change the size, if it does so to all images.
        if made.shape[1:] != out.shape[1:]:
            if start or len(drawn) < len(x):
                raise different_sizes()
            out = x.new_empty((len(x), *made.shape[1:]))
        if not neighbours:
            out.numpy()[rows] = made.numpy()
        elif made.data_ptr() != out[rows].data_ptr():  # else it was changed where it lies
            out[rows] = made
    return out


def different_sizes() -> ValueError:
    return ValueError("a batch whose images come out in different sizes cannot be stacked")
