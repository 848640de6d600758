"""Ops whose numbers a script's own code chooses, sample by sample."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from .fields import frozen
from .ops import Op
from .ops.op import F64
from .transform import Images, Ops, Transform

_Row = tuple[float, ...]


@frozen
class Chosen(Transform):
    """An op with the numbers that the script's own code chose, such as the window of ``image.crop()``.

    The numbers of a batch come with its images (:attr:`~gpupipe.transforms.transform.Images.chosen`). A sample for
    which the code did not call the operation passes unchanged.

    Args:
        op: class of the op.
        settings: its plain values, by name.
        numbers: name, data type and shape per sample of each of its arrays.
        examples: rows of numbers that stand for others before there is a batch.
    """

    op: type[Op]
    settings: tuple[tuple[str, Any], ...]
    numbers: tuple[tuple[str, str, tuple[int, ...]], ...]
    examples: tuple[_Row, ...] = ()

    @property
    def columns(self) -> int:
        """Number of columns of a row: whether the op applies, and its numbers."""
        return 1 + sum(int(np.prod(shape)) for _, _, shape in self.numbers)

    @property
    def off(self) -> _Row:
        """Row of a sample that passes unchanged."""
        return (0.0,) * self.columns

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        count = len(images.sizes)
        if images.chosen is None:
            rows = np.array(self.examples)[np.arange(count) % len(self.examples)]
        else:
            # The first columns are this transform's, the others those of the next Chosen.
            rows = images.chosen[:, : self.columns]
            images = replace(images, chosen=images.chosen[:, self.columns :])
        values, at = dict[str, Any](), 1
        for name, dtype, shape in self.numbers:
            after = at + int(np.prod(shape))
            values[name] = rows[:, at:after].reshape(count, *shape).astype(dtype)
            at = after
        op: Any = self.op(**values, **dict(self.settings)).where(rows[:, 0] > 0, images.sizes)
        if hasattr(op, "height"):
            images = images.sized(op.height.astype(np.int64), op.width.astype(np.int64))
        return (op,), images

    def _values(self) -> tuple[Any, ...]:
        # Examples only stand in for a batch, so they do not count.
        return self.op, self.settings, self.numbers

    def __repr__(self) -> str:
        # Pipelines are compared by their repr, so it leaves out the examples.
        settings = [f"{name}={value!r}" for name, value in self.settings]
        return f"Chosen({', '.join([self.op.__name__, *settings])})"


def chosen(op: Op) -> tuple[Chosen, _Row]:
    """Return the transform of an op with one row, and the row of its numbers."""
    arrays = op.numbers()
    numbers = tuple((name, str(values.dtype), values.shape[1:]) for name, values in arrays.items())
    row = (1.0, *_flat(arrays.values()))
    return Chosen(type(op), tuple(op.settings().items()), numbers, (row,)), row


def _flat(arrays: Iterable[Any]) -> Iterable[float]:
    for values in arrays:
        yield from map(float, values.reshape(-1))
