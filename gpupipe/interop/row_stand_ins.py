"""Stand-ins for the rows of arrays, for the images that code makes of them, and for what transforms make of these.

They show what is the same for all rows, such as shapes and types. Anything else that code does with them ends its run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from ..datasets.sample_form import leaves
from . import albumentations
from .classes import known_class
from .row_values import Values, fits

_REFUSED = """
    eq ne lt le gt ge bool len iter next contains getitem setitem delitem call hash int float complex index round trunc
    floor ceil abs neg pos invert add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod
    pow rpow matmul rmatmul and rand or ror xor rxor lshift rlshift rshift rrshift iadd isub imul itruediv repr str
    format bytes fspath array array_ufunc array_function enter exit reduce_ex copy deepcopy delattr
"""
"""Special methods that no stand-in has by itself."""
_SAFE = 1 << 31
"""Limit of the numbers with which indices are computed, so that no product overflows."""
_DIVIDING = (operator.floordiv, operator.mod)


class Refuses(Protocol):
    """What a run of the code offers its stand-ins."""

    asks_index: bool
    """Whether the code has found out the type of the index."""

    def refuse(self, why: str) -> NoReturn:
        """End the run."""


class StandIn:
    """Stand-in for a value. What its class does not define ends the run."""

    def __init__(self, run: Refuses, **named: Any):
        vars(self).update(named, run=run)

    def __getattr__(self, name: str) -> Any:
        return self.run.refuse(f"it reads {name}")

    def __setattr__(self, name: str, _: Any) -> None:
        self.run.refuse(f"it sets {name}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Functions of torch treat an object whose class has this method in no other way.
        return next(stand_ins_in([args, kwargs or {}])).run.refuse(f"it uses {getattr(func, '__name__', func)}")

    def shown(self) -> type:
        """Return the type that the value has. ``__class__`` cannot show it: torch reads the memory of anything that
        claims to be a tensor."""
        kind: type = self.run.refuse("it asks for a type")
        return kind


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: StandIn, *_: Any, **__: Any) -> Any:
        return self.run.refuse(f"it uses {name}")

    return refuse


for _name in (f"__{name}__" for name in _REFUSED.split()):
    setattr(StandIn, _name, _refusing(_name))


def stand_ins_in(tree: Any) -> Iterator[StandIn]:
    """Iterate over the stand-ins in containers."""
    return (part for part in leaves(tree) if isinstance(part, StandIn))


class Row(StandIn):
    """Stand-in for one row of an array. The index is one as well, of the numbers from 0 on.

    Attributes:
        values: the values by index.
        kind: type of the row: ``"python"`` number, ``"numpy"`` or ``"tensor"``.
        is_index: whether the values depend on the index alone.
    """

    values: Values
    kind: str
    is_index: bool

    def __init__(self, run: Refuses, values: Values, kind: str, *, is_index: bool = False):
        super().__init__(run, values=values, kind=kind, is_index=is_index)

    def of(self, array: npt.NDArray[Any]) -> Row:
        """Return the same row of another view of the array."""
        return Row(self.run, self.values.within(array), self.kind)

    def cast(self, dtype: np.dtype[Any], kind: str = "") -> Row:
        """Convert the values."""
        values = self.values
        # Of two conversions, the first could lose something that the array still has.
        if dtype != values.dtype and values.dtype != values.array.dtype:
            self.run.refuse("it converts values twice")
        if not np.can_cast(values.dtype, dtype) and not fits(values.every(), dtype):
            self.run.refuse("it converts values to a type that they do not fit")
        made = Values(values.array, dtype, values.key, values.numbers)
        return Row(self.run, made, kind or self.kind, is_index=self.is_index)

    def shown(self) -> Any:
        if self.kind != "python":
            return torch.Tensor if self.kind == "tensor" else np.ndarray if self.ndim else self.values.dtype.type
        return int if self.values.dtype.kind in "iu" else float

    # ---- numbers

    def to_int(self) -> Row:
        if self.ndim or self.values.dtype.kind not in "iub" or self.values.dtype == np.uint64:
            self.run.refuse("it makes an integer of something else")
        return self.cast(np.dtype(np.int64), "python")

    def to_float(self) -> Row:
        if self.ndim:
            self.run.refuse("it makes a number of an array")
        return self.cast(np.dtype(np.float64), "python")

    def item(self) -> Row:
        return self.to_float() if self.values.dtype.kind == "f" else self.to_int()

    def compared(self, other: Any, compare: Callable[[Any, Any], Any]) -> bool:
        """Compare an index with a number, if all indices compare alike."""
        if not self.is_index or type(other) is not int:
            self.run.refuse("it compares values")
        results = compare(self.values.every(), other)
        if results.any() != results.all():
            self.run.refuse("it treats some indices differently")
        return bool(results.any())

    def computed(self, other: Any, compute: Callable[[Any, Any], Any]) -> Row:
        """Compute with an index, as in ``index % count``."""
        values = self.values.every()
        plain = self.is_index and type(other) is int and (compute in _DIVIDING) <= other < _SAFE
        if not plain or np.abs(values).max(initial=0) >= _SAFE:
            self.run.refuse("it computes with values")
        made = compute(values, other)
        return Row(self.run, Values(made, made.dtype), "python", is_index=True)

    # ---- arrays

    @property
    def shape(self) -> tuple[int, ...]:
        return torch.Size(self.values.array.shape[1:]) if self.kind == "tensor" else self.values.array.shape[1:]

    @property
    def ndim(self) -> int:
        return self.values.array.ndim - 1

    @property
    def dtype(self) -> Any:
        return torch.from_numpy(np.empty(0, self.values.dtype)).dtype if self.kind == "tensor" else self.values.dtype

    def copy(self) -> Row:
        return self._only("numpy", self)

    def clone(self) -> Row:
        return self._only("tensor", self)

    detach = contiguous = clone

    def numpy(self) -> Row:
        return self._only("tensor", self.cast(self.values.dtype, "numpy"))

    def astype(self, dtype: Any) -> Row:
        return self._only("numpy", self).cast(np.dtype(dtype))

    def to(self, dtype: torch.dtype) -> Row:
        return self._only("tensor", self).cast(numpy_type(dtype))

    def long(self) -> Row:
        return self.to(torch.int64)

    def float(self) -> Row:
        return self.to(torch.float32)

    def reshape(self, *shape: Any) -> Row:
        view = self.values.array.view()
        # Setting the shape raises an error where reshape() would copy.
        view.shape = (len(view), *np.empty(self.values.array.shape[1:], np.bool_).reshape(*shape).shape)
        return self.of(view)

    def squeeze(self) -> Row:
        return self.reshape([size for size in self.values.array.shape[1:] if size != 1])

    def permute(self, *axes: Any) -> Row:
        order = np.arange(self.ndim)[list(axes[0] if len(axes) == 1 else axes)]
        return self.of(self.values.array.transpose(0, *order + 1))

    def transpose(self, *axes: Any) -> Row:
        return self._only("numpy", self).permute(*axes)

    def __getitem__(self, key: Any) -> Row:
        keys = key if type(key) is tuple else (key,)
        if self.kind == "python" or not all(type(one) in (int, slice, type(None), type(...)) for one in keys):
            self.run.refuse("it takes a part of a row")
        return self.of(self.values.array[(slice(None), *keys)])

    def _only(self, kind: str, made: Row) -> Row:
        return made if self.kind == kind else self.run.refuse(f"it uses a method of another type than {self.kind}")


def _acting(method: str, act: Callable[[Any, Any], Any]) -> Callable[[Row, Any], Any]:
    return lambda row, other: getattr(row, method)(other, act)


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Row, f"__{_name}__", _acting("compared", getattr(operator, _name)))
for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(Row, f"__{_name}__", _acting("computed", getattr(operator, _name)))


class Table(StandIn):
    """Stand-in for an array, a tensor or a list of numbers, of which code takes a row.

    Attributes:
        array, numbers: as for :class:`Values`.
        kind: type of the rows, as for :class:`Row`.
        type: type of the value.
    """

    array: npt.NDArray[Any]
    numbers: list[Any] | None
    kind: str
    type: type

    def shown(self) -> Any:
        return self.type

    def __getitem__(self, key: Any) -> Row:
        key, *rest = key if type(key) is tuple and self.kind != "python" else (key,)
        whole = all(part is Ellipsis or (type(part) is slice and part == slice(None)) for part in rest)
        if type(key) is not Row or not whole or key.ndim or key.values.dtype.kind not in "iu":
            self.run.refuse("it takes something else than one row")
        at = key.values.every()
        if len(at) and (at.min() < 0 or at.max() >= len(self.array)):
            self.run.refuse("an index is out of range")
        return Row(self.run, Values(self.array, self.array.dtype, key.values, self.numbers), self.kind)

    def __len__(self) -> int:
        return len(self.array)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape if self.kind == "numpy" else self.run.refuse("it reads shape")

    def size(self, axis: int) -> int:
        return int(self.array.shape[axis]) if self.kind == "tensor" else self.run.refuse("it reads size")


class Picture(StandIn):
    """Stand-in for a PIL image made of a row.

    Attributes:
        row: u8[H, W] or u8[H, W, 3].
        mode: mode of the image, L or RGB.
    """

    row: Row
    mode: str

    def shown(self) -> Any:
        return Image.Image

    @property
    def size(self) -> tuple[int, int]:
        height, width = self.row.shape[:2]
        return width, height

    def copy(self) -> Picture:
        return self

    def convert(self, mode: str) -> Picture:
        if mode not in (self.mode, "RGB"):
            self.run.refuse(f"it converts an image to {mode}")
        return Picture(self.run, row=self.row, mode=mode)


class Transformed(StandIn):
    """Stand-in for what a transform makes of an image.

    Attributes:
        image: the image that the first transform is given.
        before: what this transform is given; ``None``: the image.
        transform: the script's object.
        is_tensor: whether the code works only if it makes one tensor.
        origin: the call of the transform; a copy of its result has the same.
    """

    image: Picture | Row
    before: Transformed | None
    transform: Any
    is_tensor: bool
    origin: object

    @property
    def steps(self) -> tuple[Any, ...]:
        """The transforms of the image."""
        return (*(() if self.before is None else self.before.steps), self.transform)


class Applied(StandIn):
    """Stand-in for a transform that code applies.

    Attributes:
        transform: the script's object.
    """

    transform: Any

    def shown(self) -> Any:
        return type(self.transform)

    def __bool__(self) -> bool:
        return bool(self.transform)

    def __call__(self, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named:
            return self._to(given[0])
        by_name = known_class(self.transform, albumentations.MODULE) is not None
        if given or not by_name or named.keys() != {"image"} or type(named["image"]) is Picture:
            self.run.refuse("it gives a transform something else than one image")
        return {"image": self._to(named["image"])}

    def _to(self, image: Any) -> Transformed:
        before = image if type(image) is Transformed else None
        image = image if before is None else before.image
        if type(image) not in (Picture, Row):
            self.run.refuse("it gives a transform something else than an image")
        return Transformed(
            self.run, image=image, before=before, transform=self.transform, is_tensor=False, origin=object()
        )


class Frozen(list[Any]):
    """A list that code may not change."""

    def __init__(self, run: Refuses, values: Any):
        super().__init__(values)
        self.run = run


for _name in (
    *("__setitem__", "__delitem__", "__iadd__", "__imul__", "append", "clear", "extend", "insert", "pop", "remove"),
    *("reverse", "sort"),
):
    setattr(Frozen, _name, _refusing(_name))


def numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype
