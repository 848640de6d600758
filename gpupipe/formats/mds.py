"""Shards of MosaicML Streaming (MDS) and chunks of LitData.

Both begin with the number of samples and the position of each. A sample begins with the sizes of its fields.
https://docs.mosaicml.com/projects/streaming, https://github.com/Lightning-AI/litData
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..codecs.retry import advised
from ..errors import DatasetError
from ..sources.extras import file_names, parse_json, read_json
from ..sources.shards import Row, Shards
from ..sources.storage import LOCAL, Storage
from .base import PathsLike, Sharded, ShardOptions, Unpack, Usual, index_keys

_INTEGERS = {
    **{f"int{8 * n}": struct.Struct(f"<{c}") for n, c in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))},
    **{f"uint{8 * n}": struct.Struct(f"<{c}") for n, c in ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))},
    "int": struct.Struct("<q"),
}
_FLOATS = {"float16": "<f2", "float32": "<f4", "float64": "<f8", "float": "<f8"}
_TEXTS = ("str", "str_int", "text")
_LITDATA = {
    "numpy": dict(enumerate(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"))),
    "tensor": {
        0: "f4", 1: "f4", 2: "f8", 3: "f8", 8: "f2", 9: "f2", 11: "u1", 12: "i1", 13: "i2", 14: "i2", 15: "i4",
        16: "i4", 17: "i8", 18: "i8", 19: "?", 20: "u2",
    },
}  # fmt: skip
"""Data types by LitData's numbers."""
DECODED = ("jpeg", "image")
"""Encodings that litdata decodes and turns upright."""
_IMAGES = ("bytes", "png", "tifffile", *DECODED)
_CODECS = ("zstd", "gz", "bz2", "br")
"""Compressions that ``gpupipe pack`` unpacks."""
_LONGEST = 1 << 12
"""Maximum number of bytes of a class name."""


class Field(NamedTuple):
    """One field of every sample."""

    name: str
    encoding: str
    size: int | None = None
    """Bytes, if all samples have the same size and do not store it."""


def positions_of(file: IO[bytes]) -> list[int]:
    """Return the start of every sample, and the end of the last one."""
    total = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(4)
    count = int.from_bytes(head, "little")
    # The count, and one more position than samples.
    if len(head) < 4 or 4 * (count + 2) > total:
        raise ValueError(f"it claims {count} samples and has {total} bytes: it is truncated, or of another format")
    positions = list(struct.unpack(f"<{count + 1}I", file.read(4 * (count + 1))))
    if positions != sorted(positions) or positions[0] < 4 * (count + 2) or positions[-1] > total:
        raise ValueError("it is truncated or damaged: its samples lie outside of it")
    return positions


def samples_of(
    file: IO[bytes],
    positions: Sequence[int],
    fields: Sequence[Field],
    image: str,
    label: str | None,
    columns: Sequence[str],
) -> Iterator[Row]:
    names = [field.name for field in fields]
    if image not in names:
        raise ValueError(
            f"it has no field {image!r}; it has {', '.join(names)}; name one by image=, and the class by label="
        )
    encoding = fields[names.index(image)].encoding
    if encoding.partition(":")[0] not in _IMAGES:
        raise ValueError(
            f"its field {image!r} is stored as {encoding!r}, which is not an encoded image; write JPEG or bytes"
        )
    known = label is not None and label in names
    if known:
        assert label is not None
        stored = fields[names.index(label)].encoding
        if stored not in _INTEGERS and stored not in _TEXTS:
            raise ValueError(
                f"its field {label!r} is stored as {stored!r}, which is neither a number nor a name; write it as int, "
                "or name another field by label=, or none by label=None"
            )
    encodings = {field.name: field.encoding for field in fields}
    for column in columns:
        if column not in encodings:
            raise ValueError(f"it has no column {column!r}; it has {', '.join(names)}; correct columns=")
    free = [field for field in fields if field.size is None]
    sizes = struct.Struct(f"<{len(free)}I")
    for number, (start, end) in enumerate(pairwise(positions)):
        name = b"%d" % number
        file.seek(start)
        head = file.read(sizes.size)
        if len(head) < sizes.size:
            raise ValueError("it is cut")
        each = iter(sizes.unpack(head))
        at, where = start + sizes.size, {}
        for field in fields:
            length = next(each) if field.size is None else field.size
            where[field.name] = at, length
            at += length
        if at > end:
            problem = f"its fields claim to end at byte {at}, and it ends at byte {end}: it is damaged"
            yield Row(name, 0, 0, problem=problem, kind="undecodable")
            continue
        value: int | str | None = None
        if known:
            assert label is not None
            try:
                value = _value(file, fields[names.index(label)].encoding, *where[label])
            except ValueError as e:
                yield Row(name, 0, 0, problem=f"its label {e}")
                continue
        yield Row(name, *where[image], value, values=[_column(file, encodings[it], *where[it]) for it in columns])


