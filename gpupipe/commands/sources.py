"""From a folder, files or a URL that a person typed to the dataset of images that is there."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import datasets
from ..codecs.files import open_regular
from ..datasets.images import EncodedImages
from ..errors import ConfigError, DatasetError
from ..sources.names import is_url
from .inputs import open_dataset

__all__ = ["KINDS", "kind_of", "open_images"]

_SUFFIXES = {
    ".tar": "webdataset", ".zip": "zip", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".tfrec": "tfrecord",
    ".rec": "recordio", ".h5": "hdf5", ".hdf5": "hdf5", ".mdb": "lmdb", ".parquet": "parquet", ".arrow": "arrow",
    ".jsonl": "manifest",
}  # fmt: skip
_TFRECORD = re.compile(r"-(\d{5}|\{[^}]*\}|\*)-of-\d{5}$")
"""The end of a name without a suffix, as TensorFlow's datasets have it."""


def _huggingface(path: str, **arguments: Any) -> EncodedImages:
    try:
        from datasets import load_from_disk
    except ImportError as e:
        raise DatasetError(f"{path}: a dataset that Hugging Face saved is opened with its package ({e}); pip install "
                           "datasets, or name its files: SRC/*.arrow") from None  # fmt: skip
    return datasets.HuggingFace(load_from_disk(path), **arguments)


def _folder(path: str, **arguments: Any) -> EncodedImages:
    return open_dataset(Path(path), **arguments)


KINDS: dict[str, Callable[..., EncodedImages]] = {
    "imagefolder": _folder,
    "webdataset": datasets.WebDataset,
    "zip": datasets.Zip,
    "tfrecord": datasets.TFRecord,
    "recordio": datasets.RecordIO,
    "hdf5": datasets.HDF5,
    "lmdb": datasets.LMDB,
    "parquet": datasets.Parquet,
    "arrow": datasets.Arrow,
    "huggingface": _huggingface,
    "mds": datasets.MDS,
    "litdata": datasets.LitData,
    "manifest": datasets.Manifest,
}
"""What a dataset may be, by name."""


def open_images(
    given: str, *, kind: str | None = None, image: str | None = None, label: str | None = None, exif: bool = False
) -> EncodedImages:
    """The dataset of a folder, a file, a pattern such as ``"train-{000..127}.tar"``, or a URL.

    Args:
        kind: a name of :data:`KINDS`; ``None``: what the names of the files say.
        image: the column, feature or extension of images, if the format has such; and ``label`` of labels.
        exif: sizes as turned upright.

    Raises:
        ConfigError: a kind that there is not, or one without columns.
        DatasetError: there are no images, or more must be said.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"{kind!r} is no kind of source; there are {', '.join(KINDS)}")
    name = kind or kind_of(given)
    open_it = KINDS[name]
    columns = {key: value for key, value in (("image", image), ("label", label)) if value is not None}
    takes = {} if open_it is _folder else inspect.signature(open_it).parameters
    refused = [key for key in columns if key not in takes and "arguments" not in takes]
    if refused:
        raise ConfigError(f"--{refused[0]}: {name} has no columns to choose from; leave it out")
    return open_it(given if is_url(given) else os.path.expanduser(given), exif=exif, **columns)


def kind_of(given: str) -> str:
    """What the names of files say: a name of :data:`KINDS`. Raises :class:`DatasetError`."""
    if not is_url(given) and os.path.isdir(os.path.expanduser(given)):
        return _kind_of_folder(os.path.expanduser(given))
    ending = os.path.splitext(given)[1].lower()
    if ending in _SUFFIXES:
        return _SUFFIXES[ending]
    if ending == ".csv" and not is_url(given) and _has_places(os.path.expanduser(given)):
        return "manifest"
    if _TFRECORD.search(given):
        return "tfrecord"
    if is_url(given):
        raise DatasetError(
            f"{given}: its name does not say what it is; say --source and one of {', '.join(KINDS)}, or name the "
            "files, as in s3://bucket/train-{000..127}.tar"
        )
    return "imagefolder"


def _has_places(file: str) -> bool:
    """Whether a list says where in files images lie, as :class:`~gpupipe.datasets.Manifest` reads it."""
    try:
        with open(file, "rb", opener=open_regular) as lines:
            head = lines.readline(4096).decode("utf-8-sig", "replace")
    except OSError:
        return False
    return {"path", "offset"} <= {name.strip().strip('"') for name in head.split(",")}


def _kind_of_folder(folder: str) -> str:
    """Class folders and images that lie there come first, as ever."""
    entries = sorted(os.listdir(folder))
    if "state.json" in entries and "dataset_info.json" in entries:
        return "huggingface"
    if "index.json" in entries:
        try:
            about = json.loads(Path(folder, "index.json").read_bytes())
        except (OSError, ValueError):
            about = None
        if isinstance(about, dict) and ("shards" in about or "chunks" in about):
            return "mds" if "shards" in about else "litdata"
    kinds = [_SUFFIXES.get(os.path.splitext(name)[1].lower()) for name in entries]
    found = next((kind for kind in kinds if kind not in (None, "manifest")), None)
    folders = any(os.path.isdir(os.path.join(folder, name)) for name in entries if not name.startswith("."))
    return "imagefolder" if found is None or folders else found
