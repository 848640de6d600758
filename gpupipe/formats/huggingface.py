"""Datasets of Hugging Face's ``datasets`` whose table is mapped from Arrow files.

The bytes of images are located in these files and never read through that package again.
"""

from __future__ import annotations

import hashlib
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt

from ..errors import DatasetError, no_such_path
from ..printable import printable
from ..sources.arrow import bytes_of, checked_labels, further_of
from ..sources.base import Listing, Source
from ..sources.columns import checked_columns
from ..sources.rows import Row, RowTable
from ..sources.storage import LOCAL
from ..transforms.compose import Transforms
from .base import Format, TableOptions

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class HuggingFaceRows(Source):
    """Rows of a Hugging Face dataset.

    Args:
        dataset: only used while the index is built.
        image: the column of images.
        label: the column of class numbers or names.
        classes: the names of the classes, by number.
        columns: names of further columns.
    """

    dataset: Any = field(repr=False)
    image: str
    label: str | None
    classes: tuple[str, ...]
    columns: tuple[str, ...] = ()

    whole_files: ClassVar[bool] = False

    @property
    def prefix(self) -> bytes:
        return b"/"

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """JSON values that identify the files, the parts of them that form the table, and the chosen rows and
        their order."""
        digest = hashlib.blake2b(digest_size=16)
        for chunk in self._chunks:
            digest.update(repr((chunk.file, chunk.at, len(chunk.starts))).encode())
            digest.update(chunk.starts[:1].tobytes())
        for part in (part for name in self._beside for part in self._column(name).chunks):
            _update(digest, part)
        chosen = self._chosen
        digest.update(b"all" if chosen is None else chosen.astype("<i8").tobytes())
        return "huggingface", digest.hexdigest(), self.image, self.label, self.classes

    @property
    def _beside(self) -> tuple[str, ...]:
        """Columns whose values are kept in the index. Columns of the same name may differ between datasets in
        the same files."""
        return (*(() if self.label is None else (self.label,)), *self.columns)

    def _column(self, name: str) -> Any:
        """Return a column of the table, or the struct column that contains a field."""
        names = self.dataset.data.schema.names
        return self.dataset.data.column(name if name in names else name.partition(".")[0])

    @cached_property
    def _chosen(self) -> I64 | None:
        """i64[M]: the rows of the table that ``select`` or ``shuffle`` chose; ``None`` for all."""
        indices = self.dataset._indices
        return None if indices is None else np.asarray(indices.column(0).to_numpy(), np.int64)

    @cached_property
    def _chunks(self) -> list[_Chunk]:
        maps = MappedFiles()
        files = self.dataset.cache_files
        other = os.fsencode(files[0]["filename"]) if files else b""
        return [_chunk(part, maps, other) for part in self.dataset.data.column(self.image).chunks]

    def fields(self) -> list[str]:
        return [name for name in self.dataset.data.schema.names if name not in (self.image, self.label)]

    def listing(self, progress: Callable[[int], None]) -> Listing:
        started, rows, containers = time.time_ns(), RowTable(self.columns), dict[bytes, int]()

        def container(path: bytes) -> int:
            if path not in containers:
                (found,) = LOCAL.look([path])
                if isinstance(found, OSError):
                    raise DatasetError(
                        f"HuggingFace: {printable(path)} cannot be used: {found.strerror}; load it again"
                    )
                containers[path] = rows.container(path.removeprefix(b"/"), found)
            return containers[path]

        chunks = self._chunks
        first = np.cumsum([0, *(len(chunk.starts) for chunk in chunks)])
        chosen = np.arange(first[-1]) if self._chosen is None else self._chosen
        labels = self._labels
        try:
            values = further_of(self.dataset.data, self.columns)
        except ValueError as e:
            raise DatasetError(f"HuggingFace: {e}; correct columns=") from None
        # A row is in the last chunk that begins at or before it.
        for i, k in zip(chosen.tolist(), (np.searchsorted(first, chosen, side="right") - 1).tolist(), strict=True):
            path, row = chunks[k].row(i - int(first[k]), i)
            if not row.problem and labels is not None:
                row = row._replace(label=labels[i])
            if values:
                row = row._replace(values=values[i])
            try:
                rows.add(container(path), row)
            except ValueError as e:
                raise DatasetError(f"HuggingFace: {e}; leave it out of columns=") from None
            if len(rows) % 4096 == 0:
                progress(len(rows))
        if not len(rows):
            raise DatasetError("HuggingFace: this dataset has no rows")
        try:
            return rows.listing(self.prefix, started, classes=self.classes)
        except ValueError as e:
            raise DatasetError(f"HuggingFace: {e}; name others by label= and columns=") from None

    @cached_property
    def _labels(self) -> list[Any] | None:
        if self.label is None:
            return None
        try:
            return [label for part in self.dataset.data.column(self.label).chunks for label in checked_labels(part)]
        except ValueError as e:
            raise DatasetError(f"HuggingFace: {e}; name another column by label=") from None

    def __getstate__(self) -> dict[str, Any]:
        # The index has all of this. Only the key is still needed, and is computed while the dataset is here.
        key = self.key
        return {**self.__dict__, "dataset": None, "_chunks": None, "_chosen": None, "_labels": None, "key": key}


