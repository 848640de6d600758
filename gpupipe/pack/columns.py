"""Columns and keys of the samples that are packed: one pass over the source writes them to a file, from which the
processes that write shards read them in any order."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ..datasets.images import EncodedImages
from ..errors import ConfigError
from ..sources.columns import LONGEST, array_of

KEY = "__key__"
"""Name of the column with the keys of samples."""
_OFFSET = 8
"""Bytes of an offset."""


@dataclass(frozen=True)
class Column:
    """One column that is carried."""

    name: str
    """In the source."""
    kind: str
    """``"bool"``, ``"int"``, ``"float"``, ``"str"``; ``"array"`` of one shape, ``"arrays"`` of several, or ``"json"``
    for anything else that JSON holds, which becomes a text."""
    dtype: str = ""
    """Data type of arrays."""
    shape: tuple[int, ...] = ()
    """Shape of arrays."""
    stored: str = ""
    """Name by which ``columns=`` reads it from the shards."""
    note: str = ""
    """Note for the report on how the shards change the column's values."""

    def value(self, read: Any) -> Any:
        """Convert a value of the source to the type of the column."""
        if read is None:
            return None
        if self.kind == "json":
            return json.dumps(read.tolist() if isinstance(read, np.ndarray) else read, ensure_ascii=False)
        if self.kind == "array":
            return np.ascontiguousarray(read, self.dtype)
        return float(read) if self.kind == "float" else read


@dataclass(frozen=True)
class Carried:
    """Columns and keys in a file of a folder. Picklable, as its path."""

    folder: str
    columns: tuple[Column, ...]
    left_out: tuple[tuple[str, str], ...]
    """(name, reason) of columns that are not carried."""
    keys: bool = True
    """Whether shards store keys as a column."""
    digest: str = ""
    """Checksum of all values."""
    repeated: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """i64[R], ascending: samples whose key another sample has too."""

    def rows(self, indices: Sequence[int]) -> Iterator[tuple[str, list[Any]]]:
        """Yield (key, values of the columns) for each sample."""
        with open(os.path.join(self.folder, "values"), "rb") as values:
            offsets = np.memmap(os.path.join(self.folder, "offsets"), np.int64, "r")
            for index in indices:
                values.seek(offsets[index])
                key, *row = json.loads(values.read(int(offsets[index + 1] - offsets[index])))
                yield key, [column.value(_restored(row[at])) for column, at in self._places]

    def sizes(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """i64[N]: about the bytes of the key and the columns of samples."""
        if not self.stored:
            return np.zeros(len(indices), np.int64)
        offsets = np.memmap(os.path.join(self.folder, "offsets"), np.int64, "r")
        found: npt.NDArray[np.int64] = offsets[indices + 1] - offsets[indices]
        return found

    def is_repeated(self, index: int) -> bool:
        """Return whether another sample has the key of this one."""
        at = int(np.searchsorted(self.repeated, index))
        return at < len(self.repeated) and int(self.repeated[at]) == index

    @property
    def _places(self) -> list[tuple[Column, int]]:
        return [(column, at) for at, column in enumerate(self.columns) if column.stored]

    @property
    def stored(self) -> list[Column]:
        """The columns that shards have."""
        return [column for column, _ in self._places]


class _Kinds:
    """Facts about the values of a column."""

    def __init__(self, name: str):
        self.name = name
        self.present = 0
        self.problem = ""
        self._seen: set[str] = set()
        self._shape: tuple[int, ...] | None = None
        self._dtype: Any = None
        self._equal = np.ones(2, np.bool_)

    def add(self, value: Any, of: npt.NDArray[np.int32]) -> Any:
        """Return the value as it is stored, or ``None`` if there is none or it cannot be stored.

        Args:
            of: i32[2], height and width of the image.
        """
        if self.problem or value is None:
            return None
        self.present += 1
        if self._equal.any():
            self._equal &= of == value if isinstance(value, (int, np.integer)) else np.False_
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, list):
            value = array_of(value)
        try:
            kind, size = self._kind(value)
        except (TypeError, ValueError, RecursionError) as e:
            kind, size = "", 0
            self.problem = str(e) if isinstance(e, _Unfit) else f"values of type {type(value).__name__}"
        if size > LONGEST:
            self.problem = f"a value has {size:,} bytes, and columns= reads at most {LONGEST:,}"
        if self.problem:
            return None
        self._seen.add(kind)
        return value

    def close(self, count: int, *, no_sizes: bool) -> None:
        """Judge the column after its last value.

        Args:
            count: number of values that the source has.
            no_sizes: whether to leave out a column with the heights or the widths of the images.
        """
        if not self.problem and count > self.present:
            self.problem = "values that cannot be read"
        if not self.problem and not self.present:
            self.problem = "no sample has a value"
        if no_sizes and self.is_size:
            self.problem = "it is the size before resizing; --columns copies it"

    @property
    def is_size(self) -> bool:
        """Whether all values are the heights of the images, or all are the widths."""
        return bool(self.present and self._equal.any())

    def _kind(self, value: Any) -> tuple[str, int]:
        """(kind, bytes)"""
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biuf":
                raise _Unfit(f"arrays of {value.dtype}")
            if not value.size or value.dtype in (np.uint64, np.longdouble):
                return "json", len(json.dumps(value.tolist()))
            if self._shape is None:
                self._shape, self._dtype = value.shape, value.dtype.newbyteorder("<")
            if value.shape != self._shape:
                self._seen.add("arrays")
            self._dtype = np.result_type(self._dtype, value)
            return "array", value.nbytes
        if isinstance(value, str):
            try:
                return "str", len(value.encode())
            except UnicodeEncodeError:
                raise _Unfit("a text that is not valid Unicode") from None
        if isinstance(value, (bytes, bytearray)):
            raise _Unfit("binary values")
        if type(value) is int and not -(1 << 63) <= value < 1 << 63:
            return "json", 8
        if type(value) in (bool, int, float):
            return type(value).__name__, 8
        return "json", len(json.dumps(value, ensure_ascii=False).encode())

    def column(self) -> Column:
        seen = self._seen
        if seen <= {"int", "float"} and "float" in seen:
            return Column(self.name, "float")
        if seen == {"array"}:
            return Column(self.name, "array", np.dtype(self._dtype).newbyteorder("<").str, self._shape or ())
        if seen == {"array", "arrays"}:
            return Column(self.name, "arrays")
        return Column(self.name, next(iter(seen)) if len(seen) == 1 else "json")


