"""User functions in a pipeline."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..errors import ConfigError
from ..printable import representation
from .numbers import everywhere, filled, seeds
from .ops import Call
from .ops.op import F64
from .ops.returned import Returned
from .transform import Images, Ops, Transform

__all__ = ["Lambda"]


@dataclass(frozen=True, repr=False, eq=False, init=False)
class Lambda(Transform):
    """Call a function on every image. A function in the list of a :class:`Compose` becomes a ``Lambda``.

    As in torchvision, the function gets a PIL image before ``ToTensor``, ``ToImage`` and ``PILToTensor``, and a tensor
    [C, H, W] after them. It may modify its argument, and returns the same kind, size and data type unless ``returns``
    declares something else. Its draws from the global generators of torch, numpy and Python depend only on seed, epoch
    and sample, and leave the generators unchanged.

    Both engines run the function on the host, for every device. DALI then decodes on the CPU, at most the window of a
    first crop. Threads run the transforms before and after the function, and the function itself runs in the thread
    that asks for the batch. For clips it is called for each frame, with the same draws for all frames of a clip.

    With ``batch=True`` the function gets the tensor [B, C, H, W] on the device, or [B * T, C, H, W] for clips, and a
    GPU decodes as usual. Its draws then depend on the first sample of the batch.

    Args:
        lambd: the function. State, pipeline and fingerprint identify it by its qualified name, and a ``lambda`` by its
            line. A change of its body goes unnoticed.
        types: call the function only on images of these types, as in torchvision.
        batch: whether the function works on whole batches.
        returns: type and shape of the results, such as ``"float32[9, 3, 32, 32]"`` for a tensor (uint8, float16 or
            float32) or ``"RGB[64, 64]"`` for a PIL image (RGB or L). ``H`` and ``W`` stand for the size of the incoming
            image. Every result is checked. Only functions can follow tensors that are not [1, H, W] or [3, H, W].

    Raises:
        ConfigError: ``lambd`` is not callable, one of ``types`` is torchvision's, or ``returns`` is malformed or
            combined with ``batch=True``.

    >>> Lambda(abs, batch=True)
    Lambda(abs, batch=True)
    >>> from gpupipe.transforms import CenterCrop, Compose, ToTensor
    >>> Compose([CenterCrop(8), ToTensor(), Lambda(lambda x: x.flatten(), returns="float32[192]")]).output.shape
    (192,)
    """

    takes_anything: ClassVar[bool] = True

    lambd: Callable[[Any], Any]
    types: tuple[type, ...]
    batch: bool
    returns: Returned | None

    # Written out, because dataclasses do not generate *types.
    def __init__(
        self, lambd: Callable[[Any], Any], *types: type, batch: bool = False, returns: str | Returned | None = None
    ):
        if not callable(lambd):
            raise ConfigError(f"Lambda: lambd must be callable, not {lambd!r}")
        for t in types:
            if not isinstance(t, type):
                raise ConfigError(f"Lambda: types must be classes, such as PIL.Image.Image or torch.Tensor, not {t!r}")
            if t.__module__.partition(".")[0] == "torchvision":
                raise ConfigError(
                    f"Lambda: images are PIL images or plain tensors, never {t.__module__}.{t.__qualname__}; "
                    "use torch.Tensor"
                )
        if isinstance(returns, str):
            returns = Returned.of(returns)
        if batch and returns is not None:
            raise ConfigError(f"Lambda: batch=True keeps the shape of the batch; remove returns='{returns}'")
        for name, value in (("lambd", lambd), ("types", types), ("batch", bool(batch)), ("returns", returns)):
            object.__setattr__(self, name, value)

    @property
    def draws(self) -> int:
        return 1

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        call = Call(
            everywhere(len(u)),
            seeds(u[:, 0]),
            function=_Typed(self.lambd, self.types) if self.types else self.lambd,
            name=name_of(self.lambd),
            batch=self.batch,
            kind=images.kind,
            returns=self.returns,
        )
        return (call,), images if self.returns is None else _after(self.returns, images)

    def __repr__(self) -> str:
        shown = [name_of(self.lambd), *(f"{t.__module__}.{t.__qualname__}" for t in self.types)]
        shown += ["batch=True"] * self.batch + [f"returns='{self.returns}'"] * (self.returns is not None)
        return f"Lambda({', '.join(shown)})"


def _after(returns: Returned, images: Images) -> Images:
    """Return the properties of the images that a function returns."""
    made = replace(images, kind=returns.kind, dtype=returns.dtype, channels=returns.channels or 1, shape=())
    if not returns.channels:
        one = filled(len(images.sizes), 1)
        return replace(made.sized(one, one), shape=tuple(int(n) for n in returns.at(1, 1)))
    height, width = returns.at(images.height, images.width)[-2:]
    return made.sized(*(filled(len(images.sizes), n) if isinstance(n, int) else n for n in (height, width)))


@dataclass(frozen=True)
class _Typed:
    """A function that passes on objects of other types unchanged."""

    function: Callable[[Any], Any]
    types: tuple[type, ...]

    def __call__(self, image: Any) -> Any:
        return self.function(image) if isinstance(image, self.types) else image


def name_of(function: Any) -> str:
    """Return a name that is the same in every process: the qualified name, with the line for a ``lambda``, never an
    address."""
    if isinstance(function, functools.partial):
        given = [*map(_value, function.args), *(f"{k}={_value(v)}" for k, v in sorted(function.keywords.items()))]
        return f"partial({', '.join([name_of(function.func), *given])})"
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, type) and hasattr(function, "__func__"):
        return f"{name_of(owner)}.{function.__name__}"
    name = getattr(function, "__qualname__", None)
    if name is None:  # a callable object
        cls = type(function)
        try:
            shown = representation(function)
        except Exception:  # raised by a script's __repr__
            return _qualified(cls, cls.__qualname__)
        return _qualified(cls, cls.__qualname__) if _ADDRESS.search(shown) else shown
    line = f":{function.__code__.co_firstlineno}" if function.__name__ == "<lambda>" else ""
    return _qualified(function, name) + line


_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}")


def _qualified(thing: Any, name: str) -> str:
    module = getattr(thing, "__module__", None)
    return name if module in (None, "builtins") else f"{module}.{name}"


def _value(value: Any) -> str:
    return name_of(value) if callable(value) or _ADDRESS.search(repr(value)) else repr(value)
