"""Whether a dataset is still what was translated."""

from __future__ import annotations

import operator
import random
from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import ImageFile

from ..datasets.base import Dataset
from .closed import Open, outside
from .marks import held, is_transform
from .reach import transforms_outside
from .replaced import replaced

__all__ = ["Glance", "Snapshot"]

_VALUES = (int, float, complex, str, bytes, bool, type(None))
_PLAIN = (*_VALUES, type, FunctionType, BuiltinFunctionType, ModuleType, PurePath)
_SIMPLE = (*_VALUES, PurePath)
_SETTINGS = (list, tuple, Mapping, np.ndarray, Namespace, SimpleNamespace)
"""What functions may read that changes as an epoch begins, such as the size of images that grow."""
_DEEP = 16
_NOTING = ("_io", "h5py", "pandas", "tarfile", "zipfile")
"""Whose objects note things for themselves when they are read."""
_NEAR, _FEW = 4, 64
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_COPIED = 1 << 24
"""Bytes: of larger arrays only identity and shape are looked at. Such are pixels, which are read anew anyway."""


class Snapshot:
    """What stands in a dataset of torch, its transforms and what they hold; nothing is copied that is not small.

    Lists of samples are compared object by object, 20 ms for a million; what they hold cannot change, or is not read.
    """

    def __init__(self, parts: list[Any]):
        self._parts = parts

    @classmethod
    def of(cls, dataset: Any) -> Snapshot:
        return cls(list(_everything(dataset)))

    def differs(self, dataset: Any) -> bool:
        """Whether anything is another one now."""
        now = _everything(dataset)
        return any(not _same(a, b) for a, b in zip(self._parts, now, strict=False)) or next(now, None) is not None


def _everything(dataset: Any) -> Iterator[Any]:
    """Also what Pillow reads of a damaged file."""
    yield bool(ImageFile.LOAD_TRUNCATED_IMAGES)
    yield from _parts(dataset, 0, set())


class Glance:
    """What a script may set between two batches: attributes of its dataset and of the transforms there. It takes some
    microseconds, and what is in lists of samples is not looked at."""

    def __init__(self, dataset: Any):
        self._parts = [*_attributes(dataset, 0), *_attributes(list(transforms_outside(dataset)), 0)]

    def differs(self, other: Glance) -> bool:
        if len(self._parts) != len(other._parts):
            return True
        return any(
            a is not b and (type(a) not in _VALUES or a != b) for a, b in zip(self._parts, other._parts, strict=True)
        )


def _attributes(value: Any, depth: int) -> Iterator[Any]:
    parts = value if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).values()
    if depth > _NEAR or len(parts) > _FEW:
        return
    for part in parts:
        yield part
        if type(part) not in _PLAIN and not isinstance(part, (torch.Tensor, np.ndarray)):
            yield from _attributes(part, depth + 1)


def _parts(value: Any, depth: int, above: set[int]) -> Iterator[Any]:
    """Whatever shows a change, in an order that is the same the next time."""
    yield type(value)
    if isinstance(value, (FunctionType, partial)):
        yield value
        for part in held(value):
            yield part
            if is_transform(part) or isinstance(part, _SETTINGS):
                yield from _inside([("", part)], value, depth, above)
        yield _reached(value)
    elif isinstance(value, MethodType):
        yield value
        yield from _inside([("", value.__self__)], value, depth, above)
        yield _reached(value)
    elif (leaf := _leaf(value)) is not None:
        yield from leaf
    elif isinstance(value, (list, tuple)):
        yield list(value)
        if len(value) <= 1000:  # of transforms; what is longer is a list of samples
            deeper = ((i, item) for i, item in enumerate(value) if not _is_simple(item))
            yield from _inside(deeper, value, depth, above)
    elif isinstance(value, Mapping):
        yield list(value)
        yield list(value.values())
        yield from _inside(value.items(), value, depth, above)
    else:
        yield value
        if is_transform(value):
            yield replaced(value)
        yield from _inside(sorted(getattr(value, "__dict__", {}).items()), value, depth, above)
        yield from _inside(enumerate(transforms_outside(value)), value, depth, above)
        if callable(value) and not is_transform(value):
            yield _reached(value)


def _is_simple(item: Any) -> bool:
    """Whether comparing an item shows all changes, as with (path, label)."""
    return isinstance(item, _SIMPLE) or (type(item) is tuple and all(isinstance(part, _SIMPLE) for part in item))


def _leaf(value: Any) -> tuple[Any, ...] | None:
    """All that shows a change of something that holds nothing else; ``None`` of others."""
    if isinstance(value, _PLAIN) or type(value).__module__.partition(".")[0] in _NOTING:
        return (value,)
    if isinstance(value, Dataset):
        return value, value.transform, len(value)
    if isinstance(value, _GENERATORS):
        return value, _state_of(value)
    if isinstance(value, torch.Tensor):
        return value, None if value.is_inference() else value._version  # counts changes in place
    if isinstance(value, np.ndarray):
        return value, value.copy() if value.nbytes <= _COPIED else value.shape
    return None


def _state_of(generator: Any) -> str:
    if isinstance(generator, np.random.Generator):
        return str(generator.bit_generator.state)
    if isinstance(generator, torch.Generator):
        return str(generator.get_state().tolist())
    return str(generator.getstate() if isinstance(generator, random.Random) else generator.get_state())


def _reached(function: Any) -> list[Any]:
    """What user code reads outside of what it holds, if that is all known: only then it may have been understood."""
    try:
        return outside(function).constants
    except Open:
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
        return len(a) == len(b) and (all(map(operator.is_, a, b)) or all(map(_same, a, b)))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray):
        if a.dtype == b.dtype == object:
            return a.shape == b.shape and _same(a.tolist(), b.tolist())
        return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b))
    return isinstance(a, (int, float, complex, str, bytes)) and a == b
