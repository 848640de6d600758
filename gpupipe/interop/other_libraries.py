"""Datasets of other libraries, and paths: which class of gpupipe's reads the same samples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .classes import known_class

__all__ = ["named_class"]

_SUFFIXES = {
    ".tar": "WebDataset",
    ".tfrecord": "TFRecord",
    ".tfrec": "TFRecord",
    ".rec": "RecordIO",
    ".h5": "HDF5",
    ".hdf5": "HDF5",
    ".mdb": "LMDB",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".mds": "MDS",
    ".zip": "Zip",
    ".csv": "Manifest",
    ".jsonl": "Manifest",
}
_LIBRARIES: Mapping[str, tuple[str, str]] = {
    "datasets.arrow_dataset": ("HuggingFace(dataset, transform, return_dict=True)", ""),
    "datasets.dataset_dict": ('HuggingFace(dataset["train"], transform)', "it has several splits"),
    "datasets.iterable_dataset": ("HuggingFace(dataset, transform)", "it is a stream, loaded with streaming=True"),
    "webdataset": ('WebDataset("shards/{000..127}.tar", transform)', "a webdataset pipeline is a stream"),
    "wids": ('WebDataset("shards/{000..127}.tar", transform)', "its samples are dictionaries"),
    "streaming.base": ("MDS(folder, transform)", "a StreamingDataset is a stream"),
    "litdata.streaming": ("LitData(folder, transform)", "a StreamingDataset is a stream"),
}
"""By module: what to write, and why it is not done by itself."""


def named_class(ds: Any) -> str | None:
    """Why a dataset is not translated, and what to write to read the same samples; ``None`` if that is not known.

    >>> named_class("train.tar")
    "a path says no transforms; write gpupipe.datasets.WebDataset('train.tar', transform)"
    """
    if isinstance(ds, (str, os.PathLike)):
        name = _SUFFIXES.get(os.path.splitext(os.fspath(ds))[1].lower(), "ImageFolder")
        text = f"gpupipe.datasets.{name}({os.fspath(ds)!r}, transform)"
        return f"a path says no transforms; write {text}"
    for module, (call, why) in _LIBRARIES.items():
        if known_class(ds, module) is not None:
            given = "dictionaries of images and labels" if "return_dict" in call else "(images, labels)"
            before = f"{why}; " if why else ""
            return f"{before}gpupipe.datasets.{call} reads the same images in any order, and gives {given}"
    return None
