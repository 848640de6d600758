"""PIL images and tensors whose pixels an engine computes later, or the reference as soon as code looks at them.

A :class:`PendingTensor` is a ``torch.Tensor``, and a :class:`PendingImage` is a PIL image. Both answer questions about
size and type without any pixels. When code asks for values, the reference computes the sample with the numbers of the
plan. So user code never notices that anything is missing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils import _pytree

from ..datasets.arrangements import ARRANGEMENTS
from ..datasets.sample_form import kept, tv_image
from ..transforms.ops import Op
from .steps import TO_IMAGE, TO_TENSOR, Arranged, Copied, Pending, Step, current_call, open_step, written_step
from .tensor_moves import MOVES


def pending_step(made: Any) -> Step | None:
    """Return the step of a pending image; ``None`` for anything else, such as several views."""
    step = made.pending if isinstance(made, (PendingImage, PendingTensor)) else None
    return step if isinstance(step, Step) else None


def settled(tree: Any) -> Any:
    """Compute all values of a sample."""
    return kept(settled_part, tree)


def exact(part: Any) -> Any:
    """Compute the value of a part of a sample that the script's own code may look at; see :attr:`Pending.is_exact`."""
    is_pending = isinstance(part, (PendingTensor, PendingImage))
    return settled_part(part) if is_pending and part.pending.is_exact else part


def settled_part(part: Any) -> Any:
    """Compute the value of one part of a sample, if it is pending."""
    if isinstance(part, PendingTensor):
        return part.pending.settled()
    if isinstance(part, PendingImage):
        # Computed first: what the copy then reads does not count as a look of the script's code.
        part.pending.settled()
        return Image.Image.copy(part)
    return part


# ---- PIL images


