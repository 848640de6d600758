"""What user code does with transforms that it holds, seen by running it once with stand-ins.

``TwoCropsTransform``, a preset of several pipelines, or the ``__getitem__`` of a Dataset only arrange transforms: which
image goes through which of them, and where the results stand. The transforms are replaced by marks, the image by a
stand-in that nobody may look at, and what comes out says all of it.
"""

from __future__ import annotations

import copy
import dis
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from ..codecs.unread_array import UnreadArray, unread_arrays
from ..datasets.sample_form import rebuilt
from ..reading.global_rng import drawn, lent, seed_all
from ..reasons import failure
from ..transforms import Compose, Transform
from ..transforms.albumentations import ToArray
from . import albumentations
from .classes import known_class
from .same_names import Refused

__all__ = ["Looked", "Mark", "StandIn", "codes_of", "held", "is_transform", "marked", "marked_function", "watched"]

_DEEP = 5
_CLOSED = (
    str, bytes, int, float, complex, type(None), type, FunctionType, BuiltinFunctionType, MethodType, ModuleType,
    np.ndarray, np.generic, torch.Tensor, torch.dtype, torch.device, torch.Generator, Image.Image,
    torch.jit.ScriptModule, PurePath,
)  # fmt: skip
"""What holds no transform that anybody could exchange."""


class Looked(Exception):
    """User code looked at an image, and so may do anything with it."""

    last: ClassVar[Looked | None] = None
    """Also one that user code has caught."""

    def __init__(self, what: str):
        super().__init__(what)
        Looked.last = self


