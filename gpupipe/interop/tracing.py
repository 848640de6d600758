"""Tracing user code: run it on a stand-in that records what is done to it, along every path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from .. import transforms as ours
from ..transforms import Transform
from .draws import Draw, NotUnderstood, TracedRun, functions_from, replaced
from .recording import StandIn

_MOST_PATHS = 16


@dataclass(frozen=True)
class HeldTransform:
    """A transform that user code holds and applied."""

    transform: Any


@dataclass(frozen=True)
class Trace:
    """Changes that one run made to the image."""

    ranges: tuple[tuple[float, float], ...]
    """Range [low, high) of the uniform number of every draw."""
    steps: tuple[tuple[Transform | HeldTransform, tuple[int, ...]], ...]
    """Transforms that were applied, each with its uniform numbers."""
    mode: str
    """Kind of the result: RGB, L or tensor."""


def traces(
    function: Callable[[Any], Any], given: Callable[[TracedRun], Any], namespaces: Iterable[dict[str, Any]]
) -> list[Trace]:
    """Run a function along every path and return what each path does.

    Args:
        function: closed user code, see :mod:`.closed`.
        given: makes the stand-in for the image.
        namespaces: namespaces in which the code may hold random functions by other names.

    Raises :class:`NotUnderstood` if the function does anything whose meaning is unknown.
    """
    namespaces = list(namespaces)
    todo: list[tuple[bool, ...]] = [()]
    found: list[Trace] = []
    while todo:
        run = TracedRun(todo.pop())
        changes = functions_from(run.draw) | _pillow(run)
        with replaced(changes, namespaces):
            made = function(given(run))
        # The code may have caught the exception itself.
        if run.problem:
            raise NotUnderstood(run.problem)
        if not isinstance(made, (TracedImage, TracedTensor)):
            raise NotUnderstood(f"it returns {type(made).__name__}")
        # Each decision that this run took for the first time starts another run with the opposite result.
        todo += run.others
        found.append(made.traced())
        if len(found) > _MOST_PATHS:
            raise NotUnderstood(f"it has more than {_MOST_PATHS} paths")
    return found


# ---- PIL images


class TracedImage(StandIn):
    """Stand-in for a PIL image. A gray image is treated as one with equal channels."""

    _OPEN = frozenset(
        ("image", "steps", "then", "run", "shown_mode", "mode", "traced", "convert", "copy", "filter", "transpose",
         "getbands", "step", "__class__", "__dict__")
    )  # fmt: skip

    def __init__(self, run: TracedRun, mode: str, steps: tuple[Any, ...] = ()):
        super().__init__(None, steps)
        self.run, self.shown_mode = run, mode

    def __getattribute__(self, name: str) -> Any:
        if name == "mode":
            return object.__getattribute__(self, "shown_mode")
        if name in TracedImage._OPEN:
            return object.__getattribute__(self, name)
        return object.__getattribute__(self, "run").refuse(f"it looks at the image itself ({name})")

    def traced(self) -> Trace:
        return Trace(tuple(self.run.ranges), self.steps, self.shown_mode)

    def step(self, transform: Transform | HeldTransform, *numbers: int) -> TracedImage:
        return TracedImage(self.run, self.shown_mode, (*self.steps, (transform, numbers)))

    def then(self, step: Any) -> StandIn:
        return self.step(HeldTransform(step))

    # ---- what an image can do

    def getbands(self) -> tuple[str, ...]:
        return ("R", "G", "B") if self.shown_mode == "RGB" else ("L",)

    def copy(self) -> Any:
        return self

    def convert(self, mode: str | None = None, *more: Any, **named: Any) -> Any:
        if more or named or mode not in ("RGB", "L"):
            self.run.refuse(f"convert({mode!r})")
        assert mode is not None
        if mode == self.shown_mode:
            return self
        # A gray image is traced with equal channels, so converting it to RGB changes nothing.
        gray = self if mode == "RGB" else self.step(ours.RandomGrayscale(1.0))
        return TracedImage(self.run, mode, gray.steps)

    def filter(self, filter: Any) -> Any:
        kind = filter() if callable(filter) else filter
        if type(kind) is not ImageFilter.GaussianBlur:
            self.run.refuse(f"filter({type(kind).__name__})")
        radius = kind.radius
        if isinstance(radius, Draw):
            # The transform draws from the same range, with the same uniform number.
            return self.step(ours.PILGaussianBlur(radius.range), radius.k)
        return self.step(ours.PILGaussianBlur(float(radius)))

    def transpose(self, method: Any) -> Any:
        if method == Image.Transpose.FLIP_LEFT_RIGHT:
            return self.step(ours.RandomHorizontalFlip(1.0))
        if method == Image.Transpose.FLIP_TOP_BOTTOM:
            return self.step(ours.RandomVerticalFlip(1.0))
        return self.run.refuse(f"transpose({method!r})")

    def _unknown(self, *_: Any) -> Any:
        self.run.refuse("it looks at the image itself")

    __len__ = __getitem__ = __iter__ = __bool__ = __float__ = __int__ = __lt__ = __gt__ = __le__ = __ge__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _unknown


def _solarize(image: TracedImage, threshold: Any = 128) -> Any:
    return image.step(ours.RandomSolarize(threshold, 1.0))


def _posterize(image: TracedImage, bits: Any) -> Any:
    return image.step(ours.RandomPosterize(bits, 1.0))


_OPS: dict[str, Callable[..., Any]] = {
    "autocontrast": lambda image: image.step(ours.RandomAutocontrast(1.0)),
    "equalize": lambda image: image.step(ours.RandomEqualize(1.0)),
    "flip": lambda image: image.step(ours.RandomVerticalFlip(1.0)),
    "grayscale": lambda image: image.convert("L"),
    "invert": lambda image: image.step(ours.RandomInvert(1.0)),
    "mirror": lambda image: image.step(ours.RandomHorizontalFlip(1.0)),
    "posterize": _posterize,
    "solarize": _solarize,
}
"""Functions of ``ImageOps``, with the arguments whose meaning is known."""
_FACTORS = {"Brightness": "brightness", "Color": "saturation", "Contrast": "contrast"}
"""Names of the arguments of ``ColorJitter``, by class of ``ImageEnhance``."""


class _Enhancer:
    """Stand-in for a class of ``ImageEnhance``."""

    def __init__(self, name: str, image: TracedImage):
        self._name, self._image = name, image

    def enhance(self, factor: Any) -> Any:
        image, name = self._image, self._name
        if name == "Sharpness":
            return image.step(ours.RandomAdjustSharpness(factor, 1.0))
        if name == "Color" and image.mode == "L":
            return image  # a gray image has no color to change
        low, high = factor.range if isinstance(factor, Draw) else (factor, factor)
        jitter = ours.ColorJitter(**{_FACTORS[name]: (low, high)})
        # Every strength of ColorJitter has a number of its own. Only one of them matters here.
        return image.step(jitter, *((factor.k,) * jitter.draws if isinstance(factor, Draw) else ()))


def _pillow(run: TracedRun) -> dict[tuple[Any, str], Any]:
    """Return functions of Pillow that accept a stand-in."""

    def known(name: str, original: Any, seen: Callable[..., Any]) -> Any:
        def function(image: Any, *given: Any, **named: Any) -> Any:
            if not isinstance(image, TracedImage):
                return original(image, *given, **named)
            try:
                return seen(image, *given, **named)
            except NotUnderstood:
                raise
            except Exception as e:  # an argument that gpupipe's transform does not accept
                return run.refuse(f"{name}: {e}")

        return function

    enhancers = {name: (lambda image, name=name: _Enhancer(name, image)) for name in (*_FACTORS, "Sharpness")}
    found = {(ImageOps, name): known(name, getattr(ImageOps, name), seen) for name, seen in _OPS.items()}
    return found | {
        (ImageEnhance, name): known(name, getattr(ImageEnhance, name), seen) for name, seen in enhancers.items()
    }


# ---- tensors


class TracedTensor(Tensor):
    """Stand-in for a tensor. It records what is added to it and what it is multiplied by; nothing else is allowed."""

    run: TracedRun
    calls: tuple[tuple[str, tuple[float, ...]], ...]

    @staticmethod
    def of(run: TracedRun, calls: tuple[tuple[str, Any], ...] = ()) -> TracedTensor:
        # Without elements there are no values that code could read by accident.
        made: TracedTensor = torch.empty(0).as_subclass(TracedTensor)
        made.run, made.calls = run, calls
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = [part for part in args if isinstance(part, TracedTensor)]
        name = getattr(func, "__name__", str(func))
        if not found:
            raise NotUnderstood(f"it uses the tensor in {name}")
        of, known = found[0], _ARITHMETIC.get(name)
        # Only commutative operations may have the tensor on the right: 2 - x is not x - 2.
        turned = name in ("__radd__", "__rmul__")
        if known is None or kwargs or len(args) != 2 or len(found) != 1 or (args[0] is not of and not turned):
            return of.run.refuse(f"it looks at the tensor itself ({name})")
        values = _values(next(part for part in args if part is not of))
        if values is None:
            return of.run.refuse("it computes with something other than one number per channel")
        return TracedTensor.of(of.run, (*of.calls, (known, values)))

    def traced(self) -> Trace:
        if not self.calls:
            return Trace(tuple(self.run.ranges), (), "tensor")
        mean, std = _normalized(self.calls)
        if not all(map(np.isfinite, (*mean, *std))) or 0.0 in std:
            self.run.refuse("it has no inverse")
        return Trace(tuple(self.run.ranges), ((ours.Normalize(mean, std), ()),), "tensor")


_ARITHMETIC = {
    "add": "add", "__add__": "add", "__radd__": "add", "sub": "sub", "__sub__": "sub", "subtract": "sub",
    "mul": "mul", "__mul__": "mul", "__rmul__": "mul", "multiply": "mul",
    "div": "div", "__truediv__": "div", "true_divide": "div", "divide": "div",
}  # fmt: skip
"""Names of torch's functions, with their operation."""


