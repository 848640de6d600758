"""ZIP archives of images. A stored member is a range of bytes; a deflated one is inflated when it is read."""

from __future__ import annotations

import posixpath
import stat
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Unpack

from ..datasets.folder import IMG_EXTENSIONS, checked_extensions
from ..datasets.options import ArchiveOptions
from ..sources.shards import Row, Shards
from ..transforms.compose import Transforms
from .base import PathsLike, Sharded

_FAT = 0
"""System that made a member: MS-DOS or Windows."""
_LOCAL = struct.Struct("<4s22xHH")
_MOST = 1032
"""Maximum number of bytes that one byte of deflated data can become; see https://zlib.net/zlib_tech.html."""
_INFLATED = 256 << 20
"""Maximum number of bytes of a deflated member, which is inflated whole, after inflating."""
_NAMES = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma", 93: "zstd", 9: "deflate64"}


@dataclass(frozen=True, eq=False)
class ZipFiles(Shards):
    """Rows of ZIP archives.

    Args:
        extensions: endings of images, in lower case.
        root: the folder in the archive that contains the class folders; ``None``: the one that all images share.
    """

    extensions: tuple[str, ...]
    root: str | None

    owner = "Zip"

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        try:
            archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, NotImplementedError, struct.error, EOFError) as e:
            raise ValueError(f"it is not a complete ZIP archive: {e}") from None
        members = archive.infolist()
        for member in members:
            # Some programs for Windows write such names, against the specification.
            if member.create_system == _FAT and "/" not in member.filename:
                member.filename = member.filename.replace("\\", "/")
        # Of several members with one name, the last remains after unpacking.
        named = {m.filename: m for m in members if _is_file(m)}
        images = [m for m in named.values() if m.filename.lower().endswith(self.extensions)]
        root = self._root([m.filename for m in images])
        # The order of torchvision's ImageFolder after unpacking.
        inside = [m for m in images if m.filename.startswith(root)]
        images = [m for m in inside if _class(m.filename, root)] or inside
        images.sort(key=lambda m: (_class(m.filename, root), *posixpath.split(m.filename)))
        for member in images:
            # Count the class of a bad member as well: it would be a class after unpacking.
            yield self._row(file, member)._replace(label=_class(member.filename, root) or None)

    def _root(self, names: list[str]) -> str:
        if self.root is not None:
            return self.root.strip("/") + "/" if self.root.strip("/") else ""
        folders = {posixpath.dirname(name) for name in names}
        common = posixpath.commonpath(folders) if folders and "" not in folders else ""
        # Images that are all in one folder have no class.
        return f"{common}/" if common else ""

    def _row(self, file: IO[bytes], member: zipfile.ZipInfo) -> Row:
        name = member.filename.encode(errors="surrogateescape")
        if member.flag_bits & 1:
            return Row(name, 0, 0, problem="it is encrypted; unpack it with its password first", kind="unreadable")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            codec = _NAMES.get(member.compress_type, f"method {member.compress_type}")
            return Row(
                name, 0, 0, problem=f"it is compressed with {codec}; pack it again with zip -0", kind="unreadable"
            )
        # On Unix, the upper half of the attributes is the mode of the file.
        if stat.S_ISLNK(member.external_attr >> 16):
            return Row(name, 0, 0, problem="it is a symbolic link; pack it again without zip -y", kind="unreadable")
        file.seek(member.header_offset)
        head = file.read(30)
        if len(head) < 30 or head[:4] != b"PK\3\4":
            problem = f"there is no member at byte {member.header_offset}: the archive is damaged"
            return Row(name, 0, 0, problem=problem, kind="undecodable")
        # The name and the extra field come again before the data, and may have other lengths than in the directory.
        _, n, m = _LOCAL.unpack(head)
        at, size = member.header_offset + 30 + n + m, member.file_size
        if size > (
            member.compress_size if member.compress_type == zipfile.ZIP_STORED else _MOST * member.compress_size
        ):
            problem = f"{size} bytes cannot come out of {member.compress_size}: the archive is damaged"
            return Row(name, 0, 0, problem=problem, kind="undecodable")
        if member.compress_type == zipfile.ZIP_STORED:
            return Row(name, at, size)
        if size > _INFLATED:
            problem = f"it inflates to {size} bytes, but at most {_INFLATED} are allowed; pack it again with zip -0"
            return Row(name, 0, 0, problem=problem, kind="bomb")
        return Row(name, at, member.compress_size, inflated=size)


def _class(name: str, root: str) -> str:
    """Return the folder below ``root`` that a member is in."""
    below = name[len(root) :]
    return below.partition("/")[0] if "/" in below else ""


def _is_file(member: zipfile.ZipInfo) -> bool:
    """Return whether a member is a file. Those that macOS adds, and those without a name, do not count."""
    return bool(member.filename) and not member.is_dir() and not member.filename.startswith("__MACOSX/")


class Zip(Sharded):
    """Images in ZIP archives, in the order and with the classes that ``ImageFolder`` finds after unpacking. Stored
    members are read in place; deflated ones are inflated each time, which costs about half as much as decoding them.

    Not supported: columns, for which ``datasets.Columns`` adds values from Python; archives in several parts. Links,
    encrypted members, deflated members of more than 256 MiB, and members with compression other than deflate are bad
    samples.

    Args:
        root: The folder in the archive that contains the class folders. ``None``: the one that all images share.
            Without folders in it there are no labels.
        extensions: Endings of the names of images, case-insensitive.

    Raises:
        DatasetError: A file is missing, not a ZIP archive, or cut.

    >>> Zip("train.zip")  # doctest: +SKIP
    Zip(1,281,167 samples in 1 archives below '/data/')
    """

    suffixes = (".zip",)
    _what = "archives"

    def __init__(
        self,
        paths: PathsLike,
        transform: Transforms = None,
        *,
        root: str | None = None,
        extensions: str | tuple[str, ...] = IMG_EXTENSIONS,
        **options: Unpack[ArchiveOptions],
    ):
        rows = partial(ZipFiles, extensions=checked_extensions(extensions, "Zip"), root=root)
        super().__init__(rows, self.files(paths, options), transform, options)