def _update(digest: Any, part: Any) -> None:
    """Update a hash with all buffers of a part of a column."""
    digest.update(repr((part.type, part.offset, len(part))).encode())
    for buffer in part.buffers():
        digest.update(b"none" if buffer is None else memoryview(buffer))


@dataclass(frozen=True)
class _Chunk:
    """A part of the table."""

    file: bytes
    at: int
    """Start of the column's data in the file."""
    starts: I64
    lengths: I64
    """i64[N], bytes of the images in the file; -1 for missing ones."""
    paths: Any
    """The column of paths, or ``None``."""

    def row(self, j: int, number: int) -> tuple[bytes, Row]:
        """Return (file, row) of one image. ``number`` names it if it has no path."""
        named = self.paths[j].as_py() if self.paths is not None else None
        name = (named or str(number)).encode(errors="surrogateescape")
        if self.lengths[j] >= 0:
            return self.file, Row(name, int(self.starts[j]), int(self.lengths[j]))
        path = os.path.abspath(named) if named and "://" not in named else ""
        try:
            return os.fsencode(path), Row(name, 0, os.stat(path).st_size)
        except (OSError, ValueError):
            return self.file, Row(name, 0, 0, problem=f"it has no bytes; {no_such_path(named)}")


def _chunk(part: Any, maps: MappedFiles, other: bytes) -> _Chunk:
    """Locate a part of a column. ``other`` is the file to report if none contains the bytes."""
    found: list[tuple[bytes, int]] = []

    def locate(address: int, size: int) -> int:
        where = maps.find(address, size)
        if where is None:
            raise DatasetError(
                "HuggingFace: this dataset is in memory, not in Arrow files; write it with "
                "ds.save_to_disk(folder), and open it with datasets.load_from_disk(folder)"
            )
        found.append(where)
        return where[1]

    try:
        starts, lengths, paths = bytes_of(part, locate)
    except ValueError as e:
        raise e if isinstance(e, DatasetError) else DatasetError(f"HuggingFace: {e}; name a column by image=") from None
    file, at = found[0] if found else (other, 0)
    return _Chunk(file, at, starts, lengths, paths)


class HuggingFace(Format):
    """The images of a Hugging Face ``datasets.Dataset``: their bytes are read from its Arrow files, or from the image
    files that it names, without that package. ``select``, ``shuffle``, ``filter`` and ``train_test_split`` choose the
    rows and their order. Its own format and transform (``with_transform``) are not run.

    Not supported: streams; datasets in memory; several splits; ``Image(mode=...)`` other than RGB.

    Args:
        dataset: A map-style ``datasets.Dataset`` in files, such as ``load_dataset(..., split="train")``; for Parquet
            files, ``load_dataset("parquet", data_files=..., split="train")``.
        image: The column of images. ``None``: the only one of type ``Image``.
        label: The column of class numbers or names. ``None``: the only ``ClassLabel``, or ``label`` if it exists.

    Raises:
        DatasetError: It is an iterable dataset, is in memory, has several splits, or a column cannot be used.

    >>> HuggingFace(datasets.load_dataset("imagenet-1k", split="train"))  # doctest: +SKIP
    HuggingFace(1,281,167 samples of 'image' with 'label', 1,000 classes)
    """

    def __init__(
        self,
        dataset: Any,
        transform: Transforms = None,
        *,
        image: str | None = None,
        label: str | None = None,
        **options: Unpack[TableOptions],
    ):
        features = _features(dataset)
        column = _only(features, "Image", image, "image")
        _refuse_lists(features, image)
        if column is None:
            raise DatasetError(
                f"HuggingFace: name the column of images by image=; the columns are {', '.join(map(str, features))}"
            )
        target = _only(features, "ClassLabel", label, "label")
        if target is None and label is None and "label" in features:
            target = "label"
        decoded = type(features[column]).__name__ == "Image" and features[column].decode
        if decoded and features[column].mode not in (None, "RGB"):
            raise DatasetError(
                f"HuggingFace: its column {column!r} is {features[column]}, but gpupipe opens images in RGB; use "
                f"cast_column({column!r}, datasets.Image()), and choose the mode with a transform such as Grayscale"
            )
        names = tuple(getattr(features[target], "names", None) or ()) if target is not None else ()
        self._columns = column, target
        further = checked_columns(options.get("columns", ()), "HuggingFace", (column, target))
        for name in further:  # "meta.weight" is a field of a struct
            _only(features, "", name if name in features else name.partition(".")[0], "columns")
        source = HuggingFaceRows(dataset, column, target, names, further)
        super().__init__(source, transform, options, exif=decoded)

    def __repr__(self) -> str:
        image, label = self._columns
        labels = "" if label is None else f" with {label!r}"
        classes = f", {len(self.classes):,} classes" if self.classes else ""
        return f"HuggingFace({len(self):,} samples of {image!r}{labels}{classes})"

    @classmethod
    def is_at(cls, path: str, entries: Sequence[str]) -> bool:
        return {"state.json", "dataset_info.json"} <= {*entries}

    @classmethod
    def from_path(cls, path: str, **arguments: Any) -> HuggingFace:
        try:
            from datasets import load_from_disk
        except ImportError as e:
            raise DatasetError(
                f"{path}: a dataset that Hugging Face saved is opened with its package ({e}); pip install datasets"
            ) from None
        try:
            dataset = load_from_disk(str(path))
        except (OSError, ValueError) as e:  # damaged or missing files
            raise DatasetError(f"HuggingFace: {path} cannot be used: {e}") from None
        return cls(dataset, **arguments)


