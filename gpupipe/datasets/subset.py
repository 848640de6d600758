"""``Subset``: selected samples of another dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..codecs.coding import Coding
from ..codecs.decode import Media
from ..codecs.files import Place
from ..errors import BadSample, DatasetError
from ..sources.base import Source
from ..sources.storage import Found
from ..targets import ChosenRows, Target
from ..transforms.compose import Transforms, as_compose
from .dataset import Batches, Dataset, Sample

if TYPE_CHECKING:
    from ..codecs.video.decode import VideoEntry


class Subset(Dataset[Sample, Batches]):
    """Samples of ``dataset`` at ``indices``, in that order. Indices may repeat.

    Args:
        dataset: a gpupipe dataset.
        indices: int[M], each from 0 to ``len(dataset) - 1``.
        transform: another pipeline, for example for validation; ``None`` keeps that of the dataset.

    Raises:
        DatasetError: ``dataset`` is not a gpupipe dataset, or an index is out of range.

    >>> from gpupipe.datasets import Arrays
    >>> part = Subset(Arrays(np.zeros((4, 8, 8, 3), np.uint8), [3, 1, 4, 1]), [2, 0])
    >>> part, part.labels.tolist()
    (Subset(2 of Arrays(uint8[4, 8, 8, 3])), [4, 3])
    """

    def __init__(self, dataset: Dataset[Sample, Batches], indices: Any, *, transform: Transforms = None):
        if not isinstance(dataset, Dataset):
            raise DatasetError(
                f"Subset: {type(dataset).__name__} is not a gpupipe dataset; use torch.utils.data.Subset for it"
            )
        values = np.asarray(indices)
        if values.size == 0:
            values = values.astype(np.int64)
        if values.ndim != 1 or values.dtype.kind not in "iu":
            hint = "; numpy.flatnonzero(mask) gives the indices of a mask" if values.dtype.kind == "b" else ""
            raise DatasetError(f"Subset: indices must be integers, not {values.dtype}[{values.shape}]{hint}")
        outside = (values < 0) | (values >= len(dataset))
        if outside.any():
            raise DatasetError(
                f"Subset: index {values[int(np.argmax(outside))]} at position {int(np.argmax(outside))} is outside; "
                f"this dataset has {len(dataset)} samples, so indices go from 0 to {len(dataset) - 1}"
            )
        self.dataset = dataset
        self.indices: npt.NDArray[np.int64] = values.astype(np.int64)
        self.kind = dataset.kind
        self.whole_files = dataset.whole_files
        self.limits = dataset.limits
        self.medium = dataset.medium
        self.form = dataset.form
        self.upright = dataset.upright
        self.transform = dataset.transform if transform is None else as_compose(transform)

    def forget(self, index: int) -> bool:
        return self.dataset.forget(int(self.indices[index]))

    def __len__(self) -> int:
        return len(self.indices)

    def _chosen(self, column: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
        return None if column is None else column[self.indices]

    @cached_property
    def sizes(self) -> npt.NDArray[np.int32] | None:
        return self._chosen(self.dataset.sizes)

    @cached_property
    def labels(self) -> npt.NDArray[np.int64] | None:
        return self._chosen(self.dataset.labels)

    @property
    def columns(self) -> Mapping[str, Target]:
        return {name: ChosenRows(target, self.indices) for name, target in self.dataset.columns.items()}

    @cached_property
    def codings(self) -> tuple[npt.NDArray[np.uint8], Sequence[Coding]] | None:
        known = self.dataset.codings
        return None if known is None else (known[0][self.indices], known[1])

    @property
    def orientations(self) -> npt.NDArray[np.uint8] | None:
        return self._chosen(self.dataset.orientations)

    @property
    def file_sizes(self) -> npt.NDArray[np.int64] | None:
        return self._chosen(self.dataset.file_sizes)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(f"subset 1 {self.dataset.fingerprint} ".encode(), digest_size=8)
        digest.update(self.indices.astype("<i8").tobytes())
        return digest.hexdigest()

    def fetch(self, index: int) -> tuple[Media, Any]:
        return self.dataset.fetch(int(self.indices[index]))

    def describe(self, index: int) -> str:
        return self.dataset.describe(int(self.indices[index]))

    def bad(self, indices: npt.NDArray[np.int64]) -> list[BadSample]:
        """Return bad samples, with indices in this subset."""
        inner = self.indices[indices]
        known = {sample.index: sample for sample in self.dataset.bad(inner)}
        if not known:
            return []
        pairs = zip(np.asarray(indices).tolist(), inner.tolist(), strict=True)
        return [known[i]._replace(index=k) for k, i in pairs if i in known]

    @property
    def source(self) -> Source:
        return self.dataset.source

    def place(self, index: int) -> Place:
        return self.dataset.place(int(self.indices[index]))

    def found(self, index: int) -> Found:
        return self.dataset.found(int(self.indices[index]))

    def encoded_paths(self, indices: npt.NDArray[np.int64]) -> list[npt.NDArray[np.uint8]]:
        return self.dataset.encoded_paths(self.indices[indices])

    def encoded_sizes(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        return self.dataset.encoded_sizes(self.indices[indices])

    def choose(
        self, seed: int, epoch: int, keys: npt.NDArray[np.uint64], indices: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64] | None:
        return self.dataset.choose(seed, epoch, keys, self.indices[indices])

    @property
    def pictures_per_sample(self) -> int:
        return self.dataset.pictures_per_sample

    def entry(self, index: int) -> VideoEntry:
        return self.dataset.entry(int(self.indices[index]))

    @property
    def clip_ids(self) -> npt.NDArray[np.int32]:
        """Clip ids of these samples."""
        ids: npt.NDArray[np.int32] = self.dataset.clip_ids[self.indices]  # type: ignore[attr-defined]
        return ids

    @property
    def classes(self) -> list[str]:
        """Classes of the whole dataset, even those without samples here. AttributeError if it has none."""
        return self.dataset.classes  # type: ignore[attr-defined,no-any-return]

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class indices of the whole dataset."""
        return self.dataset.class_to_idx  # type: ignore[attr-defined,no-any-return]

    def raw(self, index: int) -> tuple[Any, Any]:
        return self.dataset.raw(int(self.indices[index]))

    def __getstate__(self) -> dict[str, Any]:
        made_again = ("sizes", "labels", "codings")  # taken from the dataset again
        return {k: v for k, v in self.__dict__.items() if k not in made_again}

    def __repr__(self) -> str:
        return f"Subset({len(self):,} of {self.dataset!r})"
