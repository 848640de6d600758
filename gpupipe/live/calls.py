"""Functions of torch that are written down when they are called on tensors that wait.

A function of an image [C, H, W] that an op stands for becomes an op. Others that take little time wait for the tensors
that they are called on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..transforms import ops
from . import rows
from .steps import DEEPEST, CallStep, Move, PixelStep, mapped
from .tensors import KNOWN, Member, View, WaitingTensor, same, shared, waiting_in

_MEANT = (int, float, bool, str, type(None), np.number, torch.dtype, torch.device, torch.memory_format)


def _known(value: Any) -> bool:
    """Return whether an argument can be kept with a call: a constant, a tensor that waits, or one like a mask."""
    if isinstance(value, (tuple, list)):
        return all(map(_known, value))
    if type(value) is Tensor:  # not indices, which may be too large
        known = value.dtype is torch.bool or value.dtype.is_floating_point
        return known and value.device.type == "cpu" and not value.requires_grad
    return value is Ellipsis or isinstance(value, (*_MEANT, slice, WaitingTensor))


def _as_step(value: Any) -> Any:
    """Return the step of a tensor that waits, and a copy of a true one, which a script may change."""
    if isinstance(value, WaitingTensor):
        return value.step
    return value.clone() if isinstance(value, Tensor) else value


def _as_meta(value: Any) -> Any:
    """Return a tensor without values for a tensor."""
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, Tensor) else value


def _later(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a call, which waits."""
    # A true tensor that stands for another one may change.
    waiting = list(waiting_in((args, kwargs)))
    if any("value" in vars(tensor) or tensor.step.depth >= DEEPEST for tensor in waiting):
        return NotImplemented
    if kwargs.get("out") is not None:
        return NotImplemented
    metas, named = mapped((args, kwargs), _as_meta)
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


