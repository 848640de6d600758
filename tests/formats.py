"""How each format is written, and opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupipe import datasets as ours
from gpupipe.codecs.limits import MAX_BYTES
from gpupipe.errors import DatasetError
from gpupipe.testing.formats import WRITERS, Images

__all__ = ["FORMATS", "Format"]


@dataclass(frozen=True)
class Format:
    """How images with their number as label are written into a folder, and opened."""

    name: str
    open: Callable[..., ours.Dataset]
    """``open(what write returned, transform)``"""
    suffix: str
    """Of the files with the images."""

    @property
    def write(self) -> Callable[[Images, Path], Any]:
        return WRITERS[self.name]


def open_huggingface(path: Path, transform: Any = None, max_bytes: int = MAX_BYTES) -> ours.HuggingFace:
    import datasets

    try:
        found = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as e:  # what is wrong with these files `datasets` says, before gpupipe is asked
        raise DatasetError(str(e)) from None
    return ours.HuggingFace(found, transform, max_bytes=max_bytes)


def open_lmdb(
    path: Path | str, transform: Any = None, max_bytes: int = MAX_BYTES, remote: ours.Remote | None = None
) -> ours.LMDB:
    return ours.LMDB(path, transform, image="image-*", label="label-*", max_bytes=max_bytes, remote=remote)


FORMATS = {
    it.name: it
    for it in (
        Format("tar", ours.WebDataset, ".tar"),
        Format("zip", ours.Zip, ".zip"),
        Format("zip-deflated", ours.Zip, ".zip"),
        Format("tfrecord", ours.TFRecord, "-of-00002"),
        Format("recordio", ours.RecordIO, ".rec"),
        Format("hdf5", ours.HDF5, ".h5"),
        Format("hdf5-chunked", ours.HDF5, ".h5"),
        Format("hdf5-groups", ours.HDF5, ".h5"),
        Format("lmdb", open_lmdb, ".mdb"),
        Format("parquet", ours.Parquet, ".parquet"),
        Format("parquet-snappy", ours.Parquet, ".parquet"),
        Format("arrow", ours.Arrow, ".arrow"),
        Format("arrow-stream", ours.Arrow, ".arrow"),
        Format("huggingface", open_huggingface, ".arrow"),
        Format("mds", ours.MDS, ".mds"),
        Format("litdata", ours.LitData, ".bin"),
        Format("litdata-arrow", ours.LitData, ".bin"),
        Format("manifest", ours.Manifest, ".bin"),
    )
}
assert FORMATS.keys() == WRITERS.keys()
