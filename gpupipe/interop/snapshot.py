"""Detecting that a dataset has changed since it was translated."""

from __future__ import annotations

import operator
import random
from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile
from xxhash import xxh3_128_digest

from ..datasets.dataset import Dataset
from .closed import NotClosed, outside
from .code import is_installed
from .marks import held, is_transform
from .reach import (
    GENERATORS,
    Reach,
    draws_globally,
    has_own_code,
    owner_of,
    transforms_outside,
)
from .replaced import replaced

_VALUES = (int, float, complex, str, bytes, bool, type(None))
_PLAIN = (*_VALUES, type, FunctionType, BuiltinFunctionType, ModuleType, PurePath)
_SIMPLE = (*_VALUES, PurePath)
_PLAIN_TYPES = frozenset(_PLAIN)
_SETTINGS = (list, tuple, Mapping, np.ndarray, Namespace, SimpleNamespace)
"""Settings that functions may read and that change as an epoch begins, such as the size of growing images."""
_CHANGING = (*_SETTINGS, *GENERATORS, MethodType, partial)
_DEEP = 16
_NOTING = ("_io", "h5py", "pandas", "tarfile", "zipfile")
"""Libraries whose objects record things for themselves when they are read."""
_NEAR, _FEW = 4, 64
_GLANCED = 1 << 10
COMPARED = 1 << 24
"""Size in bytes above which only an array's identity and shape are compared. Such arrays hold pixels, which are read
every time anyway."""


class Snapshot:
    """State of a torch dataset, its transforms and what they hold. Copies only small things.

    Lists of samples are compared object by object, 20 ms for a million. Their elements cannot change or are not read.
    """

    def __init__(self, parts: list[Any]):
        self._parts = parts

    @classmethod
    def of(cls, dataset: Any) -> Snapshot:
        return cls(list(_everything(dataset)))

    def differs(self, dataset: Any) -> bool:
        """Tell whether anything has been replaced or changed."""
        # What is left of the longer one meets an object that equals no part.
        pairs = zip_longest(self._parts, _everything(dataset), fillvalue=object())
        return any(not _same(a, b) for a, b in pairs)


def _everything(dataset: Any) -> Iterator[Any]:
    """Iterate over the dataset and a setting of Pillow, which decides about truncated files."""
    yield bool(ImageFile.LOAD_TRUNCATED_IMAGES)
    yield from _parts(dataset, 0, set())


class Glance:
    """Values that a script may set between two batches: attributes of its dataset and of the transforms in it.

    Comparing takes some microseconds and skips lists of samples.

    Args:
        before: the last glance at the same dataset, which may save a part of the work.
    """

    def __init__(self, dataset: Any, before: Glance | None = None):
        self._parts: list[Any] = []
        self._outside: list[Any] = []
        self._values: list[Any] = []
        self._transforms: list[Any] = []
        self._reach: Reach | None
        _attributes(dataset, 0, self._parts)
        # Only an attribute, or what its code names, can bring other code.
        if before is not None and not _differ(before._parts, self._parts):
            self._reach, self._transforms = before._reach, before._transforms
            if self._reach is not None:
                self._values = self._reach.values()
            if not _differ(before._values, self._values):
                _attributes(self._transforms, 0, self._outside)
                return
        self._reach = Reach(dataset) if has_own_code(dataset) else None
        # Without code of the script, nothing outside is read.
        if self._reach is not None:
            self._values, self._transforms = self._reach.values(), list(transforms_outside(dataset))
            _attributes(self._transforms, 0, self._outside)

    def differs(self, other: Glance) -> bool:
        mine, theirs = (self._parts, self._values, self._outside), (other._parts, other._values, other._outside)
        return any(map(_differ, mine, theirs))


def _differ(some: list[Any], others: list[Any]) -> bool:
    if len(some) != len(others):
        return True
    return any(a is not b and (type(a) not in _VALUES or a != b) for a, b in zip(some, others, strict=True))