def _new(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function whose result has memory of its own"""
    return _later(function, *args, **kwargs) if _known(args) and _known(tuple(kwargs.values())) else NotImplemented


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
    return shared(tensor, made, View(function, tuple(step.args[1:]), tuple(step.kwargs.items())))


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
    return _later(function, tensors, *args, **kwargs)


def _pixels(tensor: Any) -> PixelStep | None:
    step = tensor.step if isinstance(tensor, WaitingTensor) else None
    return step if isinstance(step, PixelStep) else None


def _op(tensor: WaitingTensor, redo: Callable[[Tensor], Tensor], moves: tuple[Move, ...]) -> WaitingTensor:
    step = tensor.step
    assert isinstance(step, PixelStep)
    size = moves[-1].size if moves else step.size
    return WaitingTensor(PixelStep(step, redo, moves, (step.shape[0], *size), step.dtype))


# ---- changes in place


@dataclass(frozen=True)
class _Memory:
    """A call that returns new memory."""

    function: Callable[..., Tensor]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def made(self, **kwargs: Any) -> Tensor:
        return self.function(*self.args, **{**dict(self.kwargs), **kwargs})


def _with_changes(x: Tensor | _Memory, *changes: Any) -> Tensor:
    """Return a tensor after changes in place, each of one of its views: (views, function, args, kwargs)."""
    x = x.made() if isinstance(x, _Memory) else x.clone()
    for views, function, args, kwargs in changes:
        part = x
        for view in views:
            part = view(part)
        function(part, *args, **dict(kwargs))
    return x


_ALIASES = {same}
for _name in ("unsqueeze", "squeeze", "permute", "transpose", "detach", "movedim", "swapaxes", "narrow", "select"):
    _ALIASES |= {getattr(of, _name) for of in (Tensor, torch)}
"""Functions that always return a view, if all indices are whole numbers and slices."""


def _always(view: View) -> bool:
    """Return whether a view certainly shares memory with its tensor: some are copies if values lie in another order."""
    if view.function is not Tensor.__getitem__:
        return view.function in _ALIASES
    (index,) = view.args
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts)


def _in_place(function: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that changes a tensor in place, with those that share its memory, and returns it"""
    if not isinstance(tensor, WaitingTensor) or not _known(args) or not _known(tuple(kwargs.values())):
        return NotImplemented
    family = tensor.family or [Member(tensor)]
    if not all(member.view is None or _always(member.view) for member in family):
        return NotImplemented
    if any(other.family is not None and other.family is tensor.family for other in waiting_in((args, kwargs))):
        return NotImplemented  # torch refuses some parts of one tensor
    of, views, root = {id(member.tensor): member for member in family}, list[View](), tensor
    while (member := of[id(root)]).of is not None and member.view is not None:
        views.insert(0, member.view)
        root = member.of
    tried = _later(_with_changes, root, (tuple(views), function, args, tuple(kwargs.items())))
    if tried is NotImplemented or (tried.shape, tried.dtype) != (root.shape, root.dtype):
        return NotImplemented
    step, before = root.step, list[Any]()
    if isinstance(step, CallStep) and step.function is _with_changes:
        step, *before = step.args
    if len(before) == _MOST_CHANGES:
        return NotImplemented
    root.step = CallStep(_with_changes, (step, *before, tried.step.args[1]), {}, tuple(root.shape), root.dtype)
    for made, original, view in family:
        if original is not None and view is not None:
            shape, dtype = tuple(made.shape), made.dtype
            made.step = CallStep(view.function, (original.step, *view.args), dict(view.kwargs), shape, dtype)
    return tensor


_MOST_CHANGES = 128
"""Changes of one tensor: those of its views are noted once more with each."""


def _set_item(function: Callable[..., Any], tensor: Any, index: Any, value: Any) -> Any:
    """``tensor[index] = value``"""
    if not isinstance(tensor, WaitingTensor) or not isinstance(value, (int, float, Tensor)):
        return NotImplemented
    same_view = View(Tensor.__getitem__, (index,))
    if any(made is value and of is tensor and view == same_view for made, of, view in tensor.family or ()):
        return None  # the end of tensor[index] *= number
    step, moves = _pixels(tensor) if tensor.family is None else None, None
    parts = index if isinstance(index, tuple) else (index,)
    plain = all(part is Ellipsis or isinstance(part, slice) for part in parts) and not isinstance(value, WaitingTensor)
    if plain and step is not None and step.dtype.is_floating_point:
        window = _window(step.shape, parts)
        if window is not None and min(window[2:]) > 0:
            moves = rows.found(rows.erase, step.size, *window, value)
    if moves is not None:
        kept = value.clone() if isinstance(value, Tensor) else value
        tensor.step = _op(tensor, lambda x: _with_changes(x, ((), function, (index, kept), ())), moves).step
        return None
    if list(waiting_in(index)) or _in_place(function, tensor, index, value) is NotImplemented:
        return NotImplemented
    return None


def _memory(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function that returns memory for images, which scripts write to: what was written may wait"""
    if (
        not _known(args)
        or not _known(tuple(kwargs.values()))
        or kwargs.keys() - {"dtype", "device", "size", "fill_value"}
    ):
        return NotImplemented
    memory = _Memory(function, args, tuple(kwargs.items()))
    try:
        meta = memory.made(device="meta")
        if function in _FACTORIES:  # another process may have another default
            memory = _Memory(function, args, (*kwargs.items(), ("dtype", meta.dtype)))
    except Exception:  # raised again
        return NotImplemented
    of_images = meta.dim() > 2 and (meta.dtype is torch.uint8 or meta.dtype.is_floating_point)
    if not of_images or torch.device(kwargs.get("device") or "cpu").type != "cpu":
        return NotImplemented
    return WaitingTensor(CallStep(_with_changes, (memory,), {}, tuple(meta.shape), meta.dtype))


def _new_memory(function: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """``tensor.new_zeros``, ``zeros_like`` and others"""
    made = NotImplemented
    if isinstance(tensor, WaitingTensor):
        made = _memory(partial(_made_like, function, tuple(tensor.shape), tensor.dtype), *args, **kwargs)
    return _like(function, tensor, *args, **kwargs) if made is NotImplemented else made


def _made_like(function: Any, shape: tuple[int, ...], dtype: torch.dtype, *args: Any, **kwargs: Any) -> Tensor:
    made: Tensor = function(torch.empty(shape, dtype=dtype, device=kwargs.get("device")), *args, **kwargs)
    return made


class Canvases(TorchFunctionMode):
    """While it is active, memory for images waits: collate functions write images of different sizes to it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in _FACTORIES and (made := _memory(func, *args, **given)) is not NotImplemented:
            return made
        return func(*args, **given)


_FACTORIES = {torch.empty, torch.full, torch.ones, torch.zeros}


# ---- parts of a batch


def _unbound(function: Callable[..., Any], tensor: Any, dim: int = 0) -> Any:
    """``unbind``, which iterating calls too: views along the first dimension"""
    if not isinstance(tensor, WaitingTensor) or dim not in (0, -tensor.dim()) or not tensor.dim():
        return NotImplemented
    return tuple(tensor[number] for number in range(len(tensor)))


def _divided(function: Callable[..., Any], tensor: Any, how: Any, dim: int = 0) -> Any:
    """``split`` and ``chunk``: views side by side"""
    if not isinstance(tensor, WaitingTensor) or not _known(how):
        return NotImplemented
    lengths = [part.shape[dim] for part in function(_as_meta(tensor), how, dim)]
    ends, before = list(accumulate(lengths)), (slice(None),) * (dim % tensor.dim())
    return tuple(tensor[(*before, slice(end - length, end))] for length, end in zip(lengths, ends, strict=True))


def _selected(function: Callable[..., Any], tensor: Any, dim: Any, index: Any) -> Any:
    """``index_select`` of numbers within the tensor"""
    known = isinstance(tensor, WaitingTensor) and _within(tensor, dim, index)
    return _later(function, tensor, dim, index) if known else NotImplemented


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
        return _later(function, tensor, index)
    if window is None:
        made = _view(function, tensor, index)
        stacked = isinstance(index, int) and isinstance(tensor.step, CallStep) and tensor.step.function is torch.stack
        if stacked and made is not NotImplemented and len(tensor.step.args) == 1 and not tensor.step.kwargs:
            made.step = tensor.step.args[0][index]  # what was stacked, as long as nothing writes to it
        return made
    moves = rows.cropped(step.size, *window)  # type: ignore[union-attr]
    if moves is None:
        return _view(function, tensor, index)

    view = View(function, (index,))
    return shared(tensor, _op(tensor, view, moves), view)


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


def _flip(function: Callable[..., Any], tensor: Any, *dims: Any, **kwargs: Any) -> Any:
    step, given = _pixels(tensor), dims[0] if dims and isinstance(dims[0], (list, tuple)) else dims
    axes = {1: "vertical", -2: "vertical", 2: "horizontal", -1: "horizontal"}
    if step is None or kwargs or len(given) != 1 or given[0] not in axes:
        return _new(function, tensor, *dims, **kwargs)
    return _op(tensor, lambda x: function(x, *dims), rows.flipped(step.size, axes[given[0]]))


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
            return _in_place(function, tensor, *args, **kwargs)
        if step is None or found is None:
            return _new(function, tensor, *args, **kwargs)
        move = Move(ops.Normalize, (), (("mean", found[0]), ("std", found[1])), step.size)
        value = args[0].clone() if isinstance(args[0], Tensor) else args[0]
        made = _op(tensor, lambda x: function(x, value), (move,))
        if not inplace:
            return made
        tensor.step = made.step
        return tensor

    return call


# ---- what keeps a tensor as it is


def _requires_grad(function: Callable[..., Any], tensor: Any, requires_grad: bool = True) -> Any:
    return NotImplemented if requires_grad else tensor


def _like(function: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that only asks a tensor for its shape and type"""
    if not isinstance(tensor, WaitingTensor) or list(waiting_in((args, kwargs))):
        return NotImplemented
    return function(torch.empty(tensor.shape, dtype=tensor.dtype), *args, **kwargs)


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
_register(_like, "new_tensor")
_register(_new_memory, "zeros_like", "ones_like", "empty_like", "full_like")
_register(_new_memory, "new_zeros", "new_ones", "new_full", "new_empty", "new")
_register(_in_place, "copy_", "fill_", "zero_", "clamp_", "clip_", "masked_fill_")
_register(_selected, "index_select")
KNOWN[Tensor.__getitem__] = _item
for _name in ("add", "sub", "mul", "div"):
    _register(_arithmetic(_name), _name)
    for _function in (f"{_name}_", f"__i{_name}__", f"__itrue{_name}__"):
        if hasattr(Tensor, _function):
            KNOWN[getattr(Tensor, _function)] = _arithmetic(_name, inplace=True)
KNOWN[Tensor.__setitem__] = _set_item
