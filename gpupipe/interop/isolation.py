"""Copies of a script's own objects, so that trials leave no trace."""

from __future__ import annotations

import copy
import functools
import io
import operator
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..datasets.sample_form import rebuilt
from ..reasons import failure
from .code import is_full, own_classes
from .marks import CACHED, kept, shallow
from .reach import draws_globally, functions_reached, owner_of, variables_reached
from .same_names import UnsupportedError
from .snapshot import Snapshot

_VALUES = (int, float, complex, bool, str, bytes, type(None), np.generic, torch.dtype, torch.device, range)
_SHARED = (*_VALUES, type, FunctionType, BuiltinFunctionType, ModuleType)
"""Types that do not change when they are used."""
_SHARED_CLASSES = ("Environment", "Transaction")
"""Classes of C extensions whose ``__module__`` is missing: lmdb's."""
_SHARED_MODULES = ("pyarrow", "datasets", "pandas", "h5py", "lmdb", "logging", "_thread", "threading", "pathlib", "re")
_MANY = 1000
_LARGE = 1 << 22
"""Size in bytes above which an array is not copied."""


class CannotCopy(Exception):
    """An object of the script cannot be copied."""


class Copy:
    """A copy of the parts of a script's object that may change when some of its samples are read.

    The copy shares numbers, texts, functions, objects that only hold data (such as Arrow tables), and lists of samples
    that contain nothing else. From longer lists of other objects, it copies only the elements with the numbers of the
    samples. A large array becomes a read-only view.

    Args:
        value: the object.
        samples: numbers of the samples that will be read.

    Raises :class:`CannotCopy`.
    """

    def __init__(self, value: Any, samples: Sequence[int]):
        self._samples = samples
        self._memo: dict[int, Any] = {}
        self.elements: list[Any] = []
        """Copies of single elements of long lists."""
        self.met: list[Any] = []
        """Functions, and objects of the script's classes."""
        self.opened: list[Any] = []
        """Files and archives that were opened again. :meth:`close` closes them."""
        self.made = self.copied(value)

    def close(self) -> None:
        for file in self.opened:
            file.close()

    def copied(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return self._function(value)
        if (owner := owner_of(value)) is not None:
            return getattr(self.copied(owner), value.__name__)
        if isinstance(value, CACHED):
            return self._cached(value)
        if isinstance(value, _SHARED) or _is_shared(type(value)) or draws_globally(value):
            return value
        if id(value) not in self._memo:
            self._memo[id(value)] = value  # for an object that refers to itself
            self._memo[id(value)] = self._copy_of(value)
        return self._memo[id(value)]

    def _copy_of(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return _array(value)
        if isinstance(value, Image.Image):
            return _image(value)
        if isinstance(value, torch.Tensor):
            # torch has no read-only tensors. A write to a shared one shows in its version, which snapshots compare.
            return value if value.nbytes > _LARGE else value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, torch.Generator):
            return torch.Generator(value.device).set_state(value.get_state())
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self.copied(value.__self__))
        if type(value) is list and len(value) > _MANY:
            return self._of_many(value)
        if type(value) is dict:
            plain = len(value) > _MANY and _is_plain(value.values())
            return dict(value) if plain else {key: self.copied(part) for key, part in value.items()}
        if type(value) in (list, tuple) or hasattr(value, "_fields"):
            parts = [self.copied(part) for part in value]
            # A tuple of shared parts can be shared as well; a list may change itself.
            same = type(value) is not list and all(map(operator.is_, parts, value))
            return value if same else rebuilt(value, parts)
        return self._object(value)

    def _function(self, value: FunctionType) -> FunctionType:
        """Return a function with copies of the variables that it encloses and of its default arguments."""
        self.met.append(value)
        if id(value) in self._memo or _is_constant(value):
            known: FunctionType = self._memo.get(id(value), value)
            return known
        cells = value.__closure__ or ()
        full = [cell for cell in cells if is_full(cell)]
        # The new function is memorized before its cells are filled, because a function may enclose itself.
        others = {id(cell): CellType() for cell in full}
        made = FunctionType(
            value.__code__,
            value.__globals__,
            value.__name__,
            None,
            tuple(others.get(id(cell), cell) for cell in cells),
        )
        functools.update_wrapper(made, value)
        # update_wrapper() has set it, and would lead back to the original.
        del made.__wrapped__  # type: ignore[attr-defined]
        self._memo[id(value)] = made
        made.__defaults__ = self.copied(value.__defaults__)
        made.__kwdefaults__ = self.copied(value.__kwdefaults__)
        for cell in full:
            others[id(cell)].cell_contents = self.copied(cell.cell_contents)
        # State watches the elements, and with this one what the function encloses.
        self.elements.append(made)
        return made

    def _cached(self, value: Any) -> Any:
        """Return a function with an empty cache. What a trial computes would stay in the script's cache."""
        if id(value) not in self._memo:
            made = functools.lru_cache(**value.cache_parameters())(self.copied(value.__wrapped__))
            self._memo[id(value)] = functools.update_wrapper(made, value)
        return self._memo[id(value)]

    def _of_many(self, value: list[Any]) -> list[Any]:
        other = list(value)
        if not _is_plain(value):
            for number in self._samples:
                if number < len(other):
                    other[number] = self.copied(value[number])
                    self.elements.append(other[number])
        return other

    def _object(self, value: Any) -> Any:
        """Copy an object attribute by attribute if it consists of attributes only."""
        if isinstance(value, torch.utils.data.DataLoader):
            raise CannotCopy("a DataLoader in it goes on with every sample")
        if (file := _opened_again(value)) is not None:
            self.opened.append(file)
            return file
        own = getattr(value, "__dict__", None)
        if type(own) is not dict or isinstance(value, (list, dict, set)) or hasattr(type(value), "__deepcopy__"):
            return _tried(copy.deepcopy, value)
        self.met.append(value)
        other = _tried(shallow, value)
        # A __copy__ of its own has returned the same object, or one with the same attributes.
        if other is value or getattr(other, "__dict__", own) is own:
            return _tried(copy.deepcopy, value)
        # Memorized before its attributes are copied, which may refer back to it.
        self._memo[id(value)] = other
        for name, part in own.items():
            other.__dict__[name] = self.copied(part)
        return other


