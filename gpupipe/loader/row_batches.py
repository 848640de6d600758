"""Batches of datasets whose samples are rows of arrays, with one call per array, for torch's own loader.

torch's loader takes each sample by itself and stacks them. One ``take()`` makes the same batch in a fraction of the
time. Everything else about the loader stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate, default_collate_fn_map

from ..errors import DatasetError
from ..interop.rows import Rows, rows_of
from .arguments import Arguments
from .resolve import replaced_collate


class _Batch:
    """A finished batch."""

    def __init__(self, made: Any):
        self.made = made


class RowBatches(Dataset[Any]):
    """Stand-in for a dataset.

    Args:
        given: the dataset, which may change at any time.
        rows: its arrays.
    """

    def __init__(self, given: Any, rows: Rows | None):
        self._given, self._rows = given, rows
        self._stack = default_collate_fn_map[Tensor]

    @classmethod
    def of(cls, a: Arguments, rows: Rows | None) -> tuple[Any, Callable[[Any], Any] | None]:
        """Return the dataset and the collate function for torch's loader.

        Args:
            rows: arrays of this dataset, or of one that it reads; ``None`` if its samples are no rows.
        """
        has_batches = a.batch_size is not None or a.batch_sampler is not None
        # A function of the script may look at the worker's dataset.
        has_functions = a.collates or a.worker_init_fn is not None or replaced_collate()
        if rows is None or not has_batches or has_functions:
            return a.dataset, a.collate_fn
        if rows.ds is not a.dataset:
            rows = rows_of(a.dataset)
        return (a.dataset, a.collate_fn) if rows is None or rows.views else (cls(a.dataset, rows), _collate)

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self._given, "stack": self._stack}  # the arrays are found again in a copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._given, self._stack, self._rows = state["given"], state["stack"], rows_of(state["given"])

    def __len__(self) -> int:
        return len(self._given)

    def __getitem__(self, index: Any) -> Any:
        return self._given[index]

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        """Return a batch, or a list of samples if torch's batch could be another one."""
        rows = self._rows
        if rows is not None and rows.changed():
            rows = self._rows = rows_of(self._given)
        # Only integers, because True and a slice select something else.
        plain = {*map(type, indices)} == {int} and default_collate_fn_map.get(Tensor) is self._stack
        if rows is not None and not rows.views and plain and min(indices) >= 0 and max(indices) < rows.count:
            try:
                return _Batch(rows.batch(np.array(indices)))
            except DatasetError:
                pass  # it has changed, and its samples show how
        return [self._given[i] for i in indices]


def _collate(batch: Any) -> Any:
    return batch.made if isinstance(batch, _Batch) else default_collate(batch)  # type: ignore[no-untyped-call]
