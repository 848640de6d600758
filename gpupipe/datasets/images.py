"""The base class of datasets of encoded images: a source of bytes, and an index."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..codecs.coding import Coding
from ..codecs.files import Place, Undecodable
from ..codecs.limits import Limits
from ..errors import BadSample
from ..sources.base import Source
from ..sources.storage import Found
from ..targets import Target
from ..transforms.compose import Transforms, as_compose
from .dataset import Batches, Dataset, Sample, checked_limits
from .index.open_index import open_index
from .index.summary import Summary, summarize
from .index.table import Index
from .options import with_options
from .sample_form import form_of


class Indexed(Dataset[Sample, Batches]):
    """Base class of datasets with an index.

    The constructor builds the index, in worker processes if there are many files to probe; they end before it returns.
    A dataset is pickled as the path of its index.
    """

    classes: list[str]
    """Sorted class names; empty if labels are plain numbers."""
    class_to_idx: dict[str, int]
    _index: Any
    _source: Source
    _made_again: ClassVar[frozenset[str]]
    """Attributes computed from the index on first use."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        with_options(cls)

    @abstractmethod
    def _open(self, *, rebuild: bool) -> None:
        """Open the index."""
        self.classes = list(self._index.classes)
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)}

    def reindex(self) -> None:
        """Check every file again, regardless of the index.

        Use this after overwriting files in place in a tree that is too large for opening to check all files.
        """
        for name in self._made_again:
            self.__dict__.pop(name, None)
        self._open(rebuild=True)

    def index_summary(self) -> Summary:
        """Return counts, formats or codecs, sizes and bad files. Reads all rows of the index."""
        bad = [BadSample(i, self._named(i), kind, reason) for i, kind, reason in self._index.all_bad()]
        return summarize(self._index, bad)

    @abstractmethod
    def _named(self, row: int) -> str:
        """Return the absolute path of a row of the index, and for a part of a file its name in there."""

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in self._made_again}


class EncodedImages(Indexed[Sample, Batches]):
    """Base class of datasets of encoded images with an index."""

    kind = "files"
    _index: Index
    _made_again = frozenset({"samples", "targets"})

    def __init__(
        self,
        source: Source,
        transform: Transforms,
        limits: Limits = Limits(),
        *,
        return_dict: bool = False,
    ):
        self.transform = as_compose(transform)
        self.limits = checked_limits(limits)
        self._source = source
        self._prefix = source.prefix
        self.whole_files = source.whole_files
        self._open(rebuild=False)
        if self.columns or return_dict:
            self.form = form_of([*self.columns], labeled=self.labels is not None, return_dict=return_dict)

    def _open(self, *, rebuild: bool) -> None:
        self._index = open_index(self._source, self.limits, rebuild=rebuild)
        self._source.storage.expect(int(self._index.container_size.read().sum()))
        super()._open(rebuild=rebuild)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def sizes(self) -> npt.NDArray[np.int32]:
        return (self._index.upright_sizes if self.limits.exif else self._index.stored_sizes).all

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        column = self._index.labels
        return None if column is None else column.all

    @property
    def columns(self) -> Mapping[str, Target]:
        return self._index.values

    @property
    def codings(self) -> tuple[npt.NDArray[np.uint8], list[Coding]]:
        return self._index.coding.all, self._index.codings

    @property
    def orientations(self) -> npt.NDArray[np.uint8]:
        # Without exif=, nothing is read from the index.
        return self._index.orientation.all if self.limits.exif else np.broadcast_to(np.uint8(1), len(self))

    @property
    def file_sizes(self) -> npt.NDArray[np.int64]:
        return self._index.sample_sizes()

    @property
    def fingerprint(self) -> str:
        samples = str(self._index.columns.meta["fingerprint"])
        return f"{samples}-upright" if self.limits.exif else samples

    @property
    def source(self) -> Source:
        return self._source

    def fetch(self, index: int) -> tuple[str | bytes, int | None]:
        """Return (absolute path, or the bytes of a part of a file; label).

        Raises :class:`~gpupipe.codecs.files.Undecodable` if the bytes cannot be read.
        """
        labels = self.labels
        label = None if labels is None else int(labels[index])
        place = self.place(index)
        if self.whole_files:
            return os.fsdecode(place.path), label
        (read,) = self._source.read([place])
        if isinstance(read, Undecodable):
            raise read
        return read, label

    def place(self, index: int) -> Place:
        return self._index.place(self.checked_index(index), self._prefix, self.limits.max_bytes)

    def forget(self, index: int) -> bool:
        return self._source.storage.forget(self.place(index))

    def found(self, index: int) -> Found:
        return self._index.found(self.checked_index(index))

    def describe(self, index: int) -> str:
        """Return the absolute path, and for a part of a file its name in there."""
        return self._named(self.checked_index(index))

    def _named(self, row: int) -> str:
        path, name = os.path.join(self._prefix, self._index.path(row)), self._index.name(row)
        return os.fsdecode(path + b":" + name if name else path)

    def sample_name(self, index: int) -> str:
        """Return the name within the container, or the path below the folder of the dataset if it has a file."""
        i = self.checked_index(index)
        name = self._index.name(i)
        # A number in a container of its own is only a position, so the path says more.
        alone = not name or (name.isdigit() and self._index.containers == len(self))
        return os.fsdecode(self._index.path(i) if alone else name)

    def bad(self, indices: npt.NDArray[np.int64]) -> list[BadSample]:
        return [BadSample(i, self._named(i), kind, reason) for i, kind, reason in self._index.bad(indices)]

    def encoded_paths(self, indices: npt.NDArray[np.int64]) -> list[npt.NDArray[np.uint8]]:
        return self._index.encoded(indices, self._prefix)

    def encoded_sizes(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._index.sample_sizes(indices)

    @cached_property
    def samples(self) -> list[tuple[str, Any]]:
        """(path, label) of every sample, as in torchvision.

        This list of Python objects is large for large datasets. It is created on first use, and gpupipe itself does not
        use it.
        """
        prefix, index = self._shown_prefix(), self._index
        return [(os.path.join(prefix, os.fsdecode(index.path(i))), label) for i, label in enumerate(self.targets)]

    @property
    def imgs(self) -> list[tuple[str, Any]]:
        """torchvision's alias of ``samples``."""
        return self.samples

    @cached_property
    def targets(self) -> list[Any]:
        """Label of every sample; see :attr:`samples`."""
        return [None] * len(self) if self.labels is None else self.labels.tolist()

    def _shown_prefix(self) -> str:
        return os.fsdecode(self._prefix)
