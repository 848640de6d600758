"""Samples listed by their place: path, offset, length, label."""

from __future__ import annotations

import csv
import hashlib
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt

from ..codecs.files import open_regular
from ..errors import DatasetError
from ..sources.base import Listing, Source, TextList, Texts
from ..sources.columns import are_fractions, checked_columns, parsed
from ..sources.extras import NotJsonError, parse_json
from ..sources.files import Paths
from ..sources.names import Outside, below, is_url, urls_below
from ..sources.rows import Row, RowTable
from ..sources.storage import LOCAL, Found, Storage
from ..transforms.compose import Transforms
from .base import Format, ShardOptions, storage_of

I64 = npt.NDArray[np.int64]

_COLUMNS = ("path", "offset", "length", "label", "name")
_LONGEST = 4 << 20
"""Maximum number of characters of a line."""


@dataclass(frozen=True, eq=False)
class Manifested(Source):
    """Rows of a list, in its order. A missing file makes bad rows, but is not an error."""

    paths: Paths
    """The files, each once."""
    container: I64 = field(repr=False)
    """i64[N]: index of the file of each row."""
    offset: I64 = field(repr=False)
    length: I64 = field(repr=False)
    """i64[N], bytes; -1 for up to the end of the file."""
    labels: tuple[int | str | None, ...] = field(repr=False)
    """Labels; empty if there are none."""
    names: Texts = field(repr=False)
    storage: Storage = field(default=LOCAL, repr=False)
    columns: tuple[str, ...] = ()
    values: tuple[tuple[Any, ...], ...] = field(default=(), repr=False)
    """Values of every row, in the order of ``columns``."""
    file: str = ""
    """Absolute path of the list."""

    whole_files: ClassVar[bool] = False

    @property
    def prefix(self) -> bytes:
        return self.paths.below

    @property
    def key(self) -> tuple[Any, ...]:
        digest = hashlib.blake2b(digest_size=16)
        for column in (self.container, self.offset, self.length, self.names.offsets):
            digest.update(column.astype("<i8").tobytes())
        digest.update(bytes(self.names.blob))
        digest.update(repr(self.labels).encode())
        digest.update(repr(self.values).encode() if self.columns else b"")
        return "manifest", *self.paths.key, digest.hexdigest()

    def listing(self, progress: Callable[[int], None]) -> Listing:
        started, rows = time.time_ns(), RowTable(self.columns)
        found = self.storage.look([self.paths[k] for k in range(len(self.paths))])
        for k, known in enumerate(found):
            rows.container(self.paths.rows[k], Found(0, 0) if isinstance(known, OSError) else known)
        columns = (self.container, self.offset, self.length)
        for i, (k, offset, length) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            known = found[k]
            label = self.labels[i] if self.labels else None
            row = Row(self.names[i] or b"%d" % i, offset, length, label, values=self.values[i] if self.columns else ())
            if isinstance(known, OSError):
                row = row._replace(offset=0, length=0, problem=known.strerror or str(known))
            elif length < 0:
                row = row._replace(length=max(known.size - offset, 0))
            try:
                rows.add(k, row)
            except ValueError as e:
                raise DatasetError(f"Manifest: {e}; correct the list") from None
            if i % 4096 == 0:
                progress(i)
        try:
            return rows.listing(self.prefix, started, absolute=self.paths.absolute)
        except ValueError as e:
            raise DatasetError(f"Manifest: {e}; correct the list") from None

    def fields(self) -> list[str]:
        _, row = next(_lines(self.file))
        return [name for name in row if name not in _COLUMNS]

    def __getstate__(self) -> dict[str, Any]:
        nothing = np.empty(0, np.int64)  # all of this is in the index
        return {
            **self.__dict__,
            **dict.fromkeys(("container", "offset", "length"), nothing),
            "labels": (),
            "values": (),
            "names": Texts.of([]),
        }


