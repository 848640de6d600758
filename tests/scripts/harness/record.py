"""What a script's loaders gave, taken apart so that two runs can be compared leaf by leaf."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from . import loaders
from .script import Args, Script

__all__ = ["Batch", "Epoch", "Run", "play", "snapshot"]

Array = npt.NDArray[Any]

_SHORT = {
    "float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16", "uint8": "u8", "int8": "i8",
    "int16": "i16", "int32": "i32", "int64": "i64", "uint16": "u16", "bool": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """One batch: ``form`` says types, keys, dtypes and shapes; ``leaves`` holds the values, by where they stand."""

    form: str
    leaves: dict[str, Any]
    """Tensors and arrays as arrays, lists of plain numbers or texts as arrays too, anything else as it is."""


@dataclass(frozen=True)
class Epoch:
    """What one thing that a script yielded gave."""

    length: int | None
    """``len()`` of it, if it has one."""
    batches: tuple[Batch, ...]

    @property
    def paths(self) -> list[str]:
        """Where leaves stand, in any batch."""
        return list(dict.fromkeys(path for batch in self.batches for path in batch.leaves))

    def column(self, path: str) -> list[Any]:
        """This leaf of every batch that has it."""
        return [batch.leaves[path] for batch in self.batches if path in batch.leaves]


@dataclass
class Run:
    """One run of a script."""

    epochs: list[Epoch] = field(default_factory=list)
    error: str = ""
    """The exception that ended it, if one did."""
    engines: tuple[str, ...] = ()
    """Who made the images of gpupipe's loaders, in the order in which they were made."""
    is_live: bool = False
    """Whether all of them ran the script's code."""
    messages: tuple[str, ...] = ()
    """Different warnings, of torch and of gpupipe."""


def play(script: Script, args: Args, loader_class: Any) -> Run:
    """Run a script to its end with ``loader_class`` as its ``DataLoader``. An exception ends the run and is noted."""
    run = Run()
    with _warnings() as texts, loaders.watching() as made:
        try:
            for given in script.run(args, loader_class):
                run.epochs.append(_epoch(given))
        except Exception as e:
            run.error = f"{type(e).__name__}: {str(e).strip() or '(no message)'}"
        run.engines = tuple(map(loaders.engine_of, made))
        run.is_live = all(map(loaders.is_live, made))
    run.messages = tuple(dict.fromkeys(texts))
    return run


@contextmanager
def _warnings() -> Iterator[list[str]]:
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(w.message) for w in caught]


def _epoch(given: Any) -> Epoch:
    try:
        length = len(given)
    except TypeError:
        length = None
    return Epoch(length, tuple(snapshot(batch) for batch in given))


def snapshot(batch: Any) -> Batch:
    """A copy of a batch, which may be of any structure."""
    leaves: dict[str, Any] = {}
    return Batch(_take(batch, "", leaves), leaves)


def _take(x: Any, path: str, leaves: dict[str, Any]) -> str:
    """Put the leaves of ``x`` into ``leaves`` and return its form."""
    if isinstance(x, Tensor):
        leaves[path] = x.detach().cpu().as_subclass(Tensor).float().numpy() if x.dtype is torch.bfloat16 else _numpy(x)
        name = "" if type(x) is Tensor else f"{type(x).__name__}:"
        return name + _shape(str(x.dtype).removeprefix("torch."), tuple(x.shape))
    if isinstance(x, np.ndarray):
        leaves[path] = x.copy()
        return "np." + _shape(str(x.dtype), x.shape)
    if isinstance(x, Image.Image):
        leaves[path] = np.asarray(x)
        return f"PIL.{x.mode}[{x.height}, {x.width}]"
    if isinstance(x, Mapping):
        items = [f"{key!r}: {_take(value, f'{path}[{key!r}]', leaves)}" for key, value in x.items()]
        return f"{'' if type(x) is dict else type(x).__name__}{{{', '.join(items)}}}"
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        items = [f"{key}={_take(getattr(x, key), f'{path}.{key}', leaves)}" for key in x._fields]
        return f"{type(x).__name__}({', '.join(items)})"
    if isinstance(x, (list, tuple)):
        inside = _items(x, path, leaves)
        name = "" if type(x) in (list, tuple) else type(x).__name__
        return f"{name}({inside})" if isinstance(x, tuple) else f"{name}[{inside}]"
    if x is None or isinstance(x, (str, bytes, bool, int, float, np.generic)):
        leaves[path] = x
        return "None" if x is None else type(x).__name__
    fields = vars(x) if hasattr(x, "__dict__") else {}
    items = [f"{key}={_take(value, f'{path}.{key}', leaves)}" for key, value in fields.items()]
    return f"{type(x).__name__}<{', '.join(items)}>"


def _numpy(x: Tensor) -> Array:
    return x.detach().cpu().as_subclass(Tensor).numpy().copy()


def _items(x: Any, path: str, leaves: dict[str, Any]) -> str:
    if x and len({type(item) for item in x}) == 1 and isinstance(x[0], (str, int, float)):
        leaves[path] = np.asarray(x)
        return f"{type(x[0]).__name__} × {len(x)}"
    forms = [_take(item, f"{path}[{i}]", leaves) for i, item in enumerate(x)]
    return ", ".join(forms)


def _shape(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{_SHORT.get(dtype, dtype)}[{', '.join(map(str, shape))}]"