class StandIn(Image.Image):
    """In the place of an image, before and after transforms."""

    def __init__(self, image: Any, steps: tuple[Any, ...] = ()):
        self.image = image
        """What went into the first of them."""
        self.steps = steps
        """The transforms that were done to it."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("image", "steps", "then", "as_array", "__class__", "__dict__"):
            return object.__getattribute__(self, name)
        raise Looked(f"it looks at the image itself ({name})")

    def then(self, step: Any) -> StandIn:
        return StandIn(self.image, (*self.steps, step))

    def as_array(self) -> StandIn:
        """What ``np.array()`` makes of it."""
        return self.then(_TO_ARRAY)

    def __len__(self) -> int:
        raise Looked("it looks at the image itself (len)")

    def __getitem__(self, _: Any) -> Any:
        raise Looked("it looks at the image itself ([])")

    def __iter__(self) -> Any:
        raise Looked("it looks at the image itself (iter)")

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def _looked(self, *_: Any) -> Any:
        raise Looked("it computes with the image itself")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _looked
    __bool__ = __float__ = __int__ = __lt__ = __gt__ = __le__ = __ge__ = _looked


_TO_ARRAY = ToArray()


class Mark:
    """In the place of a transform: notes that it was done to an image, and does nothing."""

    def __init__(self, transform: Any):
        self._transform = transform

    def __call__(self, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named:
            if isinstance(given[0], StandIn):
                return given[0].then(self._transform)
            if isinstance(given[0], Image.Image):
                return StandIn(given[0], (self._transform,))
        if known_class(self._transform, albumentations.MODULE) is not None:
            return self._of_array(given, named)
        return self._transform(*given, **named)

    def _of_array(self, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if given or named.keys() != {"image"}:
            raise Refused(
                f"it gives {', '.join(named) or 'something unnamed'} to albumentations, and not one image", "own-pixels"
            )
        image = named["image"]
        if isinstance(image, StandIn):
            return {"image": image.then(self._transform)}
        is_image = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,)
        if type(image) is not UnreadArray and not is_image:
            raise Refused("it gives something else to albumentations than an image uint8[H, W, 3]", "own-pixels")
        return {"image": StandIn(image, (_TO_ARRAY, self._transform))}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._transform, name)


def is_transform(value: Any) -> bool:
    """Whether it is a transform of a library, or of gpupipe."""
    if isinstance(value, (Transform, Compose)):
        return True
    cls = known_class(value, "torchvision.transforms", "torch.nn.modules.container", "timm.data", albumentations.MODULE)
    return cls is not None and callable(value) and not isinstance(value, type)


MakeMark = Callable[[Any], Any]


def marked(value: Any, mark: MakeMark = Mark) -> tuple[Any, list[Any]]:
    """A copy of ``value``, which is user code, with marks in the place of transforms, and these transforms.

    Only what leads to a transform is copied: everything else is the same object.
    """
    found: list[Any] = []
    return _marked(value, found, 0, {}, mark), found


def marked_function(function: Any, mark: MakeMark = Mark) -> tuple[Any, list[Any]]:
    """The same of a function, a method or a ``functools.partial``: with marks in its variables from outside and in the
    defaults of its arguments. What it assigns to such variables is not seen outside, so who assigns is left alone.
    """
    found: list[Any] = []

    def inner(part: Any) -> Any:
        return _marked(part, found, 1, {}, mark)

    if isinstance(function, functools.partial):
        inside, more = marked_function(function.func, mark)
        arguments = [inner(part) for part in function.args]
        named = {key: inner(part) for key, part in function.keywords.items()}
        return functools.partial(inside, *arguments, **named), found + more
    if isinstance(function, MethodType):
        owner = inner(function.__self__)
        return MethodType(function.__func__, owner), found
    if not isinstance(function, FunctionType):
        return marked(function, mark)
    if _assigns_outside(function.__code__):
        return function, []
    outside = {**function.__globals__, **{name: inner(value) for name, value in _globals_of(function)}}
    made = FunctionType(
        function.__code__,
        outside,
        function.__name__,
        tuple(inner(value) for value in function.__defaults__ or ()),
        tuple(CellType(inner(cell.cell_contents)) if _is_full(cell) else cell for cell in function.__closure__ or ()),
    )
    made.__kwdefaults__ = {name: inner(value) for name, value in (function.__kwdefaults__ or {}).items()}
    return made, found


def watched(other: Callable[[Any], Any], given: Any, who: str, *, seed: int) -> Any:
    """What ``other``, user code with marks, makes of stand-ins. :class:`Refused`, with ``who`` as the name, if it looks
    at an image or draws random numbers itself."""
    with lent():
        seed_all(seed)
        before, Looked.last = drawn(), None
        try:
            with unread_arrays():
                made = other(given)
            if Looked.last is not None:
                raise Looked.last
        except Refused:
            raise
        except Looked as e:
            raise Refused(f"{who} does more than to arrange the transforms that it holds: {e}", "own-view") from None
        except Exception as e:
            raise Refused(
                f"{who} does more than to arrange the transforms that it holds ({failure(e)})", "own-view"
            ) from None
        if drawn() != before:
            raise Refused(f"{who} draws random numbers itself", "own-seeds")
    return made


def held(function: Any) -> Iterator[Any]:
    """What :func:`marked_function` looks at: arguments that are set, and variables from outside of a function."""
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from held(function.func)
    elif isinstance(function, FunctionType):
        yield from (value for _, value in _globals_of(function))
        yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        yield from (cell.cell_contents for cell in function.__closure__ or () if _is_full(cell))


def _is_full(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Of a function and of those that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def _globals_of(function: FunctionType) -> list[tuple[str, Any]]:
    names = {name for code in codes_of(function.__code__) for name in code.co_names}
    return [(name, function.__globals__[name]) for name in sorted(names & function.__globals__.keys())]


def _assigns_outside(code: CodeType) -> bool:
    free = set(code.co_freevars)
    return any(
        step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
        or (step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in free)
        for part in codes_of(code)
        for step in dis.get_instructions(part)
    )


def _marked(value: Any, found: list[Any], depth: int, done: dict[int, Any], mark: MakeMark) -> Any:
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, _CLOSED) or depth > _DEEP:
        return value
    if depth and is_transform(value):
        found.append(value)
        done[id(value)] = mark(value)
        return done[id(value)]

    def inner(part: Any) -> Any:
        return _marked(part, found, depth + 1, done, mark)

    made: Any = value
    if isinstance(value, (list, tuple)):
        if len(value) <= 1000:  # what is longer is a list of samples
            parts = [inner(part) for part in value]
            if any(a is not b for a, b in zip(parts, value, strict=True)):
                made = rebuilt(value, parts)
    elif isinstance(value, Mapping):
        if len(value) <= 1000:
            pairs = {key: inner(part) for key, part in value.items()}
            if any(pairs[key] is not value[key] for key in pairs):
                made = pairs
    elif hasattr(value, "__dict__"):
        made = _with_parts(value, inner)
    done[id(value)] = made
    return made


def _with_parts(value: Any, inner: Callable[[Any], Any]) -> Any:
    own = vars(value)
    parts = {name: inner(part) for name, part in own.items()}
    if isinstance(value, torch.nn.Module):  # which keeps those that are modules in a place of their own
        parts["_modules"] = {name: inner(part) for name, part in own["_modules"].items()}
        changed = [name for name in own["_modules"] if parts["_modules"][name] is not own["_modules"][name]]
        if not changed and all(parts[name] is own[name] for name in own if name != "_modules"):
            return value
        other = copy.copy(value)
        other.__dict__.update(parts)
        for name in changed:  # a mark is no module
            other.__dict__[name] = other.__dict__["_modules"].pop(name)
        return other
    if all(parts[name] is own[name] for name in own):
        return value
    other = copy.copy(value)
    for name, part in parts.items():
        if part is not own[name]:
            other.__dict__[name] = part
    return other
