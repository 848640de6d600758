"""``Columns``: further columns from Python beside the samples of any dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DatasetError
from ..sources.base import Texts
from ..sources.columns import checked_columns
from ..targets import NumberColumn, Target, TextColumn
from .base import Dataset
from .sample_form import form_of
from .subset import Subset

__all__ = ["Columns"]


class Columns(Subset):
    """The samples of ``dataset`` with further columns, which arrive with each batch.

    Args:
        dataset: a gpupipe dataset, whose own columns stay.
        columns: by name, one value for each sample: numbers or truth values ``[N]`` or ``[N, ...]`` as an array or a
            tensor on the CPU, which keep their data type; or a list of numbers or of texts.
        return_dict: samples, and so batches, are dictionaries with ``"image"``, ``"label"`` and the columns by name,
            and not tuples of these.

    Raises:
        DatasetError: ``dataset`` is none of ours or runs user code, whose samples can hold whatever they want; a column
            has another length, other values, or a name that is there already.

    >>> from gpupipe import DataLoader, datasets
    >>> photos = datasets.Arrays(np.zeros((3, 8, 8, 3), np.uint8), [3, 1, 4])
    >>> weighted = Columns(photos, {"weight": [0.5, 1.0, 2.0], "name": ["a", "b", "c"]}, return_dict=True)
    >>> batch = next(iter(DataLoader(weighted, batch_size=2, device="cpu")))
    >>> batch["label"], batch["weight"], batch["name"]
    (tensor([3, 1]), tensor([0.5000, 1.0000], dtype=torch.float64), ['a', 'b'])
    """

    def __init__(self, dataset: Dataset, columns: Mapping[str, Any], *, return_dict: bool = False):
        if not isinstance(dataset, Dataset) or dataset.runs_user_code:
            raise DatasetError(
                f"Columns: {dataset!r} is no dataset of gpupipe's that knows its samples; let the samples of user code "
                "hold what belongs to them, in a tuple or a dictionary"
            )
        if not isinstance(columns, Mapping):
            raise DatasetError(f"Columns: columns must be a dictionary, not {type(columns).__name__}")
        names = checked_columns(columns, "Columns", [*dataset.columns])
        super().__init__(dataset, np.arange(len(dataset)))
        self._added = {name: _column(name, columns[name], len(dataset)) for name in names}
        self.form = form_of([*self.columns], labelled=dataset.labels is not None, return_dict=return_dict)

    @property
    def columns(self) -> Mapping[str, Target]:
        return {**self.dataset.columns, **self._added}

    @cached_property
    def fingerprint(self) -> str:
        """Of the dataset, and of all values."""
        digest = hashlib.blake2b(f"columns 1 {self.dataset.fingerprint}".encode(), digest_size=8)
        for name, column in self._added.items():
            values = column.collate(column.of(self.indices))
            if isinstance(values, list):
                digest.update(repr((name, values)).encode())
            else:
                digest.update(repr((name, values.dtype.str, values.shape)).encode() + values.tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"Columns({', '.join(self._added)} beside {self.dataset!r})"


def _column(name: str, values: Any, count: int) -> Target:
    """Raises :class:`DatasetError`."""
    if isinstance(values, (list, tuple)) and values and all(isinstance(value, str) for value in values):
        if len(values) != count:
            raise DatasetError(f"Columns: the column {name!r} has {len(values)} texts for {count} samples")
        return TextColumn(Texts.of([text.encode(errors="surrogatepass") for text in values]))
    try:
        array: npt.NDArray[Any] = np.asarray(values.numpy() if callable(getattr(values, "numpy", None)) else values)
    except ValueError:
        raise DatasetError(
            f"Columns: the values of the column {name!r} differ in shape; give them padded to one shape, or as JSON "
            "texts that your collate_fn reads"
        ) from None
    if array.dtype.kind not in "biuf" or array.ndim < 1 or len(array) != count:
        raise DatasetError(
            f"Columns: the column {name!r} is {array.dtype}{list(array.shape)}; it must be numbers [{count}] or "
            f"[{count}, ...], or a list of {count} texts"
        )
    return NumberColumn(array)
