"""Values that a dataset has for each index: rows of an array, possibly those that another array names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DatasetError

I64 = npt.NDArray[np.int64]

_SINCE = " since the epoch began; such a change counts from the next epoch on, so begin one"


@dataclass(frozen=True, eq=False)
class Values:
    """Values by index.

    Args:
        array: the array of which they are rows.
        dtype: data type to which they are converted.
        key: row of the array by index; ``None``: the index itself.
        numbers: the list of which ``array`` is a copy; ``None``: the array is the script's.
    """

    array: npt.NDArray[Any]
    dtype: np.dtype[Any]
    key: Values | None = None
    numbers: list[Any] | None = None

    @property
    def at(self) -> I64 | None:
        """Row of the array for each index; ``None``: the index itself, for all rows."""
        if self.key is None:
            return None
        found = self.key.every().astype(np.int64, copy=False)
        is_all = len(found) == len(self.array) and np.array_equal(found, np.arange(len(found)))
        return None if is_all else found

    def every(self) -> npt.NDArray[Any]:
        """Return the values for all indices; a view if possible."""
        at = self.at
        return (self.array if at is None else self.array[at]).astype(self.dtype, copy=False)

    def rows(self, indices: I64) -> npt.NDArray[Any]:
        """Return a copy of the values for some indices, as they are now.

        Raises :class:`DatasetError` if the script has changed an index or the type of a number since.
        """
        at = indices
        if self.key is not None:
            at = self.key.rows(indices).astype(np.int64, copy=False)
            if at.min(initial=0) < 0:
                raise DatasetError(f"index {at.min()} of a dataset's array counts from the end{_SINCE}")
        try:
            plain = self.numbers is None
            found = self.array.take(at, 0) if plain else np.array([self.numbers[i] for i in at.tolist()])  # type: ignore[index]
        except IndexError as e:
            raise DatasetError(f"{e}: an array of a dataset became shorter{_SINCE}") from None
        if found.dtype != self.array.dtype:
            raise DatasetError(f"a list of {self.array.dtype} in a dataset has {found.dtype}{_SINCE}")
        if not fits(found, self.dtype):
            raise DatasetError(f"numbers of a dataset do not fit {self.dtype}{_SINCE}")
        return found.astype(self.dtype, copy=False)

    def kept(self) -> Values:
        """Return values that do not follow changes."""
        return Values(self.every().copy(), self.dtype)

    def within(self, array: npt.NDArray[Any]) -> Values:
        """Return the same rows of another view of the array."""
        return replace(self, array=array, dtype=array.dtype if self.dtype == self.array.dtype else self.dtype)


def fits(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Tell whether integers can have all values. Of others, some functions raise an error, and some wrap around."""
    if dtype.kind not in "iu" or np.can_cast(values.dtype, dtype) or not values.size:
        return True
    limits = np.iinfo(dtype)
    return bool(np.min(values) >= limits.min and np.max(values) <= limits.max)