def _values(given: Any) -> tuple[float, ...] | None:
    """Return one number, or one for each of three channels; ``None`` for anything else."""
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return (float(given),)
    plain = type(given) is Tensor and given.dtype == torch.float32
    if plain and (given.numel() == 1 or tuple(given.shape) == (3, 1, 1)):
        return tuple(float(v) for v in given.flatten())
    return None


def _normalized(calls: tuple[tuple[str, tuple[float, ...]], ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return (mean, std) with ``(x - mean) / std`` equal to the calls, except for the last bits."""
    names = [name for name, _ in calls]
    # These are the numbers that Normalize computes with, so not even rounding differs.
    if names == ["sub", "div"] and len(calls[0][1]) == len(calls[1][1]):
        return calls[0][1], calls[1][1]
    # The calls make x * scale + shift of x, which is (x - mean) / std with std = 1 / scale and mean = -shift / scale.
    scale, shift = np.ones(1), np.zeros(1)
    for name, values in calls:
        v = np.asarray(values)
        if name == "add":
            shift = shift + v
        elif name == "sub":
            shift = shift - v
        elif name == "mul":
            scale, shift = scale * v, shift * v
        else:
            scale, shift = scale / v, shift / v
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, std = np.broadcast_arrays(-shift / scale, 1 / scale)
    # Adding zero turns -0.0 into 0.0.
    return tuple((mean + 0.0).tolist()), tuple(std.tolist())