def _is_constant(value: Any, above: tuple[Any, ...] = ()) -> bool:
    """Tell whether a value does not change when it is used. A function may enclose variables that do."""
    if not isinstance(value, FunctionType):
        return isinstance(value, _SHARED) and owner_of(value) is None
    return value in above or all(_is_constant(part, (*above, value)) for part in kept(value))


def _is_shared(kind: type) -> bool:
    """Tell whether objects of a class are large, cannot be copied, or do not change when they are read."""
    module = kind.__module__.partition(".")[0]
    return module in _SHARED_MODULES or (module == "builtins" and kind.__name__ in _SHARED_CLASSES)


def _tried(function: Any, value: Any) -> Any:
    try:
        return function(value)
    except Exception as e:
        raise CannotCopy(f"its {type(value).__name__} cannot be copied ({failure(e)})") from None


def _opened_again(value: Any) -> Any:
    """Open a file or an archive that is open for reading once more, at the same position; ``None`` for anything
    else."""
    try:
        # A file that was opened by its descriptor has a number for a name and cannot be opened again.
        if isinstance(value, io.BufferedReader) and isinstance(value.name, str):
            file = open(value.name, "rb")  # noqa: SIM115 - closed with the copy
            file.seek(value.tell())
            return file
        if isinstance(value, zipfile.ZipFile) and value.mode == "r" and value.filename:
            return zipfile.ZipFile(value.filename)
        if isinstance(value, tarfile.TarFile) and value.mode == "r" and isinstance(value.name, str):
            return tarfile.open(value.name)
    except (OSError, zipfile.BadZipFile, tarfile.TarError, ValueError):
        # Then it is copied like any other object, which fails with a reason.
        return None
    return None


def _image(image: Image.Image) -> Image.Image:
    """Return an image that shares its pixels with another one until a trial writes to it. A file that is open and not
    decoded is only read, and shared."""
    if image._im is None or getattr(image, "tile", None):
        return image
    other = type(image).__new__(type(image))
    other.__dict__.update(image.__dict__)
    other.readonly = 1  # makes Pillow copy the pixels before it writes to them
    return other


def _array(value: np.ndarray[Any, Any]) -> Any:
    if value.nbytes <= _LARGE:
        return copy.deepcopy(value)
    # Copying a large array costs too much. A read-only view of it raises an error if the code writes to it, and the
    # trial then ends.
    view = value.view()
    view.flags.writeable = False
    return view


def _is_plain(values: Any) -> bool:
    """Tell whether all values are numbers and texts, or tuples of these in any depth. Runs at C's speed."""
    kinds = set(map(type, values))
    if not all(kind is tuple or issubclass(kind, _SHARED) for kind in kinds):
        return False
    return tuple not in kinds or _is_plain([*chain.from_iterable(v for v in values if type(v) is tuple)])


