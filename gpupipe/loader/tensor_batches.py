"""Batches of torch's ``TensorDataset`` with one call per tensor, for torch's own loader.

torch's loader takes each sample by itself and stacks them. One ``index_select()`` returns the same batch in a fraction
of the time. Everything else about the loader stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset
from torch.utils.data._utils.collate import default_collate, default_collate_fn_map

from ..interop.replaced import replaced
from .arguments import Arguments
from .resolve import replaced_collate


class _Batch(list[Tensor]):
    """A finished batch."""


class TensorBatches(Dataset[Any]):
    """Stand-in for a ``TensorDataset``, or a ``Subset`` of one.

    Args:
        given: the dataset. Its tensors may change at any time.
    """

    def __init__(self, given: Any):
        self._given = given
        self._stack = default_collate_fn_map[Tensor]

    @classmethod
    def of(cls, a: Arguments) -> tuple[Any, Callable[[Any], Any] | None]:
        """Return the dataset and the collate function for torch's loader."""
        has_batches = a.batch_size is not None or a.batch_sampler is not None
        # A function of the script may look at the worker's dataset.
        has_functions = a.collates or a.worker_init_fn is not None or replaced_collate()
        if has_batches and not has_functions and _is_known(a.dataset):
            return cls(a.dataset), _collate
        return a.dataset, a.collate_fn

    def __len__(self) -> int:
        return len(self._given)

    def __getitem__(self, index: Any) -> Any:
        return self._given[index]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return a batch, or a list of samples if torch's batch could be another one."""
        dataset: Any = self._given
        rows = indices
        while isinstance(dataset, Subset):
            dataset, rows = dataset.dataset, [dataset.indices[i] for i in rows]
        # Only integers, because True and a slice select something else.
        if default_collate_fn_map.get(Tensor) is self._stack and {*map(type, rows)} == {int} and min(rows) >= 0:
            tensors = dataset.tensors
            if tensors and all(map(_is_plain, tensors)):
                at = torch.tensor(rows, device="cpu")
                try:
                    return _Batch(tensor.index_select(0, at) for tensor in tensors)
                except (IndexError, RuntimeError):
                    pass  # the samples raise torch's own error, or have a type that this function does not support
        return [self._given[i] for i in indices]


def _is_known(dataset: Any) -> bool:
    """Return whether a dataset reads its samples as torch's own class does."""
    if type(dataset) is Subset:
        return not replaced(dataset) and _is_known(dataset.dataset)
    return type(dataset) is TensorDataset and not replaced(dataset)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether stacked rows of a tensor are contiguous and have no other properties."""
    plain = type(tensor) is Tensor and tensor.layout is torch.strided and tensor.device.type == "cpu"
    return plain and tensor.is_contiguous() and not (tensor.requires_grad or tensor.is_quantized)


def _collate(batch: list[Any]) -> Any:
    return list(batch) if isinstance(batch, _Batch) else default_collate(batch)  # type: ignore[no-untyped-call]