def _attributes(value: Any, depth: int, found: list[Any]) -> None:
    """Append the attributes of an object, and theirs, down to some depth."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        found.append(_glanced(value))
        return
    if isinstance(value, Dataset):
        parts: Any = [value.transform]  # readers open and close files in the rest
    elif isinstance(value, (list, tuple, set)):
        parts = value
    else:
        found.append(type(value))
        parts = (value if isinstance(value, dict) else getattr(value, "__dict__", {})).values()
    if depth > _NEAR or len(parts) > _FEW:
        found.append(len(parts))
        return
    try:
        parts = list(parts)
    except RuntimeError:  # another thread adds to a dict meanwhile
        found.append(object())
        return
    for part in parts:
        found.append(part)
        if type(part) not in _PLAIN_TYPES:
            _attributes(part, depth + 1, found)


def _glanced(value: Any) -> Any:
    """Return the values of a small array or tensor, and the version of a large tensor."""
    if value.nbytes > _GLANCED:
        return None if isinstance(value, np.ndarray) or value.is_inference() else value._version
    return value.tobytes() if isinstance(value, np.ndarray) else _content(value)


def _parts(value: Any, depth: int, above: set[int]) -> Iterator[Any]:
    """Iterate over everything that shows a change, always in the same order."""
    yield type(value)
    if isinstance(value, (FunctionType, partial)):
        yield value
        for part in held(value):
            yield part
            if is_transform(part) or isinstance(part, _CHANGING) or owner_of(part) is not None or _keeps(part):
                yield from _inside([("", part)], value, depth, above)
            elif isinstance(part, Iterator) and not _notes(part):
                yield object()  # differs from all others: what an iterator is about to give cannot be seen
        yield _reached(value)
    elif draws_globally(value):
        yield value
    elif isinstance(value, MethodType):
        yield value
        yield from _inside([("", value.__self__)], value, depth, above)
        yield _reached(value)
    elif (owner := owner_of(value)) is not None:
        yield from _inside([(value.__name__, owner)], value, depth, above)
    elif (leaf := _leaf(value)) is not None:
        yield from leaf
    elif isinstance(value, (list, tuple)):
        # A copy, because the list itself changes with the script's.
        yield list(value)
        if len(value) <= 1000:  # a list of transforms; a longer one is a list of samples
            deeper = ((i, item) for i, item in enumerate(value) if not _is_simple(item))
            yield from _inside(deeper, value, depth, above)
    elif isinstance(value, Mapping):
        yield list(value)
        yield list(value.values())
        yield from _inside(value.items(), value, depth, above)
    else:
        yield value
        if is_transform(value):
            # A library function that the script replaces changes what the transform does.
            yield replaced(value)
        yield from _inside(_sorted_attributes(value), value, depth, above)
        yield from _inside(enumerate(transforms_outside(value)), value, depth, above)
        if callable(value) and not is_transform(value):
            yield _reached(value)


def _sorted_attributes(value: Any) -> list[tuple[str, Any]]:
    found = sorted(getattr(value, "__dict__", {}).items())
    # Reading a PIL image makes it read-only. Code that then writes to it gives it other pixels, which shows.
    hidden = ("readonly", "_readonly") if isinstance(value, Image.Image) else ()
    return [(name, part) for name, part in found if name not in hidden]


def _keeps(part: Any) -> bool:
    """Tell whether it is a function of the script that has variables or default arguments of its own."""
    if not isinstance(part, FunctionType) or is_installed(part.__code__.co_filename):
        return False
    return bool(part.__closure__ or part.__defaults__ or part.__kwdefaults__)


def _is_simple(item: Any) -> bool:
    """Tell whether comparing an item shows all changes, as with (path, label)."""
    return isinstance(item, _SIMPLE) or (type(item) is tuple and all(isinstance(part, _SIMPLE) for part in item))


def _notes(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _NOTING


def _leaf(value: Any) -> tuple[Any, ...] | None:
    """Return everything that shows a change of an object that holds no other objects; ``None`` for other objects."""
    if isinstance(value, _PLAIN) or _notes(value):
        return (value,)
    if isinstance(value, Dataset):
        return value, value.transform, len(value)
    if isinstance(value, GENERATORS):
        return value, _state_of(value)
    if isinstance(value, torch.Tensor):
        # The version counts changes in place, but not those through an array or ``data``. Tensors that were made in
        # inference mode have none.
        return value, None if value.is_inference() else value._version, _content(value), _address(value)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return value, value.copy() if value.nbytes <= COMPARED else value.shape
        return value, value.shape, str(value.dtype), digest(value) if value.nbytes <= COMPARED else None
    return None


def digest(array: np.ndarray[Any, Any]) -> bytes:
    """Return a checksum of the values. Copies of them would cost their memory, and the time of its pages."""
    # Arrays of dates have no buffer of their own.
    return xxh3_128_digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _content(tensor: torch.Tensor) -> Any:
    """Return a checksum of a tensor that is not large, or the shape of any other."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.nbytes > COMPARED or not tensor.numel():
        return tensor.shape
    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    return digest(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()) if is_plain else tensor.shape


def _address(tensor: torch.Tensor) -> int | None:
    """Return where the values of a plain tensor are. ``data`` can be replaced, which the version does not count."""
    return tensor.data_ptr() if type(tensor) is torch.Tensor and tensor.layout is torch.strided else None


def _state_of(generator: Any) -> str:
    if isinstance(generator, np.random.Generator):
        return str(generator.bit_generator.state)
    if isinstance(generator, torch.Generator):
        return str(generator.get_state().tolist())
    return str(generator.getstate() if isinstance(generator, random.Random) else generator.get_state())


def _reached(function: Any) -> list[Any]:
    """Return what user code reads from outside of what it holds, if all of it is known. Only then gpupipe may have
    translated the code."""
    try:
        return outside(function).constants
    except NotClosed:
        return []


def _inside(items: Any, value: Any, depth: int, above: set[int]) -> Iterator[Any]:
    if depth == _DEEP or id(value) in above:
        return
    for key, item in items:
        yield key
        yield from _parts(item, depth + 1, above | {id(value)})


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        # Identity first, because that loop runs in C.
        return len(a) == len(b) and (all(map(operator.is_, a, b)) or all(map(_same, a, b)))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray):
        # array_equal() would call the elements' own __eq__.
        if a.dtype == b.dtype == object:
            return a.shape == b.shape and _same(a.tolist(), b.tolist())
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        # NaN differs from itself, and its bytes do not. Of objects, an array's bytes are only addresses.
        return bool(np.array_equal(a, b)) if a.dtype.hasobject else a.tobytes() == b.tobytes()
    return isinstance(a, (int, float, complex, str, bytes)) and a == b