class _Unfit(ValueError):
    """A value that no shard stores; the message says what it is."""


def carry(
    dataset: EncodedImages,
    folder: str,
    wanted: Sequence[str] | None,
    bad: Sequence[int],
    arrange: Callable[[Sequence[Column], bool], tuple[list[Column], list[tuple[str, str]]]],
    key_of: Callable[[str], str],
    resized: bool,
    progress: Callable[[int], None],
) -> Carried:
    """Read columns and keys of every sample into a file of ``folder``.

    Args:
        wanted: names of columns; ``None`` for all of them.
        bad: samples that are not packed.
        arrange: gives the columns of a source, which may be an archive, their names in shards: (columns, left out).
        key_of: gives a key in the source its form in shards.
        resized: whether images change their sizes. Columns with the sizes are then left out, unless they are wanted.

    Raises:
        ConfigError: a column that was named does not exist, or cannot be stored.
        DatasetError: the source cannot be read.
    """
    source = dataset.source
    counts = dict(source.field_counts())
    refused = {name: source.refuses(name) for name in _names(counts, wanted)}
    usable, left_out = [n for n, why in refused.items() if not why], [(n, why) for n, why in refused.items() if why]
    has_key = KEY in counts
    kinds = [_Kinds(name) for name in usable]
    digest, missing = xxhash.xxh3_128(), [0] * len(kinds)
    spoiled, hashes, sizes = {*bad}, np.zeros(len(dataset), np.uint64), dataset.sizes
    rows = source.values_of((*usable, *((KEY,) if has_key else ()))) if usable or has_key else iter(())
    with (
        open(os.path.join(folder, "values"), "wb") as values,
        open(os.path.join(folder, "offsets"), "wb") as offsets,
    ):
        at = 0
        for index in range(len(dataset)):
            row = list(next(rows, ())) or [None] * (len(usable) + has_key)
            key = row.pop() if has_key else None
            key = key if isinstance(key, str) and key else _key(dataset, index)
            key = key.encode(errors="replace").decode()
            if index in spoiled:
                # The source counts their values too, but they need not be readable.
                missing = [count + 1 for count in missing]
                row = [None] * len(usable)
            else:
                row = [kind.add(value, sizes[index]) for kind, value in zip(kinds, row, strict=True)]
                hashes[index] = xxhash.xxh3_64_intdigest(key_of(key).encode())
            line = json.dumps([key, *map(_encoded, row)]).encode()
            digest.update(line)
            offsets.write(at.to_bytes(_OFFSET, "little"))
            values.write(line)
            at += len(line)
            if index % 4096 == 0:
                progress(index)
        offsets.write(at.to_bytes(_OFFSET, "little"))
    for kind, lacking in zip(kinds, missing, strict=True):
        kind.close(counts.get(kind.name, 0) - lacking, no_sizes=resized and wanted is None)
    left_out += [(kind.name, kind.problem) for kind in kinds if kind.problem]
    columns = [Column(kind.name, "") if kind.problem else kind.column() for kind in kinds]
    arranged, without_place = arrange([column for column in columns if column.kind], source.archive)
    by_name = {column.name: column for column in arranged}
    left_out += without_place
    if wanted and left_out:
        raise ConfigError(f"--columns {left_out[0][0]}: it cannot be stored: {left_out[0][1]}")
    final = tuple(by_name.get(column.name, column) for column in columns)
    digest.update(repr(final).encode())
    keys = wanted is None or bool(wanted)
    return Carried(folder, final, tuple(left_out), keys, digest.hexdigest(), _repeated(hashes, spoiled))


def _names(counts: Mapping[str, int], wanted: Sequence[str] | None) -> list[str]:
    """Return the names of the columns to read. Raises :class:`ConfigError` for one that the source does not have."""
    for name in wanted or ():
        # A part of a column, such as json:weight or meta.weight, belongs to the column before the separator.
        if counts and name not in counts and name.partition(":")[0].partition(".")[0] not in counts and name != KEY:
            there = ", ".join(map(repr, counts)) or "none"
            raise ConfigError(f"--columns {name}: there is no such column; there are {there}")
    return [name for name in (counts if wanted is None else wanted) if name != KEY]


def _repeated(hashes: npt.NDArray[np.uint64], spoiled: set[int]) -> npt.NDArray[np.int64]:
    """i64[R]: good samples whose key is that of another one."""
    good = np.setdiff1d(np.arange(len(hashes)), np.fromiter(spoiled, np.int64, len(spoiled)))
    _, inverse, counts = np.unique(hashes[good], return_inverse=True, return_counts=True)
    repeated: npt.NDArray[np.int64] = good[counts[inverse.reshape(-1)] > 1]
    return repeated


def _key(dataset: EncodedImages, index: int) -> str:
    """Name of a sample below the folder of the dataset, without its extension; its number if it has no name."""
    name = dataset.sample_name(index)
    if name.isdigit():  # a position
        return f"{index:09d}"
    folder, slash, last = name.rpartition("/")
    stem = last.rpartition(".")[0] or last
    return (folder + slash + stem).encode(errors="surrogateescape").decode(errors="replace")


def _encoded(value: Any) -> Any:
    """Return a value for JSON: an array or an object becomes an object with one name, which says what it is."""
    if isinstance(value, dict):
        return {"object": value}
    if not isinstance(value, np.ndarray):
        return value
    data = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return {"array": [data.dtype.str, list(value.shape), base64.b64encode(data.tobytes()).decode()]}


def _restored(value: Any) -> Any:
    """Return the value that :func:`_encoded` was given."""
    if not isinstance(value, dict):
        return value
    if "object" in value:
        return value["object"]
    dtype, shape, data = value["array"]
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape)


def canonical(value: Any) -> bytes:
    """Bytes that are the same for equal values of one type only."""
    if isinstance(value, (list, np.ndarray)):
        array = np.asarray(value)
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return f"{array.dtype.str}{list(value.shape) if isinstance(value, np.ndarray) else [len(value)]}:".encode() + (
            array.tobytes()
        )
    return f"{type(value).__name__}:{value!r}".encode()
