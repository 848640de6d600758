"""One sequence of ops for images that went through different ones.

Engines run ops with one row per image, and a mask for images that an op skips. Every image has its own list of moves,
in which some are missing and others are in another order, as torchvision's ``ColorJitter`` draws it. A *slot* is an op
of the common sequence. For example, the moves ``crop flip gray`` and ``crop gray`` share three slots, and ``brightness
hue`` and ``hue brightness`` three as well: ``brightness hue brightness``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from ..transforms import ops
from ..transforms.ops import Op
from ..transforms.ops.op import HasMask
from .steps import Move, Numbers

I32 = npt.NDArray[np.int32]
Key = tuple[type[Op], Numbers]
Row = dict[int, Numbers]
"""Numbers by image."""
_TYPES = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "U64": np.uint64, "Objects": object}


def is_for_all(move: Move) -> bool:
    """Return whether an op has no form in which it skips an image: it changes the type."""
    if move.op is ops.Gray:
        return ("channels", 1) in move.settings
    return not issubclass(move.op, (HasMask, ops.Crop, ops.Resize))


def signature(moves: Sequence[Move]) -> tuple[Key, ...]:
    """Return what images must have in common to share a sequence: the ops that none of them may skip."""
    return tuple((move.op, move.settings) for move in moves if is_for_all(move))


def common_ops(moves: Sequence[Sequence[Move]], sizes: I32) -> tuple[Op, ...]:
    """Return the ops of several images with equal signatures.

    Args:
        moves: those of each image.
        sizes: i32[B, 2], height and width of the encoded images.
    """
    made: list[Op] = []
    parts = [_parts(one) for one in moves]
    for number in range(len(parts[0])):
        slots: list[tuple[Key, Row]] = []
        for row, of_row in enumerate(parts):
            _align(slots, row, of_row[number])
        for (op, settings), found in slots:
            made.append(_op(op, settings, found, sizes))
            sizes = _sizes_after(made[-1], sizes)
    return tuple(made)


def _parts(moves: Sequence[Move]) -> list[list[Move]]:
    """Divide moves before and after each op for all images."""
    parts: list[list[Move]] = [[]]
    for for_all, some in groupby(moves, is_for_all):
        if for_all:
            parts += [part for move in some for part in ([move], [])]
        else:
            parts[-1] += some
    return parts


def _align(slots: list[tuple[Key, Row]], row: int, moves: Sequence[Move]) -> None:
    """Put the moves of an image into slots, in their order, and add the slots that it lacks."""
    at = 0
    for move in moves:
        key = move.op, move.settings
        found = next((n for n in range(at, len(slots)) if slots[n][0] == key), None)
        if found is None:
            slots.insert(at, (key, {}))
            found = at
        slots[found][1][row] = move.numbers
        at = found + 1


@cache
def _arrays(op: Any) -> dict[str, Any]:
    """Return the types of an op's arrays by name, without its mask."""
    return {f.name: _TYPES[str(f.type)] for f in fields(op) if str(f.type) in _TYPES}


def _op(op: type[Op], settings: Numbers, found: Row, sizes: I32) -> Op:
    """Return an op with a row for each image. An image that skips it keeps its size."""
    count, rows = len(sizes), np.fromiter(found, np.int64, len(found))
    same: dict[str, Any] = {"height": sizes[:, 0], "width": sizes[:, 1], "source": sizes}
    numbers: dict[str, npt.NDArray[Any]] = {}
    for name, dtype in _arrays(op).items():  # type: ignore[arg-type]
        values = [dict(given).get(name) for given in found.values()] if len(found) else []
        if not values or values[0] is None:
            continue
        some = np.array(values, dtype)
        array = np.zeros((count, *some.shape[1:]), dtype)
        if name in same:
            array[:] = same[name]
        array[rows] = some
        numbers[name] = array
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    masked = {"mask": mask} if issubclass(op, HasMask) else {}
    return op(**masked, **numbers, **dict(settings))


def _sizes_after(op: Any, sizes: I32) -> I32:
    return np.stack([op.height, op.width], axis=1).astype(np.int32) if hasattr(op, "height") and op.geometric else sizes
