"""A run of a dataset's own code with stand-ins for its index, its arrays and its transforms."""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Subset, TensorDataset

from .closed import CONSTANTS, Outside, check_draws
from .code import codes_of, is_full, is_installed, own_classes
from .draws import NotUnderstood
from .marks import is_transform
from .replaced import is_foreign, replaced
from .row_functions import FUNCTIONS
from .row_reads import Reads
from .row_stand_ins import Applied, Frozen, Row, StandIn, Table, stand_ins_in
from .row_values import Values

_OF_TORCHVISION = {
    "CIFAR10", "CIFAR100", "EMNIST", "FashionMNIST", "KMNIST", "MNIST", "QMNIST", "STL10", "SVHN", "USPS",
}  # fmt: skip
_ASKS = {"__class__", "__dict__", "super", "type"}
"""Names by which code gets at more than a stand-in shows."""
_STEPS = {
    "DELETE_ATTR": "it changes an object",
    "STORE_ATTR": "it changes an object",
    # Code that catches an exception may go on where it would not have raised one.
    "PUSH_EXC_INFO": "it catches exceptions",
}
"""Instructions that no code may have, and why."""
_FEW = 16
"""Length up to which a list may be a list of arrays."""


class Sample(NamedTuple):
    """What the code of a dataset returns for any index."""

    made: Any
    """The sample, with stand-ins."""
    length: int
    """Number of indices."""
    asks_index: bool
    """Whether the code has found out the type of the index."""
    reads: Reads
    """What the code has read."""


def sample_of(ds: Any) -> Sample:
    """Run the code of a dataset.

    Raises:
        NotClosed: the code reaches something unknown.
        NotUnderstood: it does something that may differ from index to index.
        Exception: whatever the code raises because of a stand-in.
    """
    run = _Run()
    count = run.reads.length(ds)
    index = np.arange(count)
    made = run.dataset(ds)[Row(run, Values(index, index.dtype), "python", is_index=True)]
    # A function in C may have caught the exception.
    if run.problem:
        raise NotUnderstood(run.problem)
    return Sample(made, count, run.asks_index, run.reads)


