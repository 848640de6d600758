"""Registry of the formats. Every module of this folder with a class of the same name is a format: ``zip.py`` has
``Zip``.

The command line, hints, ``gpupipe pack`` and the tests iterate over this registry, and ``gpupipe.datasets`` exports its
classes.
"""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module

from ..sources.compressed import plain_name
from ..sources.names import is_url
from .base import Format

_FOLDER = __name__.rpartition(".")[0]
_OTHERS = (
    (re.compile(r"\.mds(\.\w+)?$"), "mosaicml-streaming", "its StreamingDataset"),
    (re.compile(r"(^|/)chunk-\d+-\d+(\.\w+)?\.bin$"), "litdata", "its StreamingDataset"),
    (re.compile(r"\.(lmdb|mdb)$"), "lmdb", "a Dataset of your own that opens them"),
    (re.compile(r"\.(h5|hdf5|hdf)$"), "h5py", "a Dataset of your own that opens them with h5py"),
    (
        re.compile(r"\.(arrow|feather|ipc)$"),
        "datasets",
        "gpupipe.datasets.HuggingFace(datasets.Dataset.from_file(...))",
    ),
    (
        re.compile(r"\.parquet$"),
        "datasets",
        'gpupipe.datasets.HuggingFace(datasets.load_dataset("parquet", data_files=..., split="train"), ...)',
    ),
)
"""(end of file names, library that reads these files, what to pass to the loader)"""
_MODULES = tuple(it.name for it in pkgutil.iter_modules(import_module(_FOLDER).__path__))


def load(name: str) -> type[Format]:
    """Return the dataset class of a name such as ``"WebDataset"``. Raises :class:`AttributeError` if there is none."""
    module = name.lower()
    found = getattr(import_module(f"{_FOLDER}.{module}"), name, None) if module in _MODULES else None
    if not (isinstance(found, type) and issubclass(found, Format)):
        raise AttributeError(f"module 'gpupipe.datasets' has no attribute {name!r}")
    return found


@cache
def formats() -> dict[str, type[Format]]:
    """Return the classes of all formats of encoded images, by lower-case name."""
    found = {}
    for module in _MODULES:
        for name, kind in vars(import_module(f"{_FOLDER}.{module}")).items():
            if name.lower() == module and isinstance(kind, type) and issubclass(kind, Format):
                found[module] = kind
    return found


def format_of(path: str) -> type[Format] | None:
    """Return the format of a file, folder or URL, judged by its name or by the names of the files in a folder. A
    compressed file has the format that its name shows: ``a.tar.gz``.

    Returns ``None`` if they do not tell, as for class folders of images.
    """
    home = os.path.expanduser(path)
    is_folder = not is_url(path) and os.path.isdir(home)
    entries = sorted(os.listdir(home)) if is_folder else []
    for kind in formats().values():
        if kind.is_at(home if is_folder else plain_name(path), entries):
            return kind
    for name in _files(home, entries) if is_folder else [path]:
        for kind in formats().values():
            if kind.suffixes and plain_name(name.lower()).endswith(kind.suffixes):
                return kind
    return None


def _files(folder: str, entries: Sequence[str]) -> Sequence[str]:
    """Return what a folder holds; nothing if it has class folders, which are no format, whatever lies beside them."""
    has_folders = any(os.path.isdir(os.path.join(folder, name)) for name in entries if not name.startswith("."))
    return () if has_folders else entries


def others_files(path: str) -> str:
    """Explain what to do with a file or folder that another library reads; empty for all others.

    >>> others_files("shard.00000.mds")
    "'shard.00000.mds': mosaicml-streaming reads such files; pass its StreamingDataset to gpupipe.DataLoader"
    """
    home = os.path.expanduser(path)
    names = [path, *(_files(home, sorted(os.listdir(home))) if os.path.isdir(home) else ())]
    for pattern, library, what in _OTHERS:
        if any(map(pattern.search, names)):
            return f"{path!r}: {library} reads such files; pass {what} to gpupipe.DataLoader"
    return ""