def _column(file: IO[bytes], encoding: str, at: int, length: int) -> Any:
    """Read the value of a further field. Raises :class:`ValueError` for an encoding that no column can hold."""
    file.seek(at)
    data, (kind, _, about) = file.read(length), encoding.partition(":")
    try:
        if kind in _INTEGERS:
            return _INTEGERS[kind].unpack(data)[0]
        if kind in _FLOATS:
            return np.frombuffer(data, _FLOATS[kind])[0]
        if kind == "bool":
            return bool(data[0])
        if kind in _TEXTS:
            return int(data) if kind == "str_int" else data.decode()
        if kind == "str_float":
            return float(data)
        if kind == "json":
            return parse_json(data)
        if kind == "ndarray":
            return _ndarray(data, about)
        if kind in ("numpy", "tensor"):  # data type, dimensions, shape
            # LitData writes these numbers big-endian for tensors, and little-endian for arrays.
            order = "<" if kind == "numpy" else ">"
            code, rank = struct.unpack_from(f"{order}II", data)
            shape = struct.unpack_from(f"{order}{rank}I", data, 8)
            return np.frombuffer(data, _LITDATA[kind][code], offset=8 + 4 * rank).reshape(shape)
        if kind in ("no_header_numpy", "no_header_tensor"):
            return np.frombuffer(data, _LITDATA[kind.rpartition("_")[2]][int(about)])
    except (ValueError, KeyError, IndexError, struct.error) as e:
        raise ValueError(f"a field that is stored as {encoding!r} is damaged at byte {at}: {e}") from None
    raise ValueError(
        f"a field is stored as {encoding!r}, but columns hold numbers, booleans, texts and arrays of numbers; "
        "leave it out of columns="
    )


def _ndarray(data: bytes, about: str) -> npt.NDArray[Any]:
    """Read an array as MDS writes it. Data type and shape come first, unless ``about`` gives them."""
    name, _, sizes = about.partition(":")
    at = 0
    if not name:
        kind, at = data[0], 1  # bits per number, plus 0 for unsigned, 1 for signed, 2 for float
        name = f"{'uif'[kind & 7]}{kind >> 3}"
    else:
        name = np.dtype(name).str[1:]
    if sizes:
        shape = tuple(map(int, sizes.split(",")))
    else:
        # Six bits are the number of dimensions, two the width of each: 1, 2, 4 or 8 bytes.
        rank, width = data[at] >> 2, 1 << (data[at] & 3)
        shape = tuple(np.frombuffer(data, f"<u{width}", rank, at + 1).tolist())
        at += 1 + rank * width
    return np.frombuffer(data, f"<{name}", offset=at).reshape(shape)


def _value(file: IO[bytes], encoding: str, at: int, length: int) -> int | str:
    if length > _LONGEST:
        raise ValueError(f"has {length} bytes and is not a class; name another field by label=")
    file.seek(at)
    data = file.read(length)
    if encoding in _TEXTS:
        text = data.decode(errors="replace")
        return int(text) if encoding == "str_int" else text
    if len(data) != _INTEGERS[encoding].size:
        raise ValueError(f"has {length} bytes")
    number: int = _INTEGERS[encoding].unpack(data)[0]
    return number


@dataclass(frozen=True, eq=False)
class MdsShards(Shards):
    """Rows of MDS shards.

    Args:
        image, label: names of fields.
    """

    image: str
    label: str | None

    owner = "MDS"

    def names(self, file: IO[bytes]) -> Iterable[str]:
        return [field.name for field in self._fields(file, positions_of(file))]

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        positions = positions_of(file)
        fields = self._fields(file, positions)
        yield from samples_of(file, positions, fields, self.image, self.label, self.columns)

    @staticmethod
    def _fields(file: IO[bytes], positions: Sequence[int]) -> list[Field]:
        """Read the fields of a shard. Raises :class:`ValueError`."""
        begin = 4 * (len(positions) + 1)
        file.seek(begin)
        try:
            about = parse_json(file.read(positions[0] - begin))
            columns = zip(about["column_names"], about["column_encodings"], about["column_sizes"], strict=True)
            fields = [Field(str(name), str(encoding), size) for name, encoding, size in columns]
        except (ValueError, KeyError, TypeError):
            raise ValueError("it is not an MDS shard: it does not name its fields") from None
        if any(not (field.size is None or (type(field.size) is int and field.size >= 0)) for field in fields):
            raise ValueError("it is damaged: a field has no size")
        return fields


