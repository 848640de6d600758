"""LMDB databases, read without the library: it trusts the pages of a file, so a damaged one would crash the process.

A database is a tree of pages. A value that does not fit into a page is stored in consecutive pages of its own, and so
is a range of bytes of the file. (Format: ``mdb.c`` of https://git.openldap.org/openldap/openldap, data version 1.)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, NamedTuple

from ..errors import DatasetError
from ..sources.pickled import pair_of
from ..sources.protobuf import BYTES, VARINT, fields, signed
from ..sources.shards import Row, Shards, claim
from .base import PathsLike, Sharded, ShardOptions, Unpack, Usual

_META = struct.Struct("<II16x48x48xQQ")
"""Magic number, version, last page, number of the transaction; the two trees come in between."""
_TREE = struct.Struct("<IHHQQQQQ")
"""Size of pages (of the first tree only), flags, depth, pages of three kinds, entries, number of the root page."""
_TREES = 16 + 24
_PAGE = struct.Struct("<QHHHH")
"""Number, padding, flags, start and end of the free space."""
_NODE = struct.Struct("<HHHH")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG, _TREE_NODE, _DUPLICATES = 1, 2, 4
_NOTHING = (1 << 64) - 1
_ABOUT = re.compile(rb"__.*__|num[-_]samples|length")
"""Keys of entries that are not samples, but describe all samples."""
_IMAGE = re.compile(rb"\xff\xd8\xff|\x89PNG|RIFF|GIF8|BM|II[*]\0|MM\0[*]|P[1-6]\s|\0\0\0\x0cjP  |(?s:.{4})ftypavif")
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_NUMBER = re.compile(rb"\s*-?[0-9]{1,18}\s*")
_LONGEST = 1 << 17
"""Maximum number of bytes of a text that are read; a column stores less."""


class Value(NamedTuple):
    """One entry of a database."""

    key: bytes
    offset: int
    length: int
    """Bytes of the value in the file."""


@dataclass(frozen=True, eq=False)
class LmdbFiles(Shards):
    """Rows of LMDB databases.

    Args:
        image: pattern of the keys of images; ``*`` is any text.
        label: pattern of the keys of their labels; ``*`` is the same text.
        database: the name of a database within the file.
        columns: patterns of the keys of further texts; ``*`` is the same text.
    """

    image: str
    label: str | None
    database: str | None

    owner = "LMDB"

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        labels = None if self.label is None else self._texts(file, self.label)
        columns = [self._texts(file, pattern) for pattern in self.columns]
        for value in values(file, self.database):
            middle = _middle(value.key, self.image)
            # A pattern other than the default may mean such keys.
            if middle is None or (_ABOUT.fullmatch(value.key) and self.image == "*"):
                continue
            row = self._row(file, value)._replace(values=[_text(column.get(middle)) for column in columns])
            if labels is not None and not row.problem:
                text = labels.get(middle)
                if text is not None and not _NUMBER.fullmatch(text):
                    row = row._replace(
                        problem=(
                            f"its label is {text[:32]!r}, which is not a class number; read texts with "
                            f"columns=[{self.label!r}]"
                        )
                    )
                else:
                    row = row._replace(label=None if text is None else int(text))
            yield row

    def _texts(self, file: IO[bytes], pattern: str) -> dict[bytes, bytes]:
        """Return the values whose keys match a pattern, by the text for its ``*``."""
        found = {}
        for key, offset, length in values(file, self.database):
            middle = _middle(key, pattern)
            if middle is not None:
                file.seek(offset)
                found[middle] = file.read(min(length, _LONGEST))
        return found

    def _row(self, file: IO[bytes], value: Value) -> Row:
        """Return the row of an image, plain or in a Caffe ``Datum``."""
        key, offset, length = value
        folder = key.rpartition(b"/")[0].rpartition(b"/")[2].decode(errors="replace") or None
        file.seek(offset)
        head = file.read(min(length, 16))
        if _IMAGE.match(head):
            return Row(key, offset, length, folder)
        file.seek(offset)
        data = file.read(length)
        if _PICKLE.match(head):
            try:
                start, size, number = pair_of(data)
            except ValueError as e:
                problem = f"{e}; write the encoded image as it is, and its class under a key of its own"
                return Row(key, 0, 0, problem=problem, kind="undecodable")
            return Row(key, offset + start, size, number)
        image, label, encoded = None, None, False
        try:
            # Datum: 4 the data, 5 the label, 7 whether the data are an encoded image.
            for field in fields(data):
                if (field.number, field.wire) == (4, BYTES):
                    image = offset + field.start, field.end - field.start
                elif (field.number, field.wire) == (5, VARINT):
                    label = signed(field.value)
                elif (field.number, field.wire) == (7, VARINT):
                    encoded = bool(field.value)
        except ValueError:
            image = None
        if image is None:
            problem = (
                f"it begins with {head!r}: neither an image nor a Datum of Caffe's; if other keys have the images, "
                "name them, as in image='image-*'"
            )
            return Row(key, 0, 0, problem=problem, kind="undecodable")
        if not encoded:
            problem = "it is a Datum of plain pixels; write it with encoded=True, as convert_imageset does"
            return Row(key, 0, 0, problem=problem, kind="undecodable")
        return Row(key, *image, label)


def _middle(key: bytes, pattern: str) -> bytes | None:
    """Return the text that ``*`` stands for in a key; ``None`` if the key does not match."""
    before, _, after = pattern.encode().partition(b"*")
    # The two parts must not overlap: a key "aba" does not match "ab*ba".
    if len(key) < len(before + after) or not (key.startswith(before) and key.endswith(after)):
        return None
    return key[len(before) : len(key) - len(after)]


def _text(value: bytes | None) -> Any:
    """Decode bytes as text if they are valid."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def values(file: IO[bytes], database: str | None = None) -> Iterator[Value]:
    """Yield every entry of a database, in key order. Raises :class:`ValueError` if it is damaged or not a database."""
    total = file.seek(0, 2)
    pages = _Pages(file, total)
    root = pages.root
    if database is not None:
        wanted = database.encode()
        found = [v for v in pages.walk(root, trees=True) if v.key == wanted]
        if not found:
            names = ", ".join(v.key.decode(errors="replace") for v in pages.walk(root, trees=True)) or "none"
            raise ValueError(f"there is no database {database!r} in it; there are {names}")
        root = _TREE.unpack(pages.bytes_at(found[0].offset, _TREE.size))[-1]
    empty = True
    for value in pages.walk(root):
        empty = False
        yield value
    if empty and database is None and root != _NOTHING:
        names = ", ".join(repr(v.key.decode(errors="replace")) for v in pages.walk(root, trees=True))
        if names:
            raise ValueError(f"its entries are in the databases {names}; name one by database=")