class PendingImage(Image.Image):
    """A PIL image in mode RGB or L whose pixels are computed at their first use."""

    def __init__(self, pending: Step):
        super().__init__()
        self.pending = pending

    @property
    def is_loaded(self) -> bool:
        return self._im is not None

    @property
    def is_open(self) -> bool:
        """Whether an engine may go on with it."""
        return self._im is None and not self.pending.is_computed

    def _settle(self) -> None:
        (channels, height, width), _ = self.pending.output()
        self._mode, self._size = "L" if channels == 1 else "RGB", (width, height)

    @property
    def size(self) -> tuple[int, int]:
        if self._size == (0, 0):
            self._settle()
        return self._size

    @property
    def mode(self) -> str:
        if not self._mode:
            self._settle()
        return self._mode

    @property
    def im(self) -> Any:
        if self._im is None:
            # Other images share this pending result, and the script may write to this one.
            self._im = self.pending.value("its pixels").im.copy()
            self._settle()
        return Image.Image.im.fget(self)  # type: ignore[attr-defined]

    @im.setter
    def im(self, im: Any) -> None:
        self._im = im

    def load(self) -> Any:
        assert self.im is not None
        return super().load()

    def copy(self) -> Image.Image:
        return PendingImage(self.pending) if self._im is None else super().copy()

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        if mode == self.mode and not args and not kwargs:
            return self.copy()
        self.load()
        return super().convert(mode, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.load()
        return _as_it_is, (super().copy(),)

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


def _as_it_is(image: Image.Image) -> Image.Image:
    return image


# ---- tensors

_CPU = torch.device("cpu")


class PendingTensor(Tensor):
    """A tensor whose values are computed at their first use. Shape, data type and device are known before."""

    pending: Pending

    @staticmethod
    def __new__(cls, pending: Pending) -> PendingTensor:
        # The size of the wrapper means nothing, because every question goes through __torch_function__.
        made: PendingTensor = torch.Tensor._make_wrapper_subclass(cls, (0,), dtype=pending.dtype, device=_CPU)
        made.pending = pending
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # First what needs no values, then what an engine can do later, and only then the values.
        if (known := _KNOWN.get(func)) is not None and args and not args[0].pending.is_computed:
            return known(args[0].pending, *args[1:], **kwargs)
        if (made := _carried(func, args, kwargs)) is not NotImplemented:
            return made
        name = getattr(func, "__name__", str(func))
        real = _pytree.tree_map(lambda x: x.pending.value(name) if isinstance(x, PendingTensor) else x, (args, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*real[0], **real[1])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        # Functions that skip __torch_function__, such as torch.tensor(), arrive here.
        if func is torch.ops.aten.detach.default and not args[0].pending.is_computed:
            return PendingTensor(args[0].pending)  # torch.tensor(x) begins like this
        if func is torch.ops.aten._to_copy.default and _is_copy(args[0].pending, kwargs or {}):
            return PendingTensor(Copied(args[0].pending))
        real = _pytree.tree_map(
            lambda x: x.pending.value(str(func)) if isinstance(x, PendingTensor) else x, (args, kwargs or {})
        )
        return func(*real[0], **real[1])

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.pending.value("pickle").__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.pending.value("deepcopy").clone()

    def as_subclass(self, cls: Any) -> Any:
        made = _as_image(self, cls)
        return self.pending.value("as_subclass").as_subclass(cls) if made is NotImplemented else made

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        return self.pending.value("numpy").numpy(*args, **kwargs)


class PendingTVImage(PendingTensor):
    """A pending tensor that stands for torchvision's ``Image``."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return tv_image()  # type: ignore[no-any-return]


def pending_tensor(step: Step) -> PendingTensor:
    return PendingTVImage(step) if step.kind == "image" else PendingTensor(step)


def _is_copy(pending: Pending, wanted: dict[str, Any]) -> bool:
    """Tell whether ``torch.tensor(x)`` is a copy."""
    others = wanted.keys() - {"dtype", "device", "layout", "pin_memory", "non_blocking", "memory_format"}
    is_plain = not others and str(wanted.get("device", "cpu")) == "cpu" and not wanted.get("pin_memory")
    is_same = wanted.get("dtype", pending.dtype) is pending.dtype
    return is_plain and is_same and not pending.is_computed


def _shape(p: Pending) -> torch.Size:
    return torch.Size(p.output()[0])


def _item_bytes(p: Pending) -> int:
    return p.output()[1].itemsize


def _getter(name: str) -> Any:
    """Return the function that torch calls to read an attribute."""
    return getattr(Tensor, name).__get__


_KNOWN: dict[Any, Callable[..., Any]] = {
    _getter("shape"): _shape,
    Tensor.size: lambda p, dim=None: _shape(p) if dim is None else _shape(p)[dim],
    _getter("ndim"): lambda p: len(_shape(p)),
    Tensor.dim: lambda p: len(_shape(p)),
    Tensor.numel: lambda p: _shape(p).numel(),
    Tensor.nelement: lambda p: _shape(p).numel(),
    torch.numel: lambda p: _shape(p).numel(),
    Tensor.__len__: lambda p: _shape(p)[0],
    _getter("dtype"): lambda p: p.dtype,
    _getter("device"): lambda p: torch.device("cpu"),
    _getter("layout"): lambda p: torch.strided,
    _getter("requires_grad"): lambda p: False,
    _getter("is_cuda"): lambda p: False,
    _getter("is_sparse"): lambda p: False,
    _getter("is_leaf"): lambda p: True,
    _getter("grad"): lambda p: None,
    Tensor.is_floating_point: lambda p: p.dtype.is_floating_point,
    torch.is_floating_point: lambda p: p.dtype.is_floating_point,
    Tensor.is_complex: lambda p: False,
    torch.is_complex: lambda p: False,
    Tensor.element_size: _item_bytes,
    _getter("itemsize"): _item_bytes,
    _getter("nbytes"): lambda p: _shape(p).numel() * _item_bytes(p),
    Tensor.is_contiguous: lambda p, **kwargs: True,
    Tensor.get_device: lambda p: -1,
}
"""Answers that need no values, by function."""


def _carried(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the pending result of a torch function if an engine can apply the function to a batch just as well;
    otherwise ``NotImplemented``."""
    if func in _SAME | _COPIES and len(args) == 1 and not kwargs and not args[0].pending.is_computed:
        return PendingTensor(Copied(args[0].pending)) if func in _COPIES else _shared(args[0].pending)
    if func is Tensor.requires_grad_ and args[1:] == (False,) and not kwargs:
        return args[0]
    if func in _VIEWS and not kwargs and _is_as_large(*args):
        return _shared(args[0].pending)
    if func in MOVES and args and isinstance(args[0], PendingTensor) and len(_shape(args[0].pending)) == 3:
        op = MOVES[func](*args[1:], **kwargs)
        if op is not None:
            return _moved(args[0], op, lambda value: func(value, *args[1:], **kwargs))
    if func in _IN_PLACE:
        return _in_place(_IN_PLACE[func], *args, **kwargs)
    if func in _CASTS and not kwargs.keys() - {"dtype"}:
        return _cast(_CASTS[func], *args, *kwargs.values())
    if func in _VALUES_IN_PLACE:
        return _in_place(_VALUES_IN_PLACE[func], *args, **kwargs) if _may_write(args[0]) else NotImplemented
    if func is Tensor.__getitem__ and args[1] is None:
        # x[None] is x.unsqueeze(0).
        func, args = Tensor.unsqueeze, (args[0], 0)
    return _of_arrangement(func, args, kwargs)


def _of_arrangement(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for name, arrangement in ARRANGEMENTS.items():
        if func in arrangement.functions and (found := arrangement.read(args, kwargs)) is not None:
            parts, arguments = found
            if all(isinstance(part, PendingTensor) and not part.pending.is_computed for part in parts):
                pendings = tuple(part.pending for part in parts)
                made = _arranged(name, pendings, arguments)
                # The result shares memory with its parts, so what is written to one would show in the others.
                if not arrangement.makes_values:
                    for pending in (*pendings, made):
                        pending.is_shared = True
                return PendingTensor(made)
    return NotImplemented


def _shared(pending: Pending) -> PendingTensor:
    """Return another tensor with the same memory."""
    pending.is_shared = True
    return PendingTensor(pending)


def _may_write(tensor: Any) -> bool:
    """Tell whether nothing else changes if floats are written to a tensor."""
    pending = tensor.pending if isinstance(tensor, PendingTensor) else None
    if pending is None or pending.is_computed or pending.is_shared or not pending.dtype.is_floating_point:
        return False
    # Only these have memory of their own: copies, computed values, and tensors that were made of a PIL image.
    if isinstance(pending, Step):
        given = pending.source.image if pending.before is None else pending.before
        return pending.kind == "tensor" and (isinstance(given, Image.Image) or getattr(given, "kind", "") == "pil")
    return isinstance(pending, Copied) or (isinstance(pending, Arranged) and ARRANGEMENTS[pending.name].makes_values)


def _arranged(name: str, parts: tuple[Pending, ...], arguments: tuple[Any, ...]) -> Pending:
    first = parts[0]
    if not isinstance(first, Arranged) or not first.name == name == "permute":
        return Arranged(name, parts, arguments)
    # Dimension d of the result is first.arguments[arguments[d]]. If that is d everywhere, both permutes cancel.
    back = [first.arguments[dim] for dim in arguments] == [*range(len(arguments))]  # such as [H, W, C] to an image
    return first.parts[0] if back else Arranged(name, parts, arguments)


def _as_image(tensor: Any, cls: Any) -> Any:
    """``tv_tensors.Image(tensor)`` of a tensor as the script opened it."""
    step = tensor.pending
    is_image = getattr(cls, "__module__", "").startswith("torchvision.tv_tensors") and cls.__name__ == "Image"
    if not is_image or not isinstance(step, Step) or step.place != TO_TENSOR or step.is_computed or step.children:
        return NotImplemented
    made = copy.copy(step)
    made.place, made.places = TO_IMAGE, (*step.places[:-1], TO_IMAGE)
    step.children += 1  # what else is done to the tensor draws for itself
    return pending_tensor(made)


def _is_as_large(tensor: Any, *shape: Any) -> bool:
    """Return whether ``view`` keeps the shape."""
    wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape
    return not tensor.pending.is_computed and tuple(wanted) == tuple(_shape(tensor.pending))


def _cast(dtype: torch.dtype | None, tensor: Any, *more: Any) -> Any:
    """Convert to a data type, as ``tensor.float()`` does. A tensor of that data type is returned itself."""
    if dtype is None:
        if len(more) != 1 or not isinstance(more[0], torch.dtype):
            return NotImplemented
        (dtype,) = more
    elif more:
        return NotImplemented
    if tensor.pending.is_computed:
        return NotImplemented
    if tensor.pending.dtype == dtype:
        return tensor
    return PendingTensor(Arranged("to", (tensor.pending,), (dtype,)))


def _in_place(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Change the shape or the values of a tensor in place; it stays the same object."""
    made, dtype = _carried(func, (tensor, *args), kwargs), tensor.pending.dtype
    if made is not NotImplemented:
        # Arithmetic in place keeps the tensor's data type.
        tensor.pending = _cast(dtype, made).pending
        made = tensor
    return made


def _moved(tensor: Any, op: Callable[[int, int], Op | None], act: Callable[[Any], Any]) -> Any:
    run = current_call()
    before = None if run is None else open_step(run, tensor.pending)
    if run is None or before is None:
        return NotImplemented
    height, width = before.output()[0][-2:]
    step = written_step(run, lambda: before.source, before, op(height, width), act)
    return NotImplemented if step is None else pending_tensor(step)


_COPIES = {Tensor.clone, torch.clone}
_VIEWS = {Tensor.view, Tensor.reshape, torch.reshape}
_SAME = {Tensor.detach, torch.detach, Tensor.contiguous, Tensor.cpu}
_IN_PLACE: dict[Any, Any] = {Tensor.unsqueeze_: Tensor.unsqueeze, Tensor.squeeze_: Tensor.squeeze}
_VALUES_IN_PLACE: dict[Any, Any] = {
    Tensor.add_: Tensor.add,
    Tensor.sub_: Tensor.sub,
    Tensor.mul_: Tensor.mul,
    Tensor.div_: Tensor.div,
}
_CASTS: dict[Any, torch.dtype | None] = {
    Tensor.float: torch.float32,
    Tensor.half: torch.float16,
    Tensor.double: torch.float64,
    Tensor.bfloat16: torch.bfloat16,
    Tensor.to: None,
    Tensor.type: None,
}
