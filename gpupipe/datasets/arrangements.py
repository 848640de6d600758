"""torch functions that rearrange tensors regardless of their values, for single samples and for whole batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

Read = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], tuple[Any, ...]] | None]


@dataclass(frozen=True)
class Arrangement:
    """One of torch's functions.

    Attributes:
        functions: what scripts call.
        read: converts the arguments of a call to (tensors, other arguments), or ``None`` if it does not understand
            them.
        sample: the function, given a list of tensors of one sample and the other arguments.
        batch: the function for tensors with an additional leading dimension.
        makes_values: whether the result is new memory with values computed from those of the argument.
    """

    functions: frozenset[Any]
    read: Read
    sample: Callable[..., Tensor]
    batch: Callable[..., Tensor]
    makes_values: bool = False


def _of_several(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Read ``(tensors, dim=0)``."""
    tensors, *more = args or (kwargs.pop("tensors", None),)
    dim = more[0] if more else kwargs.get("dim", 0)
    if not isinstance(tensors, (list, tuple)) or not tensors or type(dim) is not int or kwargs.keys() - {"dim"}:
        return None
    return tuple(tensors), (dim,)


def _of_one(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Read ``(tensor, dim)``."""
    if len(args) == 1 and kwargs.keys() == {"dim"}:
        args = (args[0], kwargs["dim"])
    elif kwargs:
        return None
    return ((args[0],), (args[1],)) if len(args) == 2 and type(args[1]) is int else None


def _with_integers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Read ``(tensor, 1, 2)`` or ``(tensor, [1, 2])``."""
    if len(args) == 1 and kwargs.keys() == {"dims"}:
        args = (args[0], kwargs["dims"])
    elif kwargs:
        return None
    integers = tuple(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    return ((args[0],), integers) if integers and all(type(dim) is int for dim in integers) else None


@dataclass(frozen=True)
class Constant:
    """Values that a script combines with every image, such as the means of its channels."""

    values: tuple[float, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Constant | None:
        """Return the values of a tensor; ``None`` if it is not a few numbers for each image."""
        few = tensor.numel() <= _FEW and tensor.ndim <= 3 and tensor.device.type == "cpu" and not tensor.requires_grad
        if not few or tensor.dtype not in (torch.float32, torch.float64):
            return None
        return cls(tuple(tensor.flatten().tolist()), tuple(tensor.shape), tensor.dtype)

    def on(self, device: torch.device) -> Tensor:
        return torch.tensor(self.values, dtype=self.dtype, device=device).view(self.shape)


_FEW = 16


def _with_number(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Read ``(tensor, number)``, or the same with a tensor of a few numbers."""
    if kwargs or len(args) != 2 or isinstance(args[1], bool):
        return None
    tensor, value = args
    if isinstance(value, Tensor) and isinstance(tensor, Tensor):
        constant = Constant.of(value) if type(value) is Tensor else None
        # A constant with more dimensions would add them to the image.
        return ((tensor,), (constant,)) if constant is not None and len(constant.shape) <= tensor.dim() else None
    return ((tensor,), (value,)) if isinstance(value, (int, float)) else None


def _alone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Read ``(tensor)``."""
    return None if kwargs or len(args) != 1 else ((args[0],), ())


def _joined(function: Any, parts: Sequence[Tensor], dim: int, *, further: int) -> Tensor:
    # A batch has its own dimension in front, which shifts numbers from the front and not those from the end.
    joined: Tensor = function(list(parts), dim=dim + further if dim >= 0 else dim)
    return joined


def _unsqueezed(parts: Sequence[Tensor], dim: int, *, further: int) -> Tensor:
    return parts[0].unsqueeze(dim + further if dim >= 0 else dim)


def _squeezed(parts: Sequence[Tensor], dim: int, *, further: int) -> Tensor:
    return parts[0].squeeze(dim + further if dim >= 0 else dim)


def _permuted(parts: Sequence[Tensor], *dims: int, further: int) -> Tensor:
    kept = [dim % len(dims) + further for dim in dims]
    return parts[0].permute(*range(further), *kept)


def _transposed(parts: Sequence[Tensor], *dims: int, further: int) -> Tensor:
    return parts[0].transpose(*_shifted(dims, further))


def _flipped(parts: Sequence[Tensor], *dims: int, further: int) -> Tensor:
    return parts[0].flip(_shifted(dims, further))


def _shifted(dims: Sequence[int], further: int) -> list[int]:
    return [dim + further if dim >= 0 else dim for dim in dims]


def _by_dimension(functions: set[Any], read: Read, make: Callable[..., Tensor]) -> Arrangement:
    return Arrangement(frozenset(functions), read, partial(make, further=0), partial(make, further=1))


def _by_value(functions: set[Any], read: Read, make: Callable[..., Tensor]) -> Arrangement:
    """Return an arrangement that treats every value alike."""

    def made(parts: Sequence[Tensor], *arguments: Any) -> Tensor:
        known = [x.on(parts[0].device) if isinstance(x, Constant) else x for x in arguments]
        return make(parts[0], *known)

    return Arrangement(frozenset(functions), read, made, made, makes_values=True)


ARRANGEMENTS: dict[str, Arrangement] = {
    "stack": _by_dimension({torch.stack}, _of_several, partial(_joined, torch.stack)),
    "cat": _by_dimension({torch.cat, torch.concat, torch.concatenate}, _of_several, partial(_joined, torch.cat)),
    "unsqueeze": _by_dimension({torch.unsqueeze, Tensor.unsqueeze}, _of_one, _unsqueezed),
    "squeeze": _by_dimension({torch.squeeze, Tensor.squeeze}, _of_one, _squeezed),
    "permute": _by_dimension({torch.permute, Tensor.permute}, _with_integers, _permuted),
    "transpose": _by_dimension({torch.transpose, Tensor.transpose}, _with_integers, _transposed),
    "flip": _by_dimension({torch.flip, Tensor.flip}, _with_integers, _flipped),
    "to": _by_value(set(), _alone, lambda x, dtype: x.to(dtype)),
    "add": _by_value({torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}, _with_number, torch.add),
    "sub": _by_value({torch.sub, Tensor.sub, Tensor.__sub__}, _with_number, torch.sub),
    "rsub": _by_value({Tensor.__rsub__}, _with_number, lambda x, number: number - x),
    "mul": _by_value({torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__}, _with_number, torch.mul),
    "div": _by_value({torch.div, Tensor.div, Tensor.__truediv__}, _with_number, torch.div),
    "neg": _by_value({torch.neg, Tensor.neg, Tensor.__neg__}, _alone, torch.neg),
}
"""Arrangements by name."""