class _Pages:
    def __init__(self, file: IO[bytes], total: int):
        self._file, self._total = file, total
        # The second of the two headers follows the first page, whose size is in the first header.
        found = []
        size = 0
        for number in range(2):
            head = self._read(number * size + 16, _META.size)
            magic, version, _, transaction = _META.unpack(head)
            if magic != _MAGIC:
                raise ValueError("it is not an LMDB database, or its beginning is damaged")
            if version != _VERSION:
                raise ValueError(
                    f"it is of version {version} of LMDB's format, but gpupipe reads only version {_VERSION}"
                )
            size = _TREE.unpack_from(head, _TREES - 16)[0]
            if not 256 <= size <= 1 << 16 or size & (size - 1):
                raise ValueError(f"it claims pages of {size} bytes, so it is damaged")
            found.append((transaction, _TREE.unpack_from(head, _TREES - 16 + _TREE.size)[-1]))
        self.size = size
        # The header of the later transaction is in force.
        self.root: int = max(found)[1]

    def bytes_at(self, offset: int, length: int) -> bytes:
        """Read bytes. Raises :class:`ValueError` if the file ends before."""
        return self._read(offset, length)

    def _read(self, offset: int, length: int) -> bytes:
        if offset + length > self._total:
            raise ValueError(f"it is truncated: byte {offset + length} of {self._total} was requested")
        self._file.seek(offset)
        return self._file.read(length)

    def walk(self, root: int, *, trees: bool = False) -> Iterator[Value]:
        """Yield the values below a page or, with ``trees``, the databases in it."""
        if root == _NOTHING:
            return
        todo = [(root, 0)]
        seen = 0
        while todo:
            number, depth = todo.pop()
            seen += 1
            # More pages than the file has, or more levels than any tree: some page was read twice.
            if depth > 64 or seen > self._total // self.size:
                raise ValueError(f"it is damaged: its tree contains twice page {number}")
            page = self._read(number * self.size, self.size)
            own, _, flags, lower, upper = _PAGE.unpack_from(page)
            if own != number or not flags & (_BRANCH | _LEAF) or not _PAGE.size <= lower <= upper <= self.size:
                raise ValueError(f"it is damaged: page {number} does not exist")
            nodes = struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", page, _PAGE.size)
            if flags & _BRANCH:
                below = []
                for at in nodes:
                    # In a branch, these three fields are the 48 bits of a page's number.
                    low, high, more, _ = self._node(page, at)
                    below.append((low | high << 16 | more << 32, depth + 1))
                # The last one is taken first, so reversed they come in the order of their keys.
                todo += reversed(below)
                continue
            for at in nodes:
                low, high, kind, n = self._node(page, at)
                begin, length = at + _NODE.size + n, low | high << 16
                key = page[at + _NODE.size : begin]
                if trees:
                    if kind & _TREE_NODE:
                        yield Value(key, number * self.size + begin, length)
                    continue
                if kind & _DUPLICATES:
                    raise ValueError(f"the key {key!r} has several values (dupsort); write each under a key of its own")
                if kind & _TREE_NODE:
                    continue
                yield Value(key, self._begin(page, number, begin, length, bool(kind & _BIG)), length)

    def _begin(self, page: bytes, number: int, begin: int, length: int, is_big: bool) -> int:
        """Return the position of a value in the file: in its page or, for a big value, in the pages that its
        page names."""
        offset = number * self.size + begin
        if is_big:
            if begin + 8 > self.size:
                raise ValueError(f"it is damaged: page {number} does not exist")
            offset = int.from_bytes(page[begin : begin + 8], "little") * self.size + _PAGE.size
        if offset + length > self._total or (not is_big and begin + length > self.size):
            raise claim(f"a value of page {number}", offset, length, self._total)
        return offset

    def _node(self, page: bytes, at: int) -> tuple[int, int, int, int]:
        if at + _NODE.size > self.size:
            raise ValueError("it is damaged: an entry lies outside of its page")
        node: tuple[int, int, int, int] = _NODE.unpack_from(page, at)
        if at + _NODE.size + node[3] > self.size:
            raise ValueError("it is damaged: a key lies outside of its page")
        return node