def read_manifest(
    file: str, root: str | None, allow_outside: bool, remote: Storage, further: tuple[str, ...] = ()
) -> Manifested:
    """Read the samples listed in a CSV or JSONL file. ``further`` names columns besides those of place and label.

    Raises :class:`DatasetError` if it cannot be read, or if a line is wrong, with its number.
    """
    path = os.path.abspath(os.path.expanduser(file))
    numbers: dict[str, int] = {}
    columns = [array("q") for _ in range(3)]
    labels: list[int | str | None] = []
    names = TextList()
    values: list[list[Any]] = []
    is_text = True
    there: dict[str, None] = {}
    for line, row in _lines(path):
        there |= dict.fromkeys(row)
        where, is_text = row.get("path"), isinstance(row, _Texts)
        values.append([row.get(name) for name in further])
        if not isinstance(where, str) or not where:
            raise DatasetError(f"Manifest: line {line} of {file} has no path; every line needs one")
        for column, name, otherwise in zip(columns[1:], ("offset", "length"), (0, -1), strict=True):
            column.append(_integer(row.get(name), otherwise, name, line, file))
        columns[0].append(numbers.setdefault(where, len(numbers)))
        labels.append(_label(row.get("label"), line, file))
        try:
            os.fsencode(where)
            names.append(os.fsencode(str(row.get("name") or "")))
        except UnicodeEncodeError as e:
            raise DatasetError(f"Manifest: line {line} of {file} has a name that no file can have: {e}") from None
    if not labels:
        raise DatasetError(f"Manifest: {file} lists no samples")
    for name in further:
        if name not in there:
            has = ", ".join(map(repr, there))
            raise DatasetError(f"Manifest: {file} has no column {name!r}; it has {has}; correct columns=")
    given = list(numbers)
    base = root if root is not None else os.path.dirname(path)
    if is_url(base):
        away = next((name for name in given if ".." in name.split("/")), None)
        if away is not None:
            raise DatasetError(f"Manifest: {file} has the path {away!r}, which leads out of {base}; correct it")
        given = [name if is_url(name) else f"{base.rstrip('/')}/{name}" for name in given]
    storage: Storage = LOCAL
    if any(map(is_url, given)):
        if not all(map(is_url, given)):
            raise DatasetError(f"Manifest: {file} has files and URLs; make a list of each kind")
        paths, storage = urls_below(given, "Manifest"), remote
    else:
        base = os.path.abspath(os.path.expanduser(base))
        outside: Outside = "allowed" if allow_outside else "absolute" if root is None else "refused"
        paths = below(given, base, outside, "Manifest")
    container, offset, length = (np.frombuffer(column, np.int64) for column in columns)
    # All texts of a column together decide what they are.
    if is_text:
        values = [list(row) for row in zip(*map(parsed, zip(*values, strict=True)), strict=True)]
    return Manifested(
        paths,
        container,
        offset,
        length,
        _numbers(labels),
        names.texts(),
        storage,
        further,
        tuple(map(tuple, values)),
        path,
    )


class _Texts(dict[str, Any]):
    """A line of a CSV file, whose numbers are texts."""


def _numbers(labels: list[int | str | None]) -> tuple[int | str | None, ...]:
    """Return an empty tuple if no row has a label, and numbers if all texts are numbers: a CSV file has only texts."""
    if all(label is None for label in labels):
        return ()
    try:
        return tuple(None if label is None else int(label) for label in labels)
    except ValueError:
        if are_fractions([str(label) for label in labels if label is not None]):
            raise DatasetError(
                "Manifest: labels are class numbers or names, but these are fractions, such as "
                f"{next(label for label in labels if label is not None)}; write integers, or name them with columns="
            ) from None
        return tuple(labels)


def _bounded(file: IO[str]) -> Iterator[str]:
    """Yield the lines of a file. Raises :class:`NotJsonError` for one that is too long."""
    number = 0
    while line := file.readline(_LONGEST + 1):
        number += 1
        if len(line) > _LONGEST:
            raise NotJsonError(f"line {number} has more than {_LONGEST:,} characters")
        yield line


def _lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, columns) of every line that is not empty."""
    try:
        with open(path, encoding="utf-8-sig", newline="", opener=open_regular) as file:
            first = file.readline(_LONGEST)
            file.seek(0)
            if first.lstrip().startswith("{"):
                for number, line in enumerate(_bounded(file), 1):
                    if line.strip():
                        row = parse_json(line)
                        if not isinstance(row, dict):
                            raise DatasetError(f"Manifest: line {number} of {path} is not a JSON object")
                        yield number, row
                return
            reader = csv.DictReader(_bounded(file), delimiter="\t" if "\t" in first else ",", strict=True)
            spaced = [name for name in reader.fieldnames or () if name != name.strip()]
            if spaced:
                raise DatasetError(
                    f"Manifest: the first line of {path} names {spaced[0]!r}, with a space; write commas without spaces"
                )
            if "path" not in (reader.fieldnames or ()):
                raise DatasetError(f"Manifest: the first line of {path} must name the columns {','.join(_COLUMNS)}")
            for row in reader:
                # DictReader stores surplus values under None, and None for values that are missing.
                if None in row or None in row.values():
                    raise DatasetError(f"Manifest: line {reader.line_num} of {path} has other columns than the first")
                yield reader.line_num, _Texts(row)
    except (OSError, UnicodeDecodeError, csv.Error, NotJsonError) as e:
        why = (e.strerror or e) if isinstance(e, OSError) else e
        raise DatasetError(f"Manifest: {path} cannot be read: {why}") from None


def _integer(value: Any, otherwise: int, name: str, line: int, file: str) -> int:
    if value is None or value == "":
        return otherwise
    try:
        number = int(value)
        if isinstance(value, (bool, float)) or not -1 <= number < 1 << 62 or (number < 0 and name == "offset"):
            # int() would accept these as well.
            raise ValueError
    except (TypeError, ValueError):
        raise DatasetError(
            f"Manifest: line {line} of {file} has {name} {value!r}, which is not a number of bytes"
        ) from None
    return number


def _label(value: Any, line: int, file: str) -> int | str | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise DatasetError(f"Manifest: line {line} of {file} has label {value!r}; it must be a number or a name")
    return value


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