class _Run:
    """One run of a dataset's code."""

    def __init__(self) -> None:
        self.asks_index = False
        self.reads = Reads()
        self.problem = ""
        """Why the run is not understood."""
        self._reached = Outside()
        self._functions: dict[FunctionType, FunctionType] = {}
        self._seen: dict[int, tuple[Any, Any]] = {}
        """An object, and what the code sees in its place, by the object's identity."""
        for (module, name), act in FUNCTIONS.items():
            original = getattr(sys.modules.get(module), name, None)
            # A function that the script has put in its place is code of the script.
            if original is not None and not is_foreign("", original):
                self._seen[id(original)] = original, self._of_either(original, act)
        self.builtins = vars(builtins) | {
            "int": _number(int, Row.to_int),
            "float": _number(float, Row.to_float),
            "isinstance": _isinstance,
        }

    def refuse(self, why: str) -> NoReturn:
        self.problem = self.problem or why
        raise NotUnderstood(why)

    # ---- what the code sees

    def held(self, value: Any) -> Any:
        """Return what the code sees in place of a value that a dataset holds."""
        if isinstance(value, CONSTANTS):
            return value
        if id(value) not in self._seen:
            self._seen[id(value)] = value, self._held(value)
        return self._seen[id(value)][1]

    def _held(self, value: Any) -> Any:
        if is_transform(value):
            return Applied(self, transform=value)
        if (table := _table_of(value)) is not None:
            array, kind = table
            if isinstance(value, (np.ndarray, torch.Tensor)):
                self.reads.layout(value)
            numbers = value if type(value) is list else None
            return Table(self, array=array, numbers=numbers, kind=kind, type=type(value))
        if type(value) in (list, tuple) and len(value) <= _FEW:
            self.reads.items(value)
            parts = map(self.held, value)
            return tuple(parts) if type(value) is tuple else Frozen(self, parts)
        return self.dataset(value)

    def outside(self, value: Any) -> Any:
        """Return what the code sees in place of a value that it reads from outside."""
        if isinstance(value, ModuleType):
            return _Module(self, value)
        if id(value) not in self._seen:
            self._seen[id(value)] = value, self._outside(value)
        return self._seen[id(value)][1]

    def _outside(self, value: Any) -> Any:
        if isinstance(value, FunctionType) and not is_installed(value.__code__.co_filename):
            return self.function(value)
        if is_transform(value):
            return self.held(value)
        if isinstance(value, type) and not issubclass(value, _PLAIN):
            return _Class(self, value)
        # Functions of libraries know nothing of stand-ins.
        return self._of_either(value, self._unknown) if callable(value) and not isinstance(value, type) else value

    def _of_either(self, original: Any, act: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does ``act`` to a stand-in, and otherwise what the original does."""

        def function(*given: Any, **named: Any) -> Any:
            if given and isinstance(given[0], StandIn):
                return act(*given, **named)
            if next(stand_ins_in([given, named]), None) is not None:
                self._unknown()
            return original(*given, **named)

        return function

    def _unknown(self, *_: Any, **__: Any) -> Any:
        return self.refuse("it calls a function that is not known")

    def function(self, function: FunctionType, *, known: bool = False) -> FunctionType:
        """Return a copy of a function that sees stand-ins. Raises :class:`NotClosed`.

        Args:
            known: whether it belongs to a library. What it reaches is then not checked.
        """
        if function not in self._functions:
            self.reads.function(function)
            if not known:
                # Before anything runs that could leave a trace.
                self._reached.function(function)
                check_draws(self._reached)
                for code in codes_of(function.__code__):
                    self._check(code)
            names = _Names(self, function.__globals__)
            cells = tuple(map(self._cell, function.__closure__ or ()))
            made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
            made.__kwdefaults__ = function.__kwdefaults__
            self._functions[function] = made
        return self._functions[function]

    def _cell(self, cell: CellType) -> CellType:
        return CellType(self.outside(cell.cell_contents)) if is_full(cell) else cell

    def _check(self, code: CodeType) -> None:
        if _ASKS & {*code.co_names}:
            self.refuse("it asks for classes or attributes")
        steps = list(dis.get_instructions(code))
        for step in steps:
            if step.opname in _STEPS:
                self.refuse(_STEPS[step.opname])
        for before, step in pairwise(steps):
            # A stand-in is no other object, but a number may be the one that it is compared with.
            with_none = before.opname == "LOAD_CONST" and before.argval is None
            if step.opname == "IS_OP" and not with_none:
                self.refuse("it compares identities")

    # ---- datasets

    def dataset(self, ds: Any) -> Any:
        """Return a stand-in for a dataset, which shows its attributes."""
        if id(ds) not in self._seen:
            self._seen[id(ds)] = ds, self._dataset(ds)
        return self._seen[id(ds)][1]

    def _dataset(self, ds: Any) -> Any:
        cls, own = self.reads.type_of(ds), getattr(ds, "__dict__", {})
        mine = {*own_classes(cls)}
        special = {name for base in mine for name in vars(base)} & {"__getattr__", "__getattribute__"}
        # torch calls __getitems__ instead, if there is one.
        self.reads.missing(own, "__getitems__")
        batched = "__getitems__" in own or self.reads.member(cls, "__getitems__")[0] not in (object, Subset)
        if not hasattr(cls, "__getitem__") or type(cls) is not type or special or batched or replaced(ds):
            self.refuse(f"it uses a {cls.__name__}")

        def member_of(name: str) -> Any:
            """Return a member of the class with functions that see stand-ins."""
            base, member = self.reads.member(cls, name)
            known = _is_known(base)
            if isinstance(member, FunctionType) and (known or base in mine):
                return self.function(member, known=known)
            if isinstance(member, (property, staticmethod)) and base in mine:
                function = member.fget if isinstance(member, property) else member.__func__
                if isinstance(function, FunctionType):
                    return type(member)(self.function(function))
            return member if isinstance(member, CONSTANTS) and base in mine else self.refuse(f"it reads {name}")

        def attribute(stand_in: Any, name: str) -> Any:
            # As in Python, what a class has decides before the object if it can be set, and after it if not.
            if name in own and not hasattr(type(self.reads.member(cls, name)[1]), "__set__"):
                return self.held(self.reads.variable(own, name))
            self.reads.missing(own, name)
            member = member_of(name)
            return member.__get__(stand_in) if hasattr(member, "__get__") else member

        def refuse(*_: Any) -> Any:
            return self.refuse("it changes a dataset")

        members = {
            "__getattribute__": attribute,
            "__setattr__": refuse,
            "__delattr__": refuse,
            "__getitem__": member_of("__getitem__"),
            "__len__": lambda stand_in: self.reads.length(ds),
            "shown": lambda stand_in: cls,
        }
        return object.__new__(type(cls.__name__, (StandIn,), members))


class _Names(dict[str, Any]):
    """Global variables of a module, as the code sees them."""

    def __init__(self, run: _Run, names: Mapping[str, Any]):
        super().__init__({"__builtins__": run.builtins, "__name__": names.get("__name__")})
        self._run, self._names = run, names

    def __missing__(self, name: str) -> Any:
        return self._run.outside(self._run.reads.variable(self._names, name))


class _Module:
    """Stand-in for a module, some of whose functions accept stand-ins."""

    def __init__(self, run: _Run, module: ModuleType):
        self._run, self._module = run, module

    def __getattr__(self, name: str) -> Any:
        return self._run.outside(self._run.reads.attribute(self._module, name))


class _Class:
    """Stand-in for a class that is not made an object of. It shows constants only."""

    def __init__(self, run: _Run, cls: type):
        self.run, self.cls = run, cls

    def __getattr__(self, name: str) -> Any:
        value = self.run.reads.attribute(self.cls, name)
        return value if isinstance(value, CONSTANTS) else self.run.refuse(f"it reads {name} of a class")

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.run.refuse(f"it makes a {self.cls.__name__}")


_PLAIN = (BaseException, Image.Image, np.generic, np.ndarray, torch.Tensor, *(t for t in CONSTANTS if t is not object))
"""Classes that code sees as they are."""


def _isinstance(value: Any, classes: Any) -> bool:
    parts = classes if isinstance(classes, tuple) else (classes,)
    parts = tuple(part.cls if isinstance(part, _Class) else part for part in parts)
    if not isinstance(value, StandIn):
        return isinstance(value, parts)
    if type(value) is Row and value.is_index:
        # A sampler may give numbers of numpy as well.
        value.run.asks_index |= issubclass(int, parts) != issubclass(np.int64, parts)
    return issubclass(value.shown(), parts)


def _number(kind: type, act: Callable[[Row], Row]) -> Any:
    """Return a stand-in for ``int`` or ``float``, which also converts the number in a row."""

    class Number(type):
        def __call__(cls, *given: Any, **named: Any) -> Any:
            return act(*given, **named) if given and type(given[0]) is Row else kind(*given, **named)

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, kind)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, kind)

        def __getattr__(cls, name: str) -> Any:
            return getattr(kind, name)

    # With this attribute, numpy takes it for a data type.
    return Number(kind.__name__, (), {"dtype": np.dtype(kind)})


def _is_known(cls: type) -> bool:
    """Tell whether a library's class takes its samples from rows of arrays, or from another dataset."""
    is_torchvisions = cls.__module__.startswith("torchvision.datasets.") and cls.__name__ in _OF_TORCHVISION
    return is_torchvisions or cls in (Subset, TensorDataset)


def _table_of(value: Any) -> tuple[npt.NDArray[Any], str] | None:
    """Return the array of a value that has rows, and the kind of these; ``None`` for any other value."""
    if type(value) in (np.ndarray, np.memmap) and value.dtype.kind in "biuf" and value.ndim:
        return value.view(np.ndarray), "numpy"
    if type(value) is torch.Tensor and value.ndim and value.device.type == "cpu" and value.layout is torch.strided:
        plain = not (value.requires_grad or value.is_quantized or value.dtype.is_complex)
        return (value.numpy(), "tensor") if plain and value.dtype is not torch.bfloat16 else None
    if type(value) is range:
        return np.arange(value.start, value.stop, value.step), "python"
    kind = type(value[0]) if type(value) is list and value else type(None)
    if kind in (int, float) or issubclass(kind, (np.integer, np.floating)):
        array = np.asarray(value)
        # Larger integers would become floats or objects.
        is_plain = {*map(type, value)} == {kind} and array.dtype == np.dtype(kind)
        return (array, "python" if kind in (int, float) else "numpy") if is_plain else None
    return None
