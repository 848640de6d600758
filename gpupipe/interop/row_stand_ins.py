"""Stand-ins for the rows of arrays, for the images that code makes of them, and for what transforms make of these.

They show what is the same for all rows, such as shapes and types. Anything else that code does with them ends its run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from . import albumentations
from .classes import known_class
from .draws import NotUnderstood

I64 = npt.NDArray[np.int64]

_REFUSED = """
    eq ne lt le gt ge bool len iter next contains getitem setitem delitem call hash int float complex index round trunc
    floor ceil abs neg pos invert add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod
    pow rpow matmul rmatmul and rand or ror xor rxor lshift rlshift rshift rrshift iadd isub imul itruediv repr str
    format bytes fspath array enter exit reduce_ex copy deepcopy delattr
"""
"""Special methods that no stand-in has by itself."""
_SAFE = 1 << 31
"""Limit of the numbers with which indices are computed, so that no product overflows."""


class Refuses(Protocol):
    """What a run of the code offers its stand-ins."""

    is_over: bool
    """Whether the code has returned."""

    def refuse(self, why: str) -> NoReturn:
        """End the run."""


class StandIn:
    """Stand-in for a value. What its class does not define ends the run."""

    __array_ufunc__ = None

    def __init__(self, run: Refuses, **named: Any):
        vars(self).update(named, run=run)

    def __getattr__(self, name: str) -> Any:
        return self.run.refuse(f"it reads {name}")

    def __setattr__(self, name: str, _: Any) -> None:
        self.run.refuse(f"it sets {name}")


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(self: StandIn, *_: Any, **__: Any) -> Any:
        return self.run.refuse(f"it uses {name}")

    return refuse


for _name in (f"__{name}__" for name in _REFUSED.split()):
    setattr(StandIn, _name, _refusing(_name))


class Row(StandIn):
    """Stand-in for one row of an array. The index is one as well, of the numbers from 0 on.

    Attributes:
        array: the array.
        kind: type of the row: ``"python"`` number, ``"numpy"`` or ``"tensor"``.
        key: the number of the row; ``None``: the index.
        numbers: the list of numbers of which ``array`` is a copy; ``None``: the array is the script's.
        type: data type that the values have, or are converted to.
    """

    array: npt.NDArray[Any]
    kind: str
    key: Row | None
    numbers: list[Any] | None
    type: np.dtype[Any]

    def __init__(
        self,
        run: Refuses,
        array: npt.NDArray[Any],
        kind: str,
        key: Row | None = None,
        numbers: list[Any] | None = None,
        type: Any = None,
    ):
        type = array.dtype if type is None else type
        super().__init__(run, array=array, kind=kind, key=key, numbers=numbers, type=type)

    def of(self, array: npt.NDArray[Any]) -> Row:
        """Return the same row of another view of the array."""
        return Row(self.run, array, self.kind, self.key, self.numbers, self.type)

    def cast(self, type: np.dtype[Any], kind: str = "") -> Row:
        """Convert the values."""
        # Of two conversions, the first could lose something that the array still has.
        if type != self.type and self.type != self.array.dtype:
            self.run.refuse("it converts values twice")
        return Row(self.run, self.array, kind or self.kind, self.key, self.numbers, type)

    @property
    def is_index(self) -> bool:
        """Whether the values depend on the index alone."""
        return self.key is None and self.kind == "python" and self.numbers is None

    @property
    def at(self) -> I64 | None:
        """Row of the array for each index; ``None``: the index itself."""
        if self.key is None:
            return None
        found = self.key.every().astype(np.int64, copy=False)
        is_all = len(found) == len(self.array) and np.array_equal(found, np.arange(len(found)))
        return None if is_all else found

    def every(self) -> npt.NDArray[Any]:
        """Return the values by index; a view if possible."""
        at = self.at
        return (self.array if at is None else self.array[at]).astype(self.type, copy=False)

    def take(self, indices: I64) -> npt.NDArray[Any]:
        """Return the values for some indices as they are now. Raise :class:`NotUnderstood` if the script has changed
        them in a way that the run has not shown."""
        at = indices
        if self.key is not None:
            at = self.key.take(indices).astype(np.int64, copy=False)
            if at.min(initial=0) < 0:
                raise NotUnderstood("an index counts from the end")
        try:
            if self.numbers is None:
                return self.array.take(at, 0).astype(self.type, copy=False)
            found = np.array([self.numbers[i] for i in at.tolist()])
        except IndexError:
            raise NotUnderstood("an index is out of range") from None
        if found.dtype != self.array.dtype:
            raise NotUnderstood("its numbers have another type")
        return found.astype(self.type, copy=False)

    # Decides isinstance(). The type of the stand-in itself is not shown.
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        if self.kind != "python":
            return torch.Tensor if self.kind == "tensor" else np.ndarray if self.ndim else self.type.type
        return int if self.type.kind in "iu" else float

    # ---- numbers

    def to_int(self) -> Row:
        if self.ndim or self.type.kind not in "iub" or self.type == np.uint64:
            self.run.refuse("it makes an integer of something else")
        return self.cast(np.dtype(np.int64), "python")

    def to_float(self) -> Row:
        if self.ndim:
            self.run.refuse("it makes a number of an array")
        return self.cast(np.dtype(np.float64), "python")

    def item(self) -> Row:
        return self.to_float() if self.type.kind == "f" else self.to_int()

    def compared(self, other: Any, compare: Callable[[Any, Any], Any]) -> bool:
        """Compare an index with a number, if all indices compare alike."""
        if not self.is_index or type(other) is not int:
            self.run.refuse("it compares values")
        results = compare(self.every(), other)
        if results.any() != results.all():
            self.run.refuse("it treats some indices differently")
        return bool(results.any())

    def computed(self, other: Any, compute: Callable[[Any, Any], Any]) -> Row:
        """Compute with an index, as in ``index % count``."""
        values = self.every()
        plain = self.is_index and type(other) is int and 0 < other < _SAFE
        if not plain or np.abs(values).max(initial=0) >= _SAFE:
            self.run.refuse("it computes with values")
        return Row(self.run, compute(values, other), "python")

    # ---- arrays

    @property
    def shape(self) -> tuple[int, ...]:
        return torch.Size(self.array.shape[1:]) if self.kind == "tensor" else self.array.shape[1:]

    @property
    def ndim(self) -> int:
        return self.array.ndim - 1

    @property
    def dtype(self) -> Any:
        return torch.from_numpy(np.empty(0, self.type)).dtype if self.kind == "tensor" else self.type

    def copy(self) -> Row:
        return self._only("numpy", self)

    def clone(self) -> Row:
        return self._only("tensor", self)

    detach = contiguous = clone

    def numpy(self) -> Row:
        return self._only("tensor", self.cast(self.type, "numpy"))

    def astype(self, dtype: Any) -> Row:
        return self._only("numpy", self).cast(np.dtype(dtype))

    def to(self, dtype: torch.dtype) -> Row:
        return self._only("tensor", self).cast(numpy_type(dtype))

    def long(self) -> Row:
        return self.to(torch.int64)

    def float(self) -> Row:
        return self.to(torch.float32)

    def reshape(self, *shape: Any) -> Row:
        view = self.array.view()
        # Setting the shape raises an error where reshape() would copy.
        view.shape = (len(view), *np.empty(self.array.shape[1:], np.bool_).reshape(*shape).shape)
        return self.of(view)

    def squeeze(self) -> Row:
        return self.reshape([size for size in self.array.shape[1:] if size != 1])

    def permute(self, *axes: Any) -> Row:
        order = np.arange(self.ndim)[list(axes[0] if len(axes) == 1 else axes)]
        return self.of(self.array.transpose(0, *order + 1))

    def transpose(self, *axes: Any) -> Row:
        return self._only("numpy", self).permute(*axes)

    def __getitem__(self, key: Any) -> Row:
        keys = key if type(key) is tuple else (key,)
        if self.kind == "python" or not all(type(one) in (int, slice, type(None), type(...)) for one in keys):
            self.run.refuse("it takes a part of a row")
        return self.of(self.array[(slice(None), *keys)])

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
        array, kind, numbers: those of the rows; see :class:`Row`.
    """

    array: npt.NDArray[Any]
    kind: str
    numbers: list[Any] | None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return {"python": list, "numpy": np.ndarray, "tensor": torch.Tensor}[self.kind]

    def __getitem__(self, key: Any) -> Row:
        key, *rest = key if type(key) is tuple and self.kind != "python" else (key,)
        whole = all(part is Ellipsis or (type(part) is slice and part == slice(None)) for part in rest)
        if type(key) is not Row or not whole or key.ndim or key.type.kind not in "iu":
            self.run.refuse("it takes something else than one row")
        at = key.every()
        if len(at) and (at.min() < 0 or at.max() >= len(self.array)):
            self.run.refuse("an index is out of range")
        return Row(self.run, self.array, self.kind, key, self.numbers)

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

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
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
    """Stand-in for what transforms make of an image.

    Attributes:
        image: the image that the first transform is given.
        steps: the transforms.
        is_tensor: whether the code works only if they make one tensor.
    """

    image: Picture | Row
    steps: tuple[Any, ...]
    is_tensor: bool

    # No transform has run, so what it returns has no type yet.
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return Transformed if self.run.is_over else self.run.refuse("it asks for the type of a transform's result")


class Applied(StandIn):
    """Stand-in for a transform that code applies.

    Attributes:
        transform: the script's object.
    """

    transform: Any

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
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
        earlier: tuple[Any, ...] = ()
        if type(image) is Transformed:
            image, earlier = image.image, image.steps
        if type(image) not in (Picture, Row):
            self.run.refuse("it gives a transform something else than an image")
        return Transformed(self.run, image=image, steps=(*earlier, self.transform), is_tensor=False)


def numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype
