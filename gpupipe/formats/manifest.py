"""Samples listed by their place: path, offset, length, label."""

from __future__ import annotations

import hashlib
import os
import re
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Unpack

from ..codecs.files import open_regular
from ..errors import DatasetError
from ..sources.base import Listing, Source
from ..sources.columns import checked_columns, parsed
from ..sources.extras import parse_json
from ..sources.files import Paths
from ..sources.list_file import LONGEST, bounded_lines, csv_rows, opened_list
from ..sources.names import Outside, below, is_url, urls_below
from ..sources.rows import Row, RowTable
from ..sources.storage import LOCAL, Found, Storage
from ..transforms.compose import Transforms
from .base import Format, ShardOptions, storage_of

_COLUMNS = ("path", "offset", "length", "label", "name")
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_PLACE = {"offset": 0, "length": -1}
"""Columns of numbers, and what they are if a line has none. A length of -1 is up to the end of the file."""


@dataclass(frozen=True, eq=False)
class Manifested(Source):
    """Rows of a list, in its order. A missing file makes bad rows, but is not an error."""

    file: str
    """Absolute path of the list."""
    digest: str
    """Hash of the bytes of the list."""
    base: str
    """Folder or URL that relative paths are below."""
    outside: Outside
    storage: Storage = field(default=LOCAL, repr=False)
    columns: tuple[str, ...] = ()

    whole_files: ClassVar[bool] = False

    @cached_property
    def prefix(self) -> bytes:
        if not self.storage.remote:
            return os.fsencode(os.path.join(self.base, ""))
        return self._paths(list(dict.fromkeys(_path(*line, self.file) for line in _lines(self.file)))).below

    @property
    def key(self) -> tuple[Any, ...]:
        # One index for a folder under all of its names.
        return "manifest", self.base if is_url(self.base) else os.path.realpath(self.base), self.outside, self.digest

    def listing(self, progress: Callable[[int], None]) -> Listing:
        started, numbers, there = time.time_ns(), dict[str, int](), dict[str, None]()
        container, rows, is_text = array("q"), list[Row](), False
        for line, values in _lines(self.file):
            there |= dict.fromkeys(values)
            is_text = isinstance(values, _Texts)
            container.append(numbers.setdefault(_path(line, values, self.file), len(numbers)))
            rows.append(self._row(line, values))
            if line % 4096 == 0:
                progress(line)
        if _digest(self.file) != self.digest:
            raise DatasetError(f"Manifest: {self.file} has changed since the dataset was made; make it again")
        for name in self.columns:
            if name not in there:
                has = ", ".join(map(repr, there))
                raise DatasetError(f"Manifest: {self.file} has no column {name!r}; it has {has}; correct columns=")
        # All texts of a column together decide what they are.
        labels = _numbers([row.label for row in rows])
        columns: list[Any] = [*zip(*(row.values for row in rows), strict=True)]
        columns = [*map(parsed, columns)] if is_text else columns
        paths, table = self._paths(list(numbers)), RowTable(self.columns)
        found = self.storage.look([paths[k] for k in range(len(paths))])
        for k, known in enumerate(found):
            table.container(paths.rows[k], Found(0, 0) if isinstance(known, OSError) else known)
        try:
            for i, (k, row) in enumerate(zip(container, rows, strict=True)):
                row = row._replace(label=labels[i], values=[column[i] for column in columns])
                known = found[k]
                if isinstance(known, OSError):
                    row = row._replace(offset=0, length=0, problem=known.strerror or str(known))
                elif row.length < 0:
                    row = row._replace(length=max(known.size - row.offset, 0))
                table.add(k, row._replace(name=row.name or b"%d" % i))
            return table.listing(self.prefix, started, absolute=paths.absolute)
        except ValueError as e:
            raise DatasetError(f"Manifest: {e}; correct the list") from None

    def _row(self, line: int, values: dict[str, Any]) -> Row:
        place = []
        for name, otherwise in _PLACE.items():
            value = otherwise if values.get(name) in (None, "") else values[name]
            number = int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value
            if type(number) is not int or not otherwise <= number < 1 << 62:
                raise DatasetError(
                    f"Manifest: line {line} of {self.file} has {name} {value!r}, which is not a number of bytes"
                )
            place.append(number)
        label = None if values.get("label") == "" else values.get("label")
        if label is not None and type(label) not in (int, str):
            raise DatasetError(
                f"Manifest: line {line} of {self.file} has label {label!r}; it must be a number or a name"
            )
        own = _encoded(str(values.get("name") or ""), line, self.file)
        offset, length = place
        return Row(own, offset, length, label, values=[values.get(column) for column in self.columns])

    def _paths(self, given: list[str]) -> Paths:
        """Return the files, each once."""
        if is_url(self.base):
            away = next((name for name in given if ".." in name.split("/")), None)
            if away is not None:
                raise DatasetError(
                    f"Manifest: {self.file} has the path {away!r}, which leads out of {self.base}; correct it"
                )
            given = [name if is_url(name) else f"{self.base.rstrip('/')}/{name}" for name in given]
        elif len(set(map(is_url, given))) > 1:
            raise DatasetError(f"Manifest: {self.file} has files and URLs; make a list of each kind")
        return (
            urls_below(given, "Manifest") if self.storage.remote else below(given, self.base, self.outside, "Manifest")
        )

    def fields(self) -> list[str]:
        _, row = next(_lines(self.file))
        return [name for name in row if name not in _COLUMNS]


def read_manifest(
    file: str, root: str | None, allow_outside: bool, remote: Storage, further: tuple[str, ...] = ()
) -> Manifested:
    """Return the samples that a CSV or JSONL file lists. ``further`` names columns besides those of place and label.

    Raises :class:`DatasetError` if its first line cannot be read. The others are read if there is no index of them.
    """
    path = os.path.abspath(os.path.expanduser(file))
    first = next(_lines(path), None)
    if first is None:
        raise DatasetError(f"Manifest: {file} lists no samples")
    base = root if root is not None else os.path.dirname(path)
    storage = remote if is_url(base) or is_url(_path(*first, path)) else LOCAL
    if not is_url(base):
        base = os.path.abspath(os.path.expanduser(base))
    outside: Outside = "allowed" if allow_outside else "absolute" if root is None else "refused"
    return Manifested(path, _digest(path), base, outside, storage, further)


def _digest(path: str) -> str:
    with opened_list(path, "Manifest") as file:
        return hashlib.file_digest(file.buffer, "blake2b").hexdigest()  # type: ignore[arg-type]


def _path(line: int, values: dict[str, Any], file: str) -> str:
    path = values.get("path")
    if not isinstance(path, str) or not path:
        raise DatasetError(f"Manifest: line {line} of {file} has no path; every line needs one")
    _encoded(path, line, file)
    return path


def _encoded(name: str, line: int, file: str) -> bytes:
    try:
        return os.fsencode(name)
    except UnicodeEncodeError as e:
        raise DatasetError(f"Manifest: line {line} of {file} has a name that no file can have: {e}") from None


class _Texts(dict[str, Any]):
    """A line of a CSV file, whose numbers are texts."""


def _numbers(labels: list[Any]) -> list[Any]:
    """Return numbers if all labels are: a CSV file has only texts."""
    found = parsed(labels)
    fraction = next((label for label, number in zip(labels, found, strict=True) if isinstance(number, float)), None)
    if fraction is not None:
        raise DatasetError(
            "Manifest: labels are class numbers or names, but these are fractions, such as "
            f"{fraction}; write integers, or name them with columns="
        )
    return found


def _lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, columns) of every line that is not empty."""
    with opened_list(path, "Manifest") as file:
        if file.readline(LONGEST).lstrip().startswith("{"):
            file.seek(0)
            for number, line in enumerate(bounded_lines(file), 1):
                if line.strip():
                    row = parse_json(line)
                    if not isinstance(row, dict):
                        raise DatasetError(f"Manifest: line {number} of {path} is not a JSON object")
                    yield number, row
            return
        file.seek(0)
        rows = csv_rows(file, path)
        _, names = next(rows, (0, []))
        spaced = [name for name in names if name != name.strip()]
        if spaced:
            raise DatasetError(
                f"Manifest: the first line of {path} names {spaced[0]!r}, with a space; write commas without spaces"
            )
        if "path" not in names:
            raise DatasetError(f"Manifest: the first line of {path} must name the columns {','.join(_COLUMNS)}")
        for number, row in rows:
            if len(row) != len(names):
                raise DatasetError(f"Manifest: line {number} of {path} has other columns than the first")
            yield number, _Texts(zip(names, row, strict=True))


class Manifest(Format):
    """Images that a CSV or JSONL file lists by their place: whole files, or parts of files of any format.

    The columns (named in the first line of a CSV file) are ``path``, a file or URL; ``offset`` and ``length`` in bytes,
    by default from the beginning and up to the end; ``label``, a class number or name; ``name``, for messages. A
    missing file makes bad samples, but is not an error.

    Args:
        file: The list.
        root: The folder or URL that relative paths are below. Default: the folder of the list.
        allow_outside: Allow paths that lead out of ``root``. Without ``root``: allow paths that lead out of the folder
            of the list by ``..``; absolute paths are always allowed then.
        columns: Further columns of the list. A line without a value is a bad sample.

    Raises:
        DatasetError: The list cannot be read, or a line of it is wrong.

    With lines such as ``{"path": "a.bin", "offset": 128, "length": 9000, "label": 3}``:

    >>> Manifest("samples.jsonl")  # doctest: +SKIP
    Manifest(50,000 samples in 12 files below '/data/')
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        transform: Transforms = None,
        *,
        root: str | os.PathLike[str] | None = None,
        allow_outside: bool = False,
        **options: Unpack[ShardOptions],
    ):
        base = None if root is None else os.fspath(root)
        columns = checked_columns(options.get("columns", ()), "Manifest", ("path", "offset", "length", "name"))
        storage = storage_of(options.get("remote"), "Manifest")
        source = read_manifest(os.fspath(file), base, allow_outside, storage, columns)
        super().__init__(source, transform, options)

    def __repr__(self) -> str:
        files = self._index.containers
        return f"Manifest({len(self):,} samples in {files:,} files below {self._shown_prefix()!r})"

    @classmethod
    def is_at(cls, path: str, entries: Sequence[str]) -> bool:
        if path.lower().endswith(".jsonl"):
            return True
        if not path.lower().endswith(".csv") or is_url(path):
            return False
        try:
            with open(os.path.expanduser(path), "rb", opener=open_regular) as lines:
                head = lines.readline(4096).decode("utf-8-sig", "replace")
        except OSError:
            return False
        return {"path", "offset"} <= {name.strip().strip('"') for name in head.split(",")}
