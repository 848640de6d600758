"""Tensors that wait: images that became tensors, and what torch's cheap functions make of them.

A tensor that waits knows its shape and type. Functions that neither read nor write values are written down. Any other
function gets true tensors: tensors that wait become true ones in place, and nothing tells them from those that never
waited.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree, swap_tensors

from . import looks
from .steps import AnyTensor, CallStep, PixelStep, frozen
from .switch import is_on, switched

_CPU = torch.device("cpu")


class _StandsFor(type(Tensor)):  # type: ignore[misc]
    """Metaclass of classes that equal another one: libraries look up types in dictionaries."""

    stands_for: type = Tensor

    def __eq__(cls, other: object) -> bool:
        return cls is other or other is cls.stands_for

    def __hash__(cls) -> int:
        return hash(cls.stands_for)


@dataclass(frozen=True)
class Alias:
    """A function that returns a view of a tensor, and its other arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    def __call__(self, tensor: Tensor) -> Tensor:
        made: Tensor = self.function(tensor, *self.args, **dict(self.kwargs))
        return made


class Member(NamedTuple):
    """A tensor that waits and shares memory with others."""

    tensor: WaitingTensor
    of: WaitingTensor | None = None
    """The tensor that it is a view of."""
    view: Alias | None = None


class WaitingTensor(Tensor, metaclass=_StandsFor):
    """A tensor without values that becomes a :class:`torch.Tensor` when something needs them."""

    step: AnyTensor
    family: list[Member] | None
    """This tensor and those that share its memory, a tensor before its views."""
    number: int | None
    """Its number among the results of a recipe, once it was sent to an engine."""
    stays_subclass: Callable[[], bool] = staticmethod(lambda: False)
    """Whether functions of it return its class, see ``torchvision.tv_tensors.set_return_type``."""

    @staticmethod
    def __new__(cls, step: AnyTensor) -> WaitingTensor:
        made: WaitingTensor = Tensor._make_wrapper_subclass(cls, step.shape, dtype=step.dtype, device=_CPU)
        made.step, made.family, made.number = step, None, None
        # Code that asks for its memory without calling a function of Python's gets an error instead of garbage.
        torch._C._set_throw_on_mutable_data_ptr(made)
        return made

    def __init__(self, step: AnyTensor):
        pass

    @property
    def __class__(self) -> type:
        return type(self).stands_for

    @__class__.setter
    def __class__(self, kind: type) -> None:
        object.__dict__["__class__"].__set__(self, kind)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if is_on() and (known := KNOWN.get(func)) is not None:
            given = frozen(dict(kwargs), tensors=False)
            first = args[:1] if args or "input" not in given else (given.pop("input"),)
            # An argument by another name, which torch may know; or another thread has made the tensor meanwhile.
            with suppress(TypeError, AttributeError):
                made = known(func, *first, *frozen(tuple(args[1:]), tensors=False), **given)
                if made is not NotImplemented:
                    return made
        return _on_values(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # Reached only by code that does not call functions through Python, such as a compiled module.
        return _on_values(func, args, kwargs or {})

    def as_subclass(self, cls: type) -> Any:
        """Return the tensor as another class, see :meth:`torch.Tensor.as_subclass`."""
        kind = WAITING_CLASSES.get(cls)
        if kind is None or not is_on() or "value" in vars(self):
            return make(self).as_subclass(cls)
        return shared(self, kind(self.step), Alias(same))

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        plain = is_on() and not _of_script(vars(self))
        made = KNOWN[Tensor.clone](Tensor.clone, self) if plain else NotImplemented
        if made is NotImplemented:
            return make(self).__deepcopy__(memo)  # type: ignore[no-any-return, no-untyped-call]
        memo[id(self)] = made
        return made  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return make(self).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        text: str = make(self).__repr__(**kwargs)  # type: ignore[no-untyped-call]
        return text

    def __dir__(self) -> list[str]:
        return dir(Tensor)


WaitingTensor.__module__, WaitingTensor.__name__, WaitingTensor.__qualname__ = "torch", "Tensor", "Tensor"
WAITING_CLASSES: dict[type, type[WaitingTensor]] = {Tensor: WaitingTensor}
"""Classes of tensors that wait, by the class that each becomes."""

KNOWN: dict[Any, Callable[..., Any]] = {}
"""Functions that are written down: ``KNOWN[function](function, *args, **kwargs)`` returns a tensor that waits, or
``NotImplemented``."""


def waiting_in(value: Any) -> Iterator[WaitingTensor]:
    """Yield the tensors that wait within arguments of a function."""
    if type(value) in (tuple, list, torch.Size) or isinstance(value, (tuple, list)):
        for part in value:
            yield from waiting_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from waiting_in(part)
    elif isinstance(value, slice):
        yield from waiting_in((value.start, value.stop, value.step))
    elif isinstance(value, WaitingTensor):
        yield value


def _on_values(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function with true tensors."""
    stand_ins = {id(tensor): value for tensor in waiting_in((args, kwargs)) if (value := make(tensor)) is not tensor}
    if stand_ins:
        args, kwargs = _pytree.tree_map(lambda part: stand_ins.get(id(part), part), (args, dict(kwargs)))
    return func(*args, **kwargs)


def make(tensor: WaitingTensor, place: str | None = None) -> Tensor:
    """Make a tensor that waits, in place, and those that share its memory. ``place``: see :func:`.looks.looked`.

    Returns it, or a true tensor that stands for it if torch does not let it change.
    """
    with _FILLING:
        if (known := _made(tensor)) is not None:
            return known
        family = [(*member, member.tensor.step) for member in tensor.family or [Member(tensor)]]
        sources = sources_of(tensor.step)
    for source in sources:
        looks.looked(source, place)
    values: dict[int, Tensor] = {}
    with torch.inference_mode(False), torch.no_grad(), switched(False):
        for member, of, view, step in family:
            value = step.tensor() if view is None or of is None else view(values[id(of)])
            # A function that has nothing to do returns its argument.
            values[id(member)] = value.data if of is not None and value is values[id(of)] else value
    with _FILLING, torch.inference_mode(False), torch.no_grad(), switched(False):
        for member, of, view, _ in family:
            if _made(member) is not None:  # by another thread
                values.pop(id(member))
                continue
            if of is not None and view is not None and id(of) not in values:
                values[id(member)] = view(of)
            fill(member, values[id(member)], is_view=of is not None and values[id(member)]._is_view())
        made = _made(tensor)
        assert made is not None
        return made


_FILLING = threading.Lock()
"""Held while tensors become true ones: several threads may look at one."""


def _made(tensor: Tensor) -> Tensor | None:
    """Return a tensor that waits no more, or what stands for it; ``None`` if it waits."""
    if not isinstance(tensor, WaitingTensor):
        return tensor
    stand_in: Tensor | None = vars(tensor).get("value")
    return stand_in


def fill(tensor: WaitingTensor, value: Tensor, *, is_view: bool = False) -> None:
    """Let a tensor that waits become a value, for everybody who holds it. Only views remain views of other tensors."""
    held, kind = dict(vars(tensor)), type(tensor).stands_for
    if kind is not Tensor:
        value = value.as_subclass(kind)
    elif not is_view:
        # Another object on the same memory: views hold the first one.
        value = value.view_as(value) if value._is_view() else value.data
    vars(tensor).clear()
    try:
        swap_tensors(tensor, value)  # type: ignore[no-untyped-call]
        vars(tensor).update(_of_script(held))
    except RuntimeError:  # torch holds the tensor itself, or something has a weak reference to it
        # No op can be added to this step: it does not know what becomes of the value.
        step = CallStep(lambda: value, (), {}, tuple(value.shape), value.dtype)
        vars(tensor).update(held, value=value, step=step)


def _of_script(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a tensor that a script has set."""
    return {name: value for name, value in attributes.items() if name not in ("step", "family", "number", "value")}


def same(tensor: Tensor) -> Tensor:
    """Return the tensor."""
    return tensor


def shared(original: WaitingTensor, made: WaitingTensor, view: Alias) -> WaitingTensor:
    """Note that a tensor that waits may share the memory of another one, as ``view`` of it does. Returns it."""
    family = [Member(original)] if original.family is None else original.family
    family.append(Member(made, original, view))
    original.family = made.family = family
    return made


def sources_of(step: AnyTensor) -> list[Any]:
    """Return the encoded images that a step is made of."""
    if isinstance(step, PixelStep):
        return [step.source]
    return [source for part in step.parts() for source in sources_of(part)]


_ATTRIBUTES = (
    "device dtype grad_fn is_cpu is_cuda is_ipu is_leaf is_maia is_meta is_mkldnn is_mps is_mtia is_nested "
    "is_quantized is_sparse is_sparse_csr is_vulkan is_xla is_xpu itemsize layout names nbytes ndim output_nr "
    "requires_grad retains_grad shape"
)
_METHODS = (
    "__hash__ __len__ dim element_size get_device has_names is_complex is_floating_point is_inference is_signed "
    "ndimension nelement numel size"
)
_METADATA = {getattr(Tensor, name).__get__ for name in _ATTRIBUTES.split() if hasattr(Tensor, name)}
_METADATA |= {getattr(of, name) for of in (Tensor, torch) for name in _METHODS.split() if hasattr(of, name)}
"""Functions that only ask what a tensor that waits knows."""
