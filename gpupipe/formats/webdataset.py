"""Tar files as the `webdataset <https://github.com/webdataset/webdataset>`_ package writes them.

The members of one sample are consecutive and share a name with different extensions (``0001.jpg``, ``0001.cls``).
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Unpack

from ..errors import DatasetError
from ..sources.columns import json_field, member_value
from ..sources.extras import parse_json
from ..sources.shards import Row, Shards, claim
from ..transforms.compose import Transforms
from .base import PathsLike, Sharded, ShardOptions, Usual, names_of

_NAME = re.compile(rb"((?:.*/)?[^./][^./]*)[.]([^/]*)")
"""(common part of the names of a sample's members, extension): the extension begins at the first dot of the
file name."""
_META = re.compile(rb"__[^/]*__(?:/.*)?")
"""Members that describe the tar file itself."""
_NUMBER = re.compile(rb"\s*-?[0-9]{1,18}\s*")
_BLOCK = tarfile.BLOCKSIZE
_PADDING = 1 << 16
"""Bytes after the end that are checked; tar pads to 10,240."""
_LONGEST = 1 << 20
"""Maximum number of bytes of a JSON object."""
_KEY = "__key__"
"""The column in which webdataset gives the common part of the names of a sample's members."""
_LARGEST_HEADER = 16 << 20
_LINK = -1


@dataclass(frozen=True, eq=False)
class TarShards(Shards):
    """Rows of tar files.

    Args:
        image: extensions that an image may have, in lower case; the first that a sample has is used.
        label: the extension of the class number in decimal digits, or of a JSON object and a field of it: ``json:a.b``.
    """

    image: tuple[str, ...]
    label: str | None

    owner = "WebDataset"
    labels_file = True

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        found: dict[str, tuple[bytes, int, int]] = {}
        sample = b""
        for name, offset, size in _members(file):
            match = _NAME.fullmatch(name)
            if match is None or _META.fullmatch(name):
                continue
            before, (sample, encoded) = sample, match.groups()
            if found and sample != before:
                yield self._row(file, before, found)
                found = {}
            extension = encoded.decode(errors="replace").lower()
            if extension in found:
                raise ValueError(f"the member {name.decode(errors='replace')!r} occurs twice")
            found[extension] = name, offset, size
        if found:
            yield self._row(file, sample, found)

    def names(self, file: IO[bytes]) -> Iterable[str]:
        sample = None
        for name, offset, size in _members(file):
            match = _NAME.fullmatch(name)
            if match is None or _META.fullmatch(name):
                continue
            if sample not in (None, match[1]):
                return
            sample, extension = match[1], match[2].decode(errors="replace").lower()
            yield extension
            if extension == "json" and size != _LINK:
                file.seek(offset)
                yield from (f"json:{field}" for field in parse_json(file.read(min(size, _LONGEST))))

    def _row(self, file: IO[bytes], sample: bytes, found: dict[str, tuple[bytes, int, int]]) -> Row:
        image = next((found[e] for e in self.image if e in found), None)
        if image is None:
            has = ", ".join(f".{e}" for e in sorted(found))
            problem = (
                f"it has {has}, none of which is an image; name it by image=, and if it lies elsewhere in the "
                "file, pack the members of each sample one after another (tar --sort=name)"
            )
            return Row(sample, 0, 0, problem=problem)
        read = {_KEY: sample}
        needed = self.columns if self.label is None else (self.label, *self.columns)
        wanted = {name.partition(":")[0].lower() for name in needed} & found.keys()
        for name, _, size in (image, *(found[extension] for extension in wanted)):
            if size == _LINK:
                problem = f"{os.fsdecode(name)!r} is a link, without bytes of its own; pack it again with tar "
                return Row(image[0], 0, 0, problem=problem + "--dereference --hard-dereference")
        for extension in wanted:
            _, at, size = found[extension]
            file.seek(at)
            read[extension] = file.read(min(size, _LONGEST))
        return self._labeled(Row(*image, values=[member_value(read, name) for name in self.columns]), read)

    def _labeled(self, row: Row, read: dict[str, bytes]) -> Row:
        extension, _, field = (self.label or "").partition(":")
        if extension not in read:
            return row
        if field:
            return _with_field(row, read[extension], extension, field)
        if _NUMBER.fullmatch(read[extension]) is None:
            return row._replace(
                problem=(
                    f"its .{extension} is {read[extension][:32]!r}, which is not a class number; read texts "
                    f"with columns=[{extension!r}]"
                )
            )
        return row._replace(label=int(read[extension]))


def _with_field(row: Row, text: bytes, extension: str, field: str) -> Row:
    """Return the row with a field of a JSON member as its label."""
    try:
        value = json_field(text, field)
    except (ValueError, KeyError, TypeError):
        return row._replace(problem=f"its .{extension} has no field {field!r}")
    if isinstance(value, bool) or not isinstance(value, (int, str)) or (isinstance(value, int) and abs(value) >> 62):
        return row._replace(problem=f"the field {field!r} of its .{extension} is neither a class number nor a name")
    return row._replace(label=value)


class _Headers:
    """A tar file whose headers :mod:`tarfile` reads. That module trusts the lengths in the headers."""

    def __init__(self, file: IO[bytes]):
        self.seek, self.tell, self._file = file.seek, file.tell, file

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LARGEST_HEADER:
            raise ValueError(f"the header before byte {self.tell()} claims {size} bytes: it is damaged")
        return self._file.read(size)


def _members(file: IO[bytes]) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, offset, size) of every file in a tar file. The size of a link to another file is ``_LINK``."""
    total = file.seek(0, os.SEEK_END)
    file.seek(0)
    try:
        headers: Any = _Headers(file)
        with tarfile.open(fileobj=headers, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                if member.issparse():
                    raise ValueError(
                        f"its member {member.name!r} is a sparse file, whose bytes are not contiguous; pack it again "
                        "without tar's --sparse"
                    )
                if member.isreg() and member.offset_data + member.size > total:
                    raise claim(f"its member {member.name!r}", member.offset_data, member.size, total)
                if member.isreg() or member.islnk() or member.issym():
                    size = member.size if member.isreg() else _LINK
                    yield member.name.encode(errors="surrogateescape"), member.offset_data, size
            # tarfile mistakes a damaged header for the end.
            file.seek(tar.offset)
            if file.read(_BLOCK).strip(b"\0"):
                raise ValueError(f"it is damaged at byte {tar.offset}")
            if file.read(_PADDING).strip(b"\0"):
                raise ValueError(
                    f"it continues after its end at byte {tar.offset}, like tar files that cat joined; use tar "
                    "--concatenate, or list the files"
                )
    except tarfile.TarError as e:
        raise ValueError(f"it is not a complete tar file: {e}") from None


class WebDataset(Sharded):
    """Images in tar files, as the webdataset package writes them. Consecutive members whose names are equal up to the
    first dot form one sample: ``0001.jpg`` and ``0001.cls``, which contains the class number.

    The tar files are indexed once, so samples are shuffled over all of them, sizes are known, an epoch is resumed
    exactly, and every sample is named like ``shards/000.tar:0001.jpg``.

    Not supported: compressed tar files; files that are cut or continue after their end; sparse members. A sample with a
    link is a bad sample.

    Args:
        paths: The tar files: a path, a URL, a pattern such as ``"shards/*.tar"``, a name with braces such as
            ``"shards/{000..127}.tar"``, a folder, several of these separated by ``::``, or a list.
        image: Extensions of images, separated by ``;`` or in a list. The first that a sample has is used.
        label: The extension of the class number in decimal digits (``"cls"``, ``"txt"``), or a field of a JSON member
            with a number or a class name (``"json:label"``, ``"json:meta.class"``). ``None``: no labels. The default
            may be missing in all samples; a name that you pass must exist.
        columns: Further members: texts (``"txt"``), arrays (``"npy"``), or fields of a JSON member (``"json:weight"``,
            ``"json:meta.box"``); ``"__key__"`` is the sample's name without extension. A sample without a value is a
            bad sample.

    Raises:
        DatasetError: A file is missing, compressed, not a tar file, or cut.

    >>> WebDataset("shards/{000..127}.tar")  # doctest: +SKIP
    WebDataset(1,281,167 samples in 128 tar files below '/data/shards/')
    """

    suffixes = (".tar",)
    _what = "tar files"

    def __init__(
        self,
        paths: PathsLike,
        transform: Transforms = None,
        *,
        image: str | Sequence[str] = Usual("jpg;jpeg;png;webp;ppm;pgm;bmp;tif;tiff"),
        label: str | None = Usual("cls"),
        **options: Unpack[ShardOptions],
    ):
        spaced = image.replace(" ", ";") if isinstance(image, str) else image
        extensions = tuple(name.lower() for name in names_of(spaced, "WebDataset", "image"))
        if not isinstance(label, str | None):
            raise DatasetError(f"WebDataset: label must be one extension, such as 'cls', not {label!r}")
        member = label if label is None or ":" in label else label.lower()
        files = self.files(paths, options)
        super().__init__(partial(TarShards, image=extensions, label=member), files, transform, options, image, label)