class LMDB(Sharded):
    """Images in LMDB databases: encoded images, Caffe's ``Datum`` messages with encoded images, or pickled tuples of an
    image's bytes and a class number, which are not unpickled. The library is not needed, because a value is stored
    contiguously in the file. The database must not be modified meanwhile.

    The class is that of the ``Datum`` or the tuple, or the folder in the key (``n01440764/1.jpg``), or given by
    ``label``. Samples are in the order of their keys as LMDB sorts them: byte by byte, so that ``image-10`` comes
    before ``image-9``.

    Not supported: several values of one key (dupsort). ``Datum`` messages of plain pixels and any other pickle are bad
    samples.

    Args:
        paths: The databases, each the file ``data.mdb`` or the folder that contains it: a path, a URL, a pattern,
            several of these separated by ``::``, or a list.
        image: Pattern of the keys of images; ``*`` stands for any text.
        label: Pattern of the keys of their class numbers, in decimal digits; ``*`` stands for the same text.
        database: The name of a database within the file.
        columns: Patterns of the keys of further texts, such as ``"label-*"`` for words to recognize. The columns have
            these names. A sample without a value is a bad sample.

    Raises:
        DatasetError: A file is missing, not an LMDB database, or cut.

    >>> LMDB("train_lmdb", image="image-*", label="label-*")  # doctest: +SKIP
    LMDB(1,281,167 samples in 1 databases below '/data/train_lmdb/')
    """

    suffixes = ("data.mdb",)
    _what = "databases"

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        image: str = Usual("*"),
        label: str | None = None,
        database: str | None = None,
        **options: Unpack[ShardOptions],
    ):
        named = [("image", image), ("label", label), *(("columns", name) for name in options.get("columns", ()))]
        for name, pattern in named:
            if isinstance(pattern, str) and pattern.count("*") != 1:
                raise DatasetError(f"LMDB: {name} must have one *, such as 'image-*', and is {pattern!r}")
        rows = partial(LmdbFiles, image=image, label=label, database=database)
        super().__init__(rows, self.files(paths, options), transform, options, image, label, taken=(label,))

    @classmethod
    def is_at(cls, path: str, entries: Sequence[str]) -> bool:
        return path.lower().endswith((".lmdb", ".mdb"))
