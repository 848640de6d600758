"""Samples as members of tar files, as the webdataset package has them: ``000000017.jpg`` and ``000000017.cls``."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..targets import NumberColumn, Target

EXTENSIONS = {
    "JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "PPM": "ppm", "BMP": "bmp", "TIFF": "tif",
}  # fmt: skip
"""Extensions that :class:`~gpupipe.datasets.WebDataset` reads as images, by Pillow's name of the format."""
_FIELD = "json:"


def stored_names(columns: Mapping[str, Target]) -> dict[str, str]:
    """Return the names by which ``columns=`` reads columns from the shards.

    Arrays become members ``npy`` or ``NAME.npy``, a single text becomes the member ``txt``, and all other values are
    fields of the member ``json``.

    Raises :class:`ConfigError` if two columns have one name there.
    """
    numbers = {name for name, column in columns.items() if isinstance(column, NumberColumn)}
    texts = [name for name in columns if name not in numbers and not name.startswith(_FIELD)]
    names: dict[str, str] = {}
    for name, column in columns.items():
        if isinstance(column, NumberColumn) and column.kind is None:
            # Readers compare extensions in lower case.
            stem = re.sub(r"[/\x00-\x1f\x7f]", "_", name.lower()).removesuffix("npy").removesuffix(".")
            names[name] = f"{stem}.npy" if stem else "npy"
        elif texts == [name]:
            names[name] = "txt"
        else:
            names[name] = _FIELD + name.removeprefix(_FIELD)
    twice = next((name for name, stored in names.items() if [*names.values()].count(stored) > 1), None)
    if twice is not None:
        raise ConfigError(f"--columns {twice}: another column is {names[twice]!r} in tar files; leave one out")
    return names


def members_of(label: int | None, values: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield (extension, content) of what a sample has beside its image. ``values`` are by name in the shards."""
    if label is not None:
        yield "cls", b"%d" % label
    fields = {}
    for name, value in values.items():
        if name.startswith(_FIELD):
            fields[name.removeprefix(_FIELD)] = value.item() if isinstance(value, np.generic) else value
        elif isinstance(value, str):
            yield name, value.encode()
        else:
            array = io.BytesIO()
            np.save(array, value, allow_pickle=False)
            yield name, array.getvalue()
    if fields:
        yield "json", json.dumps(fields, ensure_ascii=False).encode()


def member_key(key: str) -> str:
    """Return a key that names the members of a sample. Readers take all behind the first dot of the last part for the
    extension, and skip names such as ``__meta__/``.

    >>> member_key("a.b/c.d"), member_key("../x")
    ('a.b/c_d', '_/x')
    """
    folder, slash, name = re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "_", key).lstrip("/").rpartition("/")
    folder = "/".join("_" if part in ("", "..") else part for part in folder.split("/")) if folder else ""
    whole = f"{folder}{slash}{name.replace('.', '_') or '_'}"
    return f"_{whole[2:]}" if re.match(r"__[^/]*__/", whole) else whole


def sizes_of(members: Sequence[tuple[str, bytes]]) -> int:
    """Return the bytes that members take in a tar file: headers, and contents in whole blocks."""
    return sum(512 + -(-len(data) // 512) * 512 for _, data in members)
