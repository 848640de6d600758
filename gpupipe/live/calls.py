"""Functions of torch that are written down when they are called on tensors that wait.

A function of an image [C, H, W] that an op stands for becomes an op. Others that take little time wait for the tensors
that they are called on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..transforms import ops
from . import rows
from .changes import in_place, new_memory, with_changes
from .later import as_meta, can_keep, later, like
from .steps import CallStep, Move, PixelStep
from .tensors import KNOWN, Alias, WaitingTensor, shared, waiting_in


def _new(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function whose result has memory of its own"""
    return later(function, *args, **kwargs) if can_keep(args) and can_keep(tuple(kwargs.values())) else NotImplemented


def _of_floats(function: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that refuses bytes"""
    floats = isinstance(tensor, Tensor) and tensor.dtype.is_floating_point
    return _new(function, tensor, *args, **kwargs) if floats else NotImplemented


def _view(function: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A function whose result may share memory with its first argument"""
    if not isinstance(tensor, WaitingTensor) or list(waiting_in((args, kwargs))):
        return NotImplemented
    made = _new(function, tensor, *args, **kwargs)
    if made is NotImplemented or made is tensor:
        return made
    step = made.step
    return shared(tensor, made, Alias(function, tuple(step.args[1:]), tuple(step.kwargs.items())))


def _to(function: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """``to`` a type, or to the CPU, where tensors that wait seem to be"""
    args = tuple(other.dtype if _is_here(other) and isinstance(other, Tensor) else other for other in args)
    args = tuple(other for other in args if not _is_here(other))
    kwargs = {name: value for name, value in kwargs.items() if name != "device" or not _is_here(value)}
    return _view(Tensor.to, tensor, *args, **kwargs) if args or kwargs else tensor


def _is_here(value: Any) -> bool:
    """Return whether a value names the CPU, or is a tensor there."""
    if isinstance(value, Tensor):
        return value.device.type == "cpu"
    return isinstance(value, (str, torch.device)) and torch.device(value).type == "cpu"


def _typed(function: Callable[..., Any], tensor: Any, kind: Any = None) -> Any:
    """``type``, also with names and classes such as ``"torch.FloatTensor"``"""
    if kind is None:
        return torch.empty(0, dtype=tensor.dtype).type()
    name = kind if isinstance(kind, str) else f"torch.{getattr(kind, '__name__', '')}"
    of = getattr(torch, name.removeprefix("torch."), None)
    if isinstance(kind, str) or of is kind:
        kind = getattr(of, "dtype", None)
    return _view(Tensor.to, tensor, kind) if isinstance(kind, torch.dtype) else NotImplemented


def _joined(function: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """``stack`` and ``cat``, also of tensors that wait and others"""
    if kwargs.get("out") is not None or not isinstance(tensors, (list, tuple)):
        return NotImplemented
    steps = [tensor.step for tensor in tensors if isinstance(tensor, WaitingTensor) and "value" not in vars(tensor)]
    forms = {(step.shape, step.dtype) for step in steps}
    if function is torch.stack and len(steps) == len(tensors) and len(forms) == 1 and args in ((), (0,)) and not kwargs:
        ((shape, dtype),) = forms
        return WaitingTensor(CallStep(function, (steps,), {}, (len(steps), *shape), dtype))
    if not all(isinstance(tensor, Tensor) and tensor.device.type == "cpu" for tensor in tensors):
        return NotImplemented
    return later(function, tensors, *args, **kwargs)


def _pixels(tensor: Any) -> PixelStep | None:
    step = tensor.step if isinstance(tensor, WaitingTensor) else None
    return step if isinstance(step, PixelStep) else None


# ---- parts of a batch


def _unbound(function: Callable[..., Any], tensor: Any, dim: int = 0) -> Any:
    """``unbind``, which iterating calls too: views along the first dimension"""
    if not isinstance(tensor, WaitingTensor) or dim not in (0, -tensor.dim()) or not tensor.dim():
        return NotImplemented
    return tuple(tensor[number] for number in range(len(tensor)))


def _divided(function: Callable[..., Any], tensor: Any, how: Any, dim: int = 0) -> Any:
    """``split`` and ``chunk``: views side by side"""
    if not isinstance(tensor, WaitingTensor) or not can_keep(how):
        return NotImplemented
    lengths = [part.shape[dim] for part in function(as_meta(tensor), how, dim)]
    ends, before = list(accumulate(lengths)), (slice(None),) * (dim % tensor.dim())
    return tuple(tensor[(*before, slice(end - length, end))] for length, end in zip(lengths, ends, strict=True))


def _selected(function: Callable[..., Any], tensor: Any, dim: Any, index: Any) -> Any:
    """``index_select`` of numbers within the tensor"""
    known = isinstance(tensor, WaitingTensor) and _within(tensor, dim, index)
    return later(function, tensor, dim, index) if known else NotImplemented


def _within(tensor: Tensor, dim: int, index: Any) -> bool:
    """Return whether an index consists of whole numbers within a dimension."""
    if type(index) is not Tensor or index.dtype is not torch.int64 or index.dim() != 1 or not index.numel():
        return False
    return int(index.min()) >= 0 and int(index.max()) < tensor.shape[dim]


# ---- windows and flips


def _item(function: Callable[..., Any], tensor: Any, index: Any) -> Any:
    """``tensor[index]``: a window of an image is a crop"""
    step, window = _pixels(tensor), None
    parts = index if isinstance(index, tuple) else (index,)
    if step is not None and len(parts) <= 3 and all(part is Ellipsis or isinstance(part, slice) for part in parts):
        window = _window(step.shape, parts)
    if window is None and isinstance(tensor, WaitingTensor) and tensor.dim() and _within(tensor, 0, index):
        return later(function, tensor, index)
    if window is None:
        made = _view(function, tensor, index)
        stacked = isinstance(index, int) and isinstance(tensor.step, CallStep) and tensor.step.function is torch.stack
        if stacked and made is not NotImplemented and len(tensor.step.args) == 1 and not tensor.step.kwargs:
            made.step = tensor.step.args[0][index]  # what was stacked, as long as nothing writes to it
        return made
    assert step is not None  # as its window
    moves = rows.cropped(step.size, *window)
    if moves is None:
        return _view(function, tensor, index)

    view = Alias(function, (index,))
    return shared(tensor, WaitingTensor(step.then(view, moves)), view)


def _window(shape: tuple[int, ...], parts: tuple[Any, ...]) -> tuple[int, int, int, int] | None:
    """Return top, left, height and width of slices of [C, H, W] that take all channels."""
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts = (*parts[:at], *[slice(None)] * (4 - len(parts)), *parts[at + 1 :])
    parts = (*parts, *[slice(None)] * (3 - len(parts)))
    if len(parts) != 3 or any(not isinstance(part, slice) or part.step not in (None, 1) for part in parts):
        return None
    (first, last, _), (top, bottom, _), (left, right, _) = (p.indices(n) for p, n in zip(parts, shape, strict=True))
    return (top, left, bottom - top, right - left) if (first, last) == (0, shape[0]) else None


def _set_item(function: Callable[..., Any], tensor: Any, index: Any, value: Any) -> Any:
    """``tensor[index] = value``"""
    if not isinstance(tensor, WaitingTensor) or not isinstance(value, (int, float, Tensor)):
        return NotImplemented
    same_view = Alias(Tensor.__getitem__, (index,))
    if any(made is value and of is tensor and view == same_view for made, of, view in tensor.family or ()):
        return None  # the end of tensor[index] *= number
    step, moves = _pixels(tensor) if tensor.family is None else None, None
    parts = index if isinstance(index, tuple) else (index,)
    plain = all(part is Ellipsis or isinstance(part, slice) for part in parts) and not isinstance(value, WaitingTensor)
    if plain and step is not None and step.dtype.is_floating_point:
        window = _window(step.shape, parts)
        if window is not None and min(window[2:]) > 0:
            moves = rows.found(rows.erase, step.size, *window, value)
    if step is not None and moves is not None:
        kept = value.clone() if isinstance(value, Tensor) else value
        tensor.step = step.then(lambda x: with_changes(x, ((), function, (index, kept), ())), moves)
        return None
    if list(waiting_in(index)) or in_place(function, tensor, index, value) is NotImplemented:
        return NotImplemented
    return None


def _flip(function: Callable[..., Any], tensor: Any, *dims: Any, **kwargs: Any) -> Any:
    step, given = _pixels(tensor), dims[0] if dims and isinstance(dims[0], (list, tuple)) else dims
    axes = {1: "vertical", -2: "vertical", 2: "horizontal", -1: "horizontal"}
    if step is None or kwargs or len(given) != 1 or given[0] not in axes:
        return _new(function, tensor, *dims, **kwargs)
    return WaitingTensor(step.then(lambda x: function(x, *dims), rows.flipped(step.size, axes[given[0]])))


# ---- arithmetic


def _affine(name: str, value: Any, step: PixelStep) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return (mean, std) with which ``(x - mean) / std`` is the arithmetic with a number or a value per channel."""
    channels, _, _ = step.shape
    if isinstance(value, Tensor):
        if value.dim() and torch.promote_types(step.dtype, value.dtype) is not step.dtype:
            return None  # the result has another type
        whole = value.dim() <= 3 and tuple(value.shape[-2:]) in ((1, 1), (1,), ()) and value.numel() in (1, channels)
        if type(value) is not Tensor or not whole or (value.numel() > 1 and tuple(value.shape) != (channels, 1, 1)):
            return None
        numbers = tuple(map(float, value.flatten().tolist()))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        numbers = (float(value),)
    else:
        return None
    if name == "div" and 0.0 in numbers:
        return None
    if name == "mul" and any(abs(math.frexp(number)[0]) != 0.5 for number in numbers):
        return None  # dividing by 1 / x is multiplying by x only for powers of two
    zero, one = (0.0,), (1.0,)
    return {
        "add": (tuple(-number for number in numbers), one),
        "sub": (numbers, one),
        "mul": (zero, tuple(1 / number for number in numbers)),
        "div": (zero, numbers),
    }[name]


def _arithmetic(name: str, *, inplace: bool = False) -> Callable[..., Any]:
    """``add``, ``sub``, ``mul`` and ``div`` of floats, and ``div`` of bytes"""

    def call(function: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, WaitingTensor):
            return NotImplemented
        floats = tensor.dtype.is_floating_point
        if not floats and name != "div":  # a level more or less could be 255 more or less
            return NotImplemented
        step = _pixels(tensor) if floats and len(args) == 1 and not kwargs else None
        found = _affine(name, args[0], step) if step is not None else None
        if inplace and (found is None or tensor.family is not None):
            return in_place(function, tensor, *args, **kwargs)
        if step is None or found is None:
            return _new(function, tensor, *args, **kwargs)
        move = Move(ops.Normalize, (), (("mean", found[0]), ("std", found[1])), step.size)
        value = args[0].clone() if isinstance(args[0], Tensor) else args[0]
        made = step.then(lambda x: function(x, value), (move,))
        if not inplace:
            return WaitingTensor(made)
        tensor.step = made
        return tensor

    return call


# ---- what keeps a tensor as it is


def _requires_grad(function: Callable[..., Any], tensor: Any, requires_grad: bool = True) -> Any:
    return NotImplemented if requires_grad else tensor


def _as(function: Callable[..., Any], tensor: Any, other: Any) -> Any:
    """``expand_as`` and others, which ask the second tensor for its shape or type"""
    if isinstance(tensor, WaitingTensor) and function is Tensor.type_as:
        return _to(function, tensor, other)
    if isinstance(tensor, WaitingTensor) or not isinstance(other, WaitingTensor):
        return NotImplemented
    return function(tensor, torch.empty(other.shape, dtype=other.dtype))


def _register(call: Callable[..., Any], *names: str) -> None:
    """Register functions by name, as methods of tensors and as functions of torch."""
    for of in (Tensor, torch):
        KNOWN.update({found: call for name in names if callable(found := getattr(of, name, None))})


_register(_joined, "stack", "cat", "concat")
_register(_view, "unsqueeze", "squeeze", "permute", "transpose", "view", "reshape", "flatten", "expand", "detach")
_register(_view, "contiguous", "float", "half", "double", "bfloat16", "byte", "int", "long", "movedim", "swapaxes")
_register(_view, "unflatten", "unfold", "narrow", "select")
_register(_to, "to", "cpu")
_register(_typed, "type")
KNOWN[Tensor.data.__get__] = lambda function, tensor: _view(Tensor.detach, tensor)  # type: ignore[attr-defined]
_register(_new, "clone", "repeat", "neg", "clamp", "clip", "roll", "rot90")
KNOWN[torch.nn.functional.pad] = _new
_register(_new, "pow", "__pow__", "square", "sqrt", "abs", "__rsub__", "rsub", "__rtruediv__", "__rdiv__")
_register(_of_floats, "lerp", "round", "floor", "ceil", "trunc")
_register(_flip, "flip")
_register(_unbound, "unbind")
_register(_divided, "split", "chunk")
_register(_requires_grad, "requires_grad_")
_register(_as, "expand_as", "view_as", "reshape_as", "type_as", "resize_as_")
_register(like, "new_tensor")
_register(new_memory, "zeros_like", "ones_like", "empty_like", "full_like")
_register(new_memory, "new_zeros", "new_ones", "new_full", "new_empty", "new")
_register(in_place, "copy_", "fill_", "zero_", "clamp_", "clip_", "masked_fill_")
_register(_selected, "index_select")
KNOWN[Tensor.__getitem__] = _item
for _name in ("add", "sub", "mul", "div"):
    _register(_arithmetic(_name), _name)
    for _function in (f"{_name}_", f"__i{_name}__", f"__itrue{_name}__"):
        if hasattr(Tensor, _function):
            KNOWN[getattr(Tensor, _function)] = _arithmetic(_name, inplace=True)
KNOWN[Tensor.__setitem__] = _set_item
