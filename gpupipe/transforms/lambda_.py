"""A user's own function in a pipeline."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..errors import ConfigError
from .base import Images, Ops, Transform
from .numbers import everywhere, filled, seeds
from .ops import Call
from .ops.base import F64
from .ops.returned import Returned

__all__ = ["Lambda"]


@dataclass(frozen=True, repr=False, eq=False, init=False)
class Lambda(Transform):
    """Call a function on every image. A function in the list of a :class:`Compose` becomes one of these.

    Before ``ToTensor``, ``ToImage`` and ``PILToTensor`` it gets a PIL image, after them a tensor [C, H, W], as from
    torchvision; it may change what it gets, and returns the same kind, size and data type. What it draws from the
    global generators of torch, numpy and Python is a function of seed, epoch and sample, and leaves them as they were.
    A function that returns something else says so with ``returns``.

    Both engines run it on the host, for every device: DALI then decodes on the CPU, no more than the window of a first
    crop, threads do what stands before and after the function, and the function runs in the thread that asks for the
    batch. With ``batch=True`` it gets the tensor [B, C, H, W] on the device, and a GPU decodes as ever; what it draws
    is then a function of the batch's first sample. Of clips it is called for each frame, with the same draws for all
    frames of a clip; with ``batch=True`` it gets [B * T, C, H, W].

    Args:
        lambd: the function. State, pipeline and fingerprint know it by its qualified name, and by the line of a
            ``lambda``: what it does can change without a sign.
        types: call it on images of these types only, as in torchvision.
        batch: whether it works on whole batches.
        returns: what it makes of every image, such as ``"float32[9, 3, 32, 32]"`` of a tensor (uint8, float16 or
            float32) or ``"RGB[64, 64]"`` of a PIL image (RGB or L); ``H`` and ``W`` are those of what it gets. Every
            result is checked. After tensors that are not [1, H, W] or [3, H, W] only functions can follow.

    Raises:
        ConfigError: it cannot be called, one of ``types`` is torchvision's, or ``returns`` is not such a text, or
            stands beside ``batch=True``.

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

    def __init__(
        self, lambd: Callable[[Any], Any], *types: type, batch: bool = False, returns: str | Returned | None = None
    ):
        if not callable(lambd):
            raise ConfigError(f"Lambda needs something that can be called, not {lambd!r}")
        for t in types:
            if not isinstance(t, type):
                raise ConfigError(f"Lambda: types must be classes, such as PIL.Image.Image or torch.Tensor, not {t!r}")
            if t.__module__.partition(".")[0] == "torchvision":
                raise ConfigError(
                    f"Lambda: images are never {t.__module__}.{t.__qualname__} here, but PIL images or plain tensors; "
                    "say torch.Tensor"
                )
        if isinstance(returns, str):
            returns = Returned.of(returns)
        if batch and returns is not None:
            raise ConfigError(f"Lambda: batch=True keeps the shape of the batch, so leave out returns='{returns}'")
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
    """What goes out of a function that returns this."""
    made = replace(images, kind=returns.kind, dtype=returns.dtype, channels=returns.channels or 1, shape=())
    if not returns.channels:
        one = filled(len(images.sizes), 1)
        return replace(made.sized(one, one), shape=tuple(int(n) for n in returns.at(1, 1)))
    height, width = returns.at(images.height, images.width)[-2:]
    return made.sized(*(filled(len(images.sizes), n) if isinstance(n, int) else n for n in (height, width)))


@dataclass(frozen=True)
class _Typed:
    """A function that lets what is not of its types pass."""

    function: Callable[[Any], Any]
    types: tuple[type, ...]

    def __call__(self, image: Any) -> Any:
        return self.function(image) if isinstance(image, self.types) else image


def name_of(function: Any) -> str:
    """A name that is the same in every process: the qualified one, of a ``lambda`` with its line; never an address."""
    if isinstance(function, functools.partial):
        given = [*map(_value, function.args), *(f"{k}={_value(v)}" for k, v in sorted(function.keywords.items()))]
        return f"partial({', '.join([name_of(function.func), *given])})"
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, type) and hasattr(function, "__func__"):
        return f"{name_of(owner)}.{function.__name__}"
    name = getattr(function, "__qualname__", None)
    if name is None:  # an object that can be called
        cls = type(function)
        try:
            shown = repr(function)
        except Exception:  # of a script's class
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