def _features(dataset: Any) -> dict[str, Any]:
    """Return the columns of a dataset and their types. Raises :class:`DatasetError` if it is not a dataset with
    rows."""
    kind = type(dataset).__name__
    if kind in ("DatasetDict", "IterableDatasetDict"):
        raise DatasetError(
            f"HuggingFace: this has several splits; choose one: dataset[{next(iter(dataset), 'train')!r}]"
        )
    if kind == "IterableDataset":
        raise DatasetError(
            "HuggingFace: an IterableDataset has no rows that can be requested by number; load it without "
            "streaming=True, or give the "
            "Dataset that to_iterable_dataset() was called on"
        )
    if not all(hasattr(dataset, name) for name in ("features", "data", "cache_files", "_indices")):
        raise DatasetError(f"HuggingFace: {type(dataset).__module__}.{kind} is not a datasets.Dataset")
    return dict(dataset.features)


def _refuse_lists(features: dict[str, Any], image: str | None) -> None:
    """Raise :class:`DatasetError` if the images are in lists."""
    kinds = [type(feature).__name__ for feature in features.values()]
    for name, feature in features.items():
        one = getattr(feature, "feature", feature[0] if isinstance(feature, list) else None)
        if type(one).__name__ == "Image" and (name == image or (image is None and "Image" not in kinds)):
            raise DatasetError(
                f"HuggingFace: each row of its column {name!r} is a list of images, but a sample has one image; make "
                "a row of each: "
                f"dataset.map(lambda rows: {{'image': [i for row in rows[{name!r}] for i in row]}}, batched=True, "
                "remove_columns=dataset.column_names), with further columns in the same way"
            )


def _only(features: dict[str, Any], kind: str, given: str | None, argument: str) -> str | None:
    """Return the named column, or else the only one of a type."""
    if given is None:
        found = [name for name, feature in features.items() if type(feature).__name__ == kind]
        return found[0] if len(found) == 1 else None
    if given not in features:
        raise DatasetError(f"HuggingFace: there is no column {argument}={given!r}; there are {', '.join(features)}")
    return given


class MappedFiles:
    """Memory mappings of this process, read from ``/proc/self/maps``: the file of each piece of memory."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int, int, bytes]] = []
        with open("/proc/self/maps", "rb") as file:
            for line in file:
                # Address, permissions, offset, device, inode, and the path if a file is mapped.
                parts = line.split(None, 5)
                if len(parts) < 6 or not parts[5].startswith(b"/"):
                    continue
                start, _, end = parts[0].partition(b"-")
                self._ends.append((int(start, 16), int(end, 16), int(parts[2], 16), _unescaped(parts[5].rstrip(b"\n"))))
        self._starts = [start for start, *_ in self._ends]

    def find(self, address: int, size: int) -> tuple[bytes, int] | None:
        """Return (file, position in it) for memory that is mapped from a file; ``None`` for other memory."""
        k = bisect_right(self._starts, address) - 1
        if k < 0:
            return None
        start, end, offset, path = self._ends[k]
        # Another file may have the name of a deleted one.
        if not start <= address <= address + size <= end or path.endswith(b" (deleted)"):
            return None
        return path, address - start + offset


def _unescaped(path: bytes) -> bytes:
    # The kernel writes a line break in a path like this.
    return path.replace(b"\\012", b"\n")