def mds_index(folder: str, storage: Storage = LOCAL) -> list[str] | None:
    """Return the shard names of a folder, which ends with a slash, from its ``index.json``; ``None`` if it has none.

    A compressed shard that a ``StreamingDataset`` has not unpacked is named as it is. Raises :class:`DatasetError`.
    """
    file = f"{folder}index.json"
    try:
        with storage.open(os.fsencode(file)) as opened:
            index = read_json(opened)
        version, shards = index["version"], list(index["shards"])
        names = file_names(shard["raw_data"]["basename"] for shard in shards)
        formats = {str(shard["format"]) for shard in shards}
        packed = [str(shard.get("compression") or "").partition(":")[0] for shard in shards]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as e:
        why = e.strerror or e if isinstance(e, OSError) else f"{type(e).__name__}: {e}"
        text = advised(e, why, "give the folder that MDSWriter wrote")
        raise DatasetError(f"MDS: {file} cannot be used: {text}") from None
    if version != 2 or formats - {"mds"}:
        others = ", ".join(sorted(formats))
        raise DatasetError(
            f"MDS: {file} is of version {version!r} and lists shards of format {others}; gpupipe reads only version "
            "2 and format mds: write it again with MDSWriter"
        )
    if any(os.path.isabs(name) or ".." in name.split("/") for name in names):
        raise DatasetError(f"MDS: {file} is damaged: a shard lies outside of its folder")
    if any(packed):
        found = storage.look([os.fsencode(folder + name) for name in names])
        missing = [isinstance(it, OSError) for it in found]
        # Shards that are unpacked already need no codec.
        unknown = {codec for codec, is_missing in zip(packed, missing, strict=True) if is_missing} - {"", *_CODECS}
        if unknown:
            raise DatasetError(
                f"MDS: {folder} was written with compression={unknown.pop()!r}, and {sum(missing)} of {len(names)} "
                f"shards are not unpacked; write it again without, or with one of {', '.join(_CODECS)}"
            )
        names = [
            f"{name}.{codec}" if codec and is_missing else name
            for name, codec, is_missing in zip(names, packed, missing, strict=True)
        ]
    return names


class MDS(Sharded):
    """Images in shards of MosaicML Streaming (``.mds``).

    Not supported: compressed shards, unless a ``StreamingDataset`` has unpacked them; ``gpupipe pack`` does it once,
    except for ``snappy``. Fields of pixels (``pil``); labels that are neither integers nor texts.

    Args:
        paths: The folder or URL that ``MDSWriter`` wrote, whose ``index.json`` lists the shards; or shards: a path, a
            URL, a pattern, several of these separated by ``::``, or a list.
        image: The field of images, of encoding ``jpeg``, ``png`` or ``bytes``.
        label: The field of class numbers or names. ``None``: no labels. The default may be missing; a name that you
            pass must exist.
        columns: Further fields of numbers, texts, or arrays of one shape (``ndarray``, lists in ``json``). A sample
            without a value is a bad sample.

    Raises:
        DatasetError: A file is missing, not a shard, or cut, or a field cannot be used.

    >>> MDS("imagenet/mds/train")  # doctest: +SKIP
    MDS(1,281,167 samples in 2,200 shards below '/data/imagenet/mds/train/')
    """

    suffixes = (".mds",)
    libraries = {"streaming.base": ("(folder, transform)", "a StreamingDataset is a stream")}
    _what = "shards"

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        image: str = Usual("image"),
        label: str | None = Usual("label"),
        **options: Unpack[ShardOptions],
    ):
        rows = partial(MdsShards, image=image, label=label)
        super().__init__(rows, self.files(paths, options, mds_index), transform, options, image, label)

    @classmethod
    def is_at(cls, path: str, entries: Sequence[str]) -> bool:
        return "shards" in index_keys(path, entries)
