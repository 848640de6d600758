"""Checksums of plans and batches, in a form that does not notice how things are called.

**Plans.** Their public columns (``seed epoch step indices keys valid consumed sizes frames bad``) are named, because
users read them. Ops are not: an op is a dataclass (or an attrs class), and of its values

- arrays are its *numbers*, everything else its *settings*; the two have checksums of their own;
- the values of one op are sorted by their canonical text, so neither names nor the order of fields count;
- a tuple of ops, or of tuples of ops, is entered in order; the ops of a plan are in order, with ``plan.mixing`` behind
  ``plan.ops`` where a plan has that;
- a function is the word *function*; what it is called stands in the settings and in the pipeline's fingerprint;
- an array is its dtype, shape and bytes; a float counts in steps of 2⁻²⁰, as a whole number, because logarithms and
  cosines differ in the last bit between processors. *bits* is the same with every bit.

The names of ops are written out beside, as text, and their fields in one table for the whole file, so that a renaming
can be told from a change.

**Batches.** Nested lists, tuples and dicts of tensors: the bytes in logical order; and as text dtype, shape and memory
format, or the strides where they are those of no memory format.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

__all__ = [
    "PLAN_PARTS",
    "batch_marks",
    "count_of",
    "every_op",
    "fields_of",
    "form_of",
    "mark",
    "names_of",
    "ops_of",
    "plan_marks",
]

PLAN_PARTS = ("order", "sizes", "frames", "numbers", "settings", "bits")
_GRID = 2.0**20
_NOTHING = "-"


def mark(text: str | bytes) -> str:
    """Four letters and digits: 24 bits."""
    return _short(hashlib.blake2b(text if isinstance(text, bytes) else text.encode(), digest_size=3))


def _short(digest: hashlib.blake2b) -> str:
    return base64.urlsafe_b64encode(digest.digest()).decode()


# ---- plans


def plan_marks(plan: Any) -> dict[str, str]:
    """A checksum of each of ``PLAN_PARTS``; ``-`` of what the plan has not."""
    bad = tuple((b.index, b.kind) for b in plan.bad)
    order = (plan.seed, plan.epoch, plan.step, plan.indices, plan.keys, plan.valid, plan.consumed, bad)
    ops = ops_of(plan)
    return {
        "order": mark(_text(order, exact=True)),
        "sizes": _NOTHING if plan.sizes is None else mark(_text(plan.sizes, exact=True)),
        "frames": _NOTHING if plan.frames is None else mark(_text(plan.frames, exact=True)),
        "numbers": _NOTHING if ops is None else mark(_ops_text(ops, "numbers", exact=False)),
        "settings": _NOTHING if ops is None else mark(_ops_text(ops, "settings", exact=False)),
        "bits": _NOTHING if ops is None else mark(_ops_text(ops, "numbers", exact=True)),
    }


def ops_of(plan: Any) -> tuple[Any, ...] | None:
    """All ops in order; ``None`` where the sizes of the images are not known yet."""
    if plan.ops is None:
        return None
    mixing = getattr(plan, "mixing", None)
    return (*plan.ops, *(() if mixing is None else mixing if isinstance(mixing, (tuple, list)) else (mixing,)))


def fields_of(op: Any) -> dict[str, Any]:
    """The values of an op by name."""
    if dataclasses.is_dataclass(op):
        return {f.name: getattr(op, f.name) for f in dataclasses.fields(op)}
    attributes = getattr(type(op), "__attrs_attrs__", None)
    return dict(vars(op)) if attributes is None else {a.name: getattr(op, a.name) for a in attributes}


def names_of(ops: Any) -> str:
    """The names of ops, such as ``Crop Resize Views[Flip][Flip Gray]*2``."""
    found = []
    for op in ops:
        inner = [b for value in fields_of(op).values() if _holds_ops(value) for b in _branches(value)]
        shown = [names_of(branch) for branch in inner]
        counted = [f"[{text}]{'' if n == 1 else f'*{n}'}" for text, n in _runs(shown)]
        found.append(type(op).__name__ + "".join(counted))
    return " ".join(found)


def _runs(items: list[str]) -> list[tuple[str, int]]:
    return [(text, len(list(group))) for text, group in itertools.groupby(items)]


def every_op(ops: Any) -> Iterator[Any]:
    """Those in ops, too."""
    for op in ops:
        yield op
        for value in fields_of(op).values():
            if _holds_ops(value):
                for branch in _branches(value):
                    yield from every_op(branch)


def _ops_text(ops: Any, part: str, *, exact: bool) -> str:
    return f"<{' '.join(_op_text(op, part, exact=exact) for op in ops)}>"


def _op_text(op: Any, part: str, *, exact: bool) -> str:
    own, inner = [], []
    for value in fields_of(op).values():
        if _holds_ops(value):
            inner.append("".join(_ops_text(b, part, exact=exact) for b in _branches(value)))
        elif isinstance(value, np.ndarray) == (part == "numbers"):
            own.append(_text(value, exact=exact))
    return f"{{{' '.join(sorted(own))}{''.join(inner)}}}"


def _is_op(value: Any) -> bool:
    made = dataclasses.is_dataclass(value) or hasattr(type(value), "__attrs_attrs__")
    return made and not isinstance(value, type) and not callable(value)


def _holds_ops(value: Any) -> bool:
    """A tuple of ops, or of tuples of ops, some of which may be empty."""
    if not isinstance(value, (tuple, list)):
        return False
    leaves = [x for item in value for x in (item if isinstance(item, (tuple, list)) else (item,))]
    return bool(leaves) and all(map(_is_op, leaves))


def _branches(value: Any) -> list[Any]:
    return list(value) if all(isinstance(b, (tuple, list)) for b in value) else [value]


def _text(value: Any, *, exact: bool) -> str:
    """Canonical text of a value. Raises TypeError for what has none yet."""
    if isinstance(value, np.ndarray):
        data = _rounded(value) if value.dtype.kind == "f" and not exact else np.ascontiguousarray(value)
        digest = hashlib.blake2b(data.tobytes(), digest_size=12).hexdigest()
        return f"{value.dtype.str}{list(value.shape)}{digest}"
    if isinstance(value, (bool, np.bool_)) or value is None:
        return str(value)
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return float(value).hex() if exact else f"{_rounded(np.array([value], np.float64))[0]}g"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({' '.join(_text(v, exact=exact) for v in value)})"
    if callable(value):
        return "function"
    raise TypeError(f"the witness has no canonical text of {value!r} ({type(value)}); add one to {__name__}")


def _rounded(values: Any) -> Any:
    """i64: in steps of 2⁻²⁰; what is not finite, or too large for that, as numbers that no other has."""
    scaled = np.nan_to_num(values.astype(np.float64) * _GRID, nan=2.0**62, posinf=2.0**61, neginf=-(2.0**61))
    return np.rint(np.clip(scaled, -(2.0**61), 2.0**62)).astype(np.int64)


# ---- batches


def batch_marks(value: Any) -> str:
    """A checksum of all bytes."""
    digest = hashlib.blake2b(digest_size=3)
    for leaf in _leaves(value):
        if isinstance(leaf, torch.Tensor):
            digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(leaf, np.ndarray):
            digest.update(np.ascontiguousarray(leaf).tobytes())
        else:
            digest.update(repr(leaf).encode())
    return _short(digest)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = [value[k] for k in sorted(value)]
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from _leaves(v)
    else:
        yield value


def count_of(batch: Any) -> int | None:
    """How many samples a batch has."""
    return next((len(x) for x in _leaves(batch) if isinstance(x, torch.Tensor) and x.ndim), None)


def form_of(value: Any, count: int | None = None) -> str:
    """Such as ``f32[B,3,32,32] channels_last``, where B is ``count``, which a checksum of the bytes has in it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {form_of(value[k], count)}" for k in sorted(value)) + "}"
    if isinstance(value, (list, tuple)):
        shown = [form_of(v, count) for v in value]
        inside = f"{shown[0]} × {len(shown)}" if len(set(shown)) == 1 else ", ".join(shown)
        return f"{type(value).__name__}({inside})"
    if isinstance(value, torch.Tensor):
        shape = ["B" if k == 0 and n == count else str(n) for k, n in enumerate(value.shape)]
        dtype = str(value.dtype).removeprefix("torch.").replace("float", "f").replace("int", "i")
        return f"{dtype}[{','.join(shape)}]{_layout(value)}"
    return type(value).__name__


def _layout(x: torch.Tensor) -> str:
    if x.is_contiguous():
        return ""
    if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return " channels_last"
    if x.ndim == 5 and x.is_contiguous(memory_format=torch.channels_last_3d):
        return " channels_last_3d"
    return f" strides {','.join(map(str, x.stride()))}"
