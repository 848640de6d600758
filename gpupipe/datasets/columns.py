"""``Columns``: adds columns from Python to the samples of a dataset."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sized
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DatasetError
from ..sources.base import Texts
from ..sources.columns import checked_columns
from ..targets import NumberColumn, Target, TextColumn
from .dataset import Dataset
from .sample_form import form_of
from .subset import Subset


class Columns(Subset):
    """A dataset with additional columns, which arrive with each batch.

    Args:
        dataset: a gpupipe dataset. Its own columns stay.
        columns: by name, one value per sample: numbers or booleans ``[N]`` or ``[N, ...]`` as an array or a CPU tensor,
            which keep their data type; a list of numbers; texts; or a target that moves with its image:
            ``targets.Masks``, ``targets.Boxes``, ``targets.Keypoints``, or ``targets.ObjectNumbers`` for their labels.
        return_dict: return samples, and therefore batches, as dictionaries with ``"image"``, ``"label"`` and the
            columns by name instead of tuples.

    Raises:
        DatasetError: ``dataset`` is not a gpupipe dataset, or a column has the wrong length, unsupported values or an
            existing name.

    >>> from gpupipe import DataLoader, datasets
    >>> photos = datasets.Arrays(np.zeros((3, 8, 8, 3), np.uint8), [3, 1, 4])
    >>> weighted = Columns(photos, {"weight": [0.5, 1.0, 2.0], "name": ["a", "b", "c"]}, return_dict=True)
    >>> batch = next(iter(DataLoader(weighted, batch_size=2, device="cpu")))
    >>> batch["label"], batch["weight"], batch["name"]
    (tensor([3, 1]), tensor([0.5000, 1.0000], dtype=torch.float64), ['a', 'b'])
    """

    def __init__(self, dataset: Dataset, columns: Mapping[str, Any], *, return_dict: bool = False):
        if not isinstance(dataset, Dataset):
            raise DatasetError(
                f"Columns: {dataset!r} is not a gpupipe dataset; let your own Dataset return further values with its "
                "samples, in a tuple or a dictionary"
            )
        if not isinstance(columns, Mapping):
            raise DatasetError(f"Columns: columns must be a dictionary, not {type(columns).__name__}")
        names = checked_columns(columns, "Columns", [*dataset.columns])
        super().__init__(dataset, np.arange(len(dataset)))
        self._added = {name: _column(name, columns[name], len(dataset)) for name in names}
        self.form = form_of([*self.columns], labeled=dataset.labels is not None, return_dict=return_dict)

    @property
    def columns(self) -> Mapping[str, Target]:
        return {**self.dataset.columns, **self._added}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the dataset's fingerprint and of all values."""
        digest = hashlib.blake2b(f"columns 1 {self.dataset.fingerprint}".encode(), digest_size=8)
        for name, column in self._added.items():
            values = column.of(self.indices)
            if isinstance(values, np.ndarray):
                digest.update(repr((name, values.dtype.str, values.shape)).encode() + values.tobytes())
            else:
                digest.update(repr((name, [_short(value) for value in values])).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"Columns({', '.join(self._added)} beside {self.dataset!r})"


def _column(name: str, values: Any, count: int) -> Target:
    """Return the target for a column. Raises :class:`DatasetError`."""
    if isinstance(values, Target):
        have = len(values) if isinstance(values, Sized) else count
        if have != count:
            raise DatasetError(f"Columns: the column {name!r} has {have} values for {count} samples")
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind == "U" and values.ndim == 1:
        values = values.tolist()
    if isinstance(values, (list, tuple)) and values and all(isinstance(value, str) for value in values):
        if len(values) != count:
            raise DatasetError(f"Columns: the column {name!r} has {len(values)} texts for {count} samples")
        return TextColumn(Texts.of([text.encode(errors="surrogatepass") for text in values]))
    try:
        array: npt.NDArray[Any] = np.asarray(values.numpy() if callable(getattr(values, "numpy", None)) else values)
    except ValueError:
        raise DatasetError(
            f"Columns: the values of the column {name!r} differ in shape; pad them to one shape, or store them as "
            "JSON texts that your collate_fn parses"
        ) from None
    if array.dtype.kind not in "biuf" or array.ndim < 1 or len(array) != count:
        raise DatasetError(
            f"Columns: the column {name!r} is {array.dtype}{list(array.shape)}; it must be numbers [{count}] or "
            f"[{count}, ...], or {count} texts"
        )
    return NumberColumn(array)


def _short(value: Any) -> Any:
    """Return a text, the text of a path, or the type, shape and hash of an array."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hashlib.blake2b(value.tobytes(), digest_size=8).hexdigest()
    return os.fspath(value)