class Surroundings:
    """Global variables that the code of functions and objects names, and attributes of the objects' classes and of the
    functions.

    Inside the context they are copies. On leaving it, the originals return. What cannot be copied stays in place.

    Args:
        values: the functions and objects.
        samples: numbers of the samples that will be read.
    """

    def __init__(self, values: Iterable[Any], samples: Sequence[int]):
        self._samples = samples
        found = [(value, *place) for value in values for place in variables_reached(value)]
        self._variables = {(id(names), name): (names, name) for _, names, name in found}
        classes = [cls for value in values for cls in own_classes(type(value))]
        functions = [function for value in values for function in functions_reached(value)]
        # Functions have attributes, too, such as a counter.
        self._owners: list[type | FunctionType] = list(dict.fromkeys([*classes, *functions]))
        self._before: list[tuple[_Slot, Any]] = []
        self._seen: list[tuple[_Slot, Snapshot]] = []

    def __enter__(self) -> Surroundings:
        places: list[_Slot] = [_Variable(names, name) for names, name in self._variables.values()]
        places += [_Attribute(owner, name) for owner in self._owners for name in _plain_attributes(owner)]
        self._before = [(place, place.value()) for place in places]
        # One copier for all: variables that share an object share its copy.
        self._copier = Copy((), self._samples)
        for place, value in self._before:
            with suppress(CannotCopy):
                place.set(self._copier.copied(value))
        self.begin()
        return self

    def begin(self) -> None:
        """Start to watch for changes."""
        self._seen = [(place, Snapshot.of(place.value())) for place, _ in self._before]

    def __exit__(self, *_: object) -> None:
        for place, value in self._before:
            place.set(value)
        # Attributes that the code has added since.
        for owner in self._owners:
            for name in _plain_attributes(owner) - {place.name for place, _ in self._before if place.owner is owner}:
                delattr(owner, name)
        self._copier.close()

    def changed(self) -> list[str]:
        """Return the names of variables and attributes that were replaced or whose contents changed."""
        return [place.name for place, seen in self._seen if seen.differs(place.value())]


class Isolated:
    """Copies of user code for trials, which may change themselves and what they reach.

    Args:
        values: functions and callable objects.

    Raises:
        UnsupportedError: one of them cannot be copied.
    """

    def __init__(self, *values: Any):
        try:
            copied = Copy(list(values), ())
        except CannotCopy as e:
            raise UnsupportedError(f"it cannot be tried without leaving a trace: {e}", "cannot-copy") from None
        self._copied = copied
        self.made: list[Any] = copied.made
        self._outside = Surroundings(copied.met, ())

    def __enter__(self) -> Isolated:
        self._outside.__enter__()
        self._seen = [Snapshot.of(value) for value in self.made]
        return self

    def __exit__(self, *_: object) -> None:
        self._outside.__exit__()
        self._copied.close()

    def begin(self) -> None:
        """Start to watch for changes. Earlier ones belong to the first use, such as opening a file."""
        self._seen = [Snapshot.of(value) for value in self.made]
        self._outside.begin()

    def check(self) -> None:
        """Raise :class:`UnsupportedError` if something has changed since :meth:`begin`."""
        differs = any(seen.differs(value) for seen, value in zip(self._seen, self.made, strict=True))
        if differs or self._outside.changed():
            raise UnsupportedError("it changes itself, or something outside of it, when it is called", "changes-itself")


@dataclass(frozen=True)
class _Variable:
    """A global variable."""

    owner: dict[str, Any]
    name: str

    def value(self) -> Any:
        return self.owner.get(self.name)

    def set(self, value: Any) -> None:
        self.owner[self.name] = value


@dataclass(frozen=True)
class _Attribute:
    """An attribute of a class or of a function."""

    owner: type | FunctionType
    name: str

    def value(self) -> Any:
        return vars(self.owner).get(self.name)

    def set(self, value: Any) -> None:
        # An attribute that the code deleted is set again: `self` stands for it and is never its value.
        if vars(self.owner).get(self.name, self) is not value:
            setattr(self.owner, self.name, value)


_Slot = _Variable | _Attribute


def _plain_attributes(owner: type | FunctionType) -> set[str]:
    """Return the names of attributes without methods, properties and Python's own."""
    return {
        name
        for name, value in vars(owner).items()
        if not name.startswith("__")
        and (isinstance(value, CACHED) or not (hasattr(value, "__get__") or isinstance(value, type)))
    }


class State:
    """Snapshot of a script's object and of some objects that it holds."""

    def __init__(self, value: Any, elements: Sequence[Any] = ()):
        self._value, self._elements = value, elements
        # None often waits for a first use, such as of a file that is not open yet.
        self._parts = {name: Snapshot.of(part) for name, part in _attributes(value).items() if part is not None}
        self._empty = _attributes(value).keys() - self._parts.keys()
        self._of_elements = [Snapshot.of(element) for element in elements]

    def changed(self) -> list[str]:
        """Return the names of attributes that were replaced or whose contents changed. An attribute that is set for the
        first time, such as a file opened at its first use, does not count."""
        now = _attributes(self._value)
        changed = [name for name, part in self._parts.items() if name not in now or part.differs(now[name])]
        if any(part.differs(now) for part, now in zip(self._of_elements, self._elements, strict=True)):
            changed.append("samples, or what its functions hold")
        return sorted(changed)

    def release(self) -> None:
        """Close what was opened since, such as a file opened at its first use, so that the next use opens it again.
        LMDB refuses to open a database twice in one process."""
        now = _attributes(self._value)
        for name in now.keys() - self._parts.keys():
            if callable(close := getattr(now[name], "close", None)):
                close()
            if name in self._empty:
                now[name] = None
            else:
                del now[name]


def _attributes(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", {})
