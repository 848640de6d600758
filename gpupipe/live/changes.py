"""Changes of tensors that wait in place, with all that share their memory, and memory that scripts write images to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .later import can_keep, later, like
from .steps import CallStep
from .tensors import Alias, Member, WaitingTensor, same, waiting_in


@dataclass(frozen=True)
class _Memory:
    """A call that returns new memory."""

    function: Callable[..., Tensor]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def made(self, **kwargs: Any) -> Tensor:
        return self.function(*self.args, **{**dict(self.kwargs), **kwargs})


def with_changes(x: Tensor | _Memory, *changes: Any) -> Tensor:
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


def _always(view: Alias) -> bool:
    """Return whether a view certainly shares memory with its tensor: some are copies if values lie in another order."""
    if view.function is not Tensor.__getitem__:
        return view.function in _ALIASES
    (index,) = view.args
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts)


def in_place(function: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that changes a tensor in place, with those that share its memory, and returns it"""
    if not isinstance(tensor, WaitingTensor) or not can_keep(args) or not can_keep(tuple(kwargs.values())):
        return NotImplemented
    family = tensor.family or [Member(tensor)]
    if not all(member.view is None or _always(member.view) for member in family):
        return NotImplemented
    if any(other.family is not None and other.family is tensor.family for other in waiting_in((args, kwargs))):
        return NotImplemented  # torch refuses some parts of one tensor
    of, views, root = {id(member.tensor): member for member in family}, list[Alias](), tensor
    while (member := of[id(root)]).of is not None and member.view is not None:
        views.insert(0, member.view)
        root = member.of
    tried = later(with_changes, root, (tuple(views), function, args, tuple(kwargs.items())))
    if tried is NotImplemented or (tried.shape, tried.dtype) != (root.shape, root.dtype):
        return NotImplemented
    step, before = root.step, list[Any]()
    if isinstance(step, CallStep) and step.function is with_changes:
        step, *before = step.args
    if len(before) == _MOST_CHANGES:
        return NotImplemented
    root.step = CallStep(with_changes, (step, *before, tried.step.args[1]), {}, tuple(root.shape), root.dtype)
    for made, original, view in family:
        if original is not None and view is not None:
            shape, dtype = tuple(made.shape), made.dtype
            made.step = CallStep(view.function, (original.step, *view.args), dict(view.kwargs), shape, dtype)
    return tensor


_MOST_CHANGES = 128
"""Changes of one tensor: those of its views are noted once more with each."""


def _memory(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function that returns memory for images, which scripts write to: what was written may wait"""
    if (
        not can_keep(args)
        or not can_keep(tuple(kwargs.values()))
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
    return WaitingTensor(CallStep(with_changes, (memory,), {}, tuple(meta.shape), meta.dtype))


def new_memory(function: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """``tensor.new_zeros``, ``zeros_like`` and others"""
    made = NotImplemented
    if isinstance(tensor, WaitingTensor):
        made = _memory(partial(_made_like, function, tuple(tensor.shape), tensor.dtype), *args, **kwargs)
    return like(function, tensor, *args, **kwargs) if made is NotImplemented else made


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
