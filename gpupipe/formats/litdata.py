"""Chunks of `LitData <https://github.com/Lightning-AI/litData>`_. Samples are stored as in MDS, or as rows of
an Arrow file."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any

from ..codecs.retry import advised
from ..errors import DatasetError
from ..sources.extras import file_names, parse_json, read_json
from ..sources.files import Paths
from ..sources.names import below, is_url, urls_below
from ..sources.shards import Row, Shards, claim
from ..sources.storage import LOCAL, Storage
from .arrow import rows_of
from .base import Sharded, ShardOptions, Unpack, Usual, index_keys, storage_of
from .mds import DECODED, Field, positions_of, samples_of

_FOOTER = struct.Struct("<I8s")
_WHOLE = ".zstd.bin"
"""Ending of chunks that are compressed as a whole."""
_ARROW = b"LDARW01\0"
"""End of a LitData chunk whose samples are rows of an Arrow file. The file and its length precede it.

New versions write dictionaries of bytes, texts and numbers this way.
"""


@dataclass(frozen=True, eq=False)
class LitDataChunks(Shards):
    """Rows of LitData chunks.

    Args:
        fields: fields of every sample, known only from ``index.json``.
        image, label: names of fields.
    """

    fields: tuple[Field, ...]
    image: str
    label: str | None

    owner = "LitData"

    def names(self, file: IO[bytes]) -> Iterable[str]:
        return [field.name for field in self.fields]

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        end = file.seek(0, os.SEEK_END) - _FOOTER.size
        file.seek(max(end, 0))
        footer = file.read()
        if not footer.endswith(_ARROW) or end < 0:
            return samples_of(file, positions_of(file), self.fields, self.image, self.label, self.columns)
        length, _ = _FOOTER.unpack(footer)
        if length > end:
            raise claim("what it says of its rows", end, length, end + _FOOTER.size)
        file.seek(end - length)
        return rows_of(file.read(length), end - length, self.image, self.label, self.columns)


def litdata_index(root: str, storage: Storage = LOCAL) -> tuple[Paths, tuple[Field, ...]]:
    """Return (chunks, fields) of a folder that LitData wrote, from its ``index.json``. Raises :class:`DatasetError`."""
    folder = root.removesuffix("index.json").rstrip("/")
    file = f"{folder}/index.json"
    try:
        with storage.open(os.fsencode(file)) as opened:
            index = read_json(opened)
        config, names = index["config"], file_names(chunk["filename"] for chunk in index["chunks"])
        formats = [str(f) for f in config["data_format"]]
        spec = config["data_spec"]
        leaves = _leaves(parse_json(spec)[1] if isinstance(spec, str) else spec[1])
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as e:
        why = e.strerror or e if isinstance(e, OSError) else f"{type(e).__name__}: {e}"
        text = advised(e, why, "give the folder that litdata.optimize wrote")
        raise DatasetError(f"LitData: {file} cannot be used: {text}") from None
    for what in ("compression", "encryption"):
        # Chunks that are compressed as a whole raise an error that names gpupipe pack when they are read.
        if config.get(what) and not (what == "compression" and all(name.endswith(_WHOLE) for name in names)):
            raise DatasetError(f"LitData: {root} was written with {what}={config[what]!r}; write it again without")
    if len(leaves) != len(formats) or any("/" in name for name in names):
        raise DatasetError(f"LitData: {file} is damaged: it has {len(leaves)} names for {len(formats)} fields")
    paths = [f"{folder}/{name}" for name in names]
    found = urls_below(paths, "LitData") if is_url(root) else below(paths, None, "allowed", "LitData")
    return found, tuple(Field(name, encoding) for name, encoding in zip(leaves, formats, strict=True))


def _leaves(spec: dict[str, Any], name: str = "") -> list[str]:
    """Return the field names of nested dictionaries and lists in torch's order: ``image``, ``0``, ``meta.id``."""
    children = spec.get("children_spec") or []
    if spec.get("type") is None:
        return [name or "0"]
    context = spec.get("context")
    # The context of a dictionary lists its keys. Fields of anything else are numbered.
    keys = parse_json(context) if isinstance(context, str) and context not in ("", "null") else None
    if not isinstance(keys, list) or len(keys) != len(children):
        keys = list(range(len(children)))
    return [
        leaf for key, child in zip(keys, children, strict=True) for leaf in _leaves(child, f"{name}.{key}".lstrip("."))
    ]


class LitData(Sharded):
    """Images in chunks of LitData (``.bin``). Chunks whose samples are rows of Arrow, as new versions write them, need
    ``pyarrow`` while the index is built; it comes with ``gpupipe-loader[parquet]``.

    Not supported: compressed chunks, which ``gpupipe pack`` unpacks once if each is compressed as a whole; encrypted
    chunks; fields of pixels (``pil``).

    Args:
        root: The folder or URL that ``litdata.optimize`` wrote, with ``index.json``.
        image: The field of images, of format ``jpeg``, ``image`` or ``bytes``. Fields of tuples are called ``"0"``,
            ``"1"``; those of nested dictionaries ``"meta.id"``.
        label: The field of class numbers or names. ``None``: no labels. The default may be missing; a name that you
            pass must exist.
        columns: Further fields of numbers, booleans, texts, or arrays and tensors of one shape. A sample without a
            value is a bad sample.

    Raises:
        DatasetError: A folder has no index, a chunk is missing or cut, or a field cannot be used.

    >>> LitData("imagenet/litdata/train", image="0", label="1")  # doctest: +SKIP
    LitData(1,281,167 samples in 2,200 chunks below '/data/imagenet/litdata/train/')
    """

    libraries = {"litdata.streaming": ("(folder, transform)", "a StreamingDataset is a stream")}
    _what = "chunks"

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Any = None,
        *,
        image: str = Usual("image"),
        label: str | None = Usual("label"),
        **options: Unpack[ShardOptions],
    ):
        folder = os.path.expanduser(os.fspath(root))
        storage = storage_of(options.get("remote"), "LitData") if is_url(folder) else LOCAL
        paths, fields = litdata_index(folder, storage)
        paths = replace(paths, given=os.fspath(root))
        rows = partial(LitDataChunks, fields=fields, image=image, label=label)
        turned = any(field.name == image and field.encoding.partition(":")[0] in DECODED for field in fields)
        super().__init__(rows, (paths, storage), transform, options, image, label, exif=turned)

    @classmethod
    def is_at(cls, path: str, entries: Sequence[str]) -> bool:
        return "chunks" in index_keys(path, entries)
