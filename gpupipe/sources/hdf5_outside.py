"""HDF5 objects whose bytes lie in other files: external storage, virtual datasets and external links.

A file can name any other file of the machine in these ways, so they are followed only if the user allows it. HDF5
silently returns zeros if a source is missing; here that is an error.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any

from .extras import need

_SOFT_LINKS = 32
"""Maximum number of soft links that one name may pass."""


class OutsideError(ValueError):
    """A dataset lies in another file than the one that was opened."""


def h5py() -> Any:
    """Import h5py. Raises :class:`~gpupipe.errors.MissingDependency`."""
    return need("h5py", "hdf5", "HDF5 files are opened with h5py")


def find(root: Any, name: str, allow_outside: bool = False) -> Any:
    """Return the dataset or group ``name`` of an open file; ``None`` if there is none.

    Args:
        root: an ``h5py.File`` or ``h5py.Group``.
        allow_outside: whether its bytes may lie in other files.

    Raises:
        OutsideError: it leads to another file.
        ValueError: a file that may be used lacks some of its data.
    """
    item = root.get(name) if allow_outside else _inside(root, name)
    if isinstance(item, h5py().Dataset):
        if not allow_outside:
            _refuse_outside(item, name)
        elif item.is_virtual:
            _check_sources(item, name)
        elif item.external:
            _check_external(item, name)
    return item


def walk(group: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, dataset) of every dataset below a group, each once, in the order of the names within each group.

    Raises :class:`OutsideError` if one lies in another file.
    """
    yield from _walk(group, "", {_address(group)})


def _walk(group: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    for key in group:
        item, name = _inside(group, key), prefix + key
        # Hard links can give one dataset several names, or lead back to a group above.
        if item is None or _address(item) in seen:
            continue
        seen.add(_address(item))
        if isinstance(item, h5py().Dataset):
            _refuse_outside(item, name)
            yield name, item
        elif isinstance(item, h5py().Group):
            yield from _walk(item, f"{name}/", seen)


def _address(item: Any) -> int:
    address: int = h5py().h5o.get_info(item.id).addr
    return address


def _inside(root: Any, name: str) -> Any:
    """Return ``root.get(name)`` after checking every link on the way before it is followed."""
    h5 = h5py()
    at = root["/"] if name.startswith("/") else root
    todo, soft = deque(name.split("/")), 0
    while todo:
        part = todo.popleft()
        if part in ("", "."):
            continue
        link = _link(at, part) if isinstance(at, h5.Group) else None
        if link is None:
            return None
        if isinstance(link, h5.ExternalLink):
            raise OutsideError(f"{name!r} is a link to {link.path!r} in another file, {link.filename!r}")
        if isinstance(link, h5.SoftLink):
            soft += 1
            if soft > _SOFT_LINKS:
                raise ValueError(f"{name!r} is a link that leads back to itself")
            # A relative link begins at the group that holds it.
            at = root["/"] if link.path.startswith("/") else at
            todo.extendleft(reversed(link.path.split("/")))
        else:
            at = at[part]
    return at


def _link(group: Any, name: str) -> Any:
    try:
        return group.get(name, getlink=True)
    except TypeError:  # a user-defined kind of link
        raise OutsideError(f"{name!r} is a link of an unknown kind") from None


def _refuse_outside(dataset: Any, name: str) -> None:
    if dataset.external:
        raise OutsideError(f"the bytes of {name!r} lie in another file, {dataset.external[0][0]!r} (external storage)")
    if dataset.is_virtual:
        sources = dataset.virtual_sources()
        where = f", such as {sources[0].dset_name!r} in {sources[0].file_name!r}" if sources else ""
        raise OutsideError(f"{name!r} is a virtual dataset, made of {len(sources)} others{where}")


def _check_external(dataset: Any, name: str) -> None:
    """Raise :class:`ValueError` if a file with the bytes of a dataset is missing or too short."""
    left = dataset.size * dataset.dtype.itemsize
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", os.path.dirname(dataset.file.filename))
    for file, offset, size in dataset.external:
        # The size of the last file may be unlimited.
        path, needed = os.path.join(prefix, file), min(size, left)
        there = max(os.path.getsize(path) - offset, 0) if os.path.isfile(path) else 0
        if there < needed:
            raise ValueError(f"{name!r} needs {needed} bytes of {path!r} from byte {offset} on, and there are {there}")
        left -= needed


def _check_sources(dataset: Any, name: str) -> None:
    """Raise :class:`ValueError` if a source of a virtual dataset is missing."""
    folder = os.path.dirname(dataset.file.filename)
    prefix = os.environ.get("HDF5_VDS_PREFIX", "").replace("${ORIGIN}", folder)
    for _, file, source, _ in dataset.virtual_sources():
        if "%" in file + source:  # a numbered sequence, which ends before the first missing file
            continue
        # HDF5 looks below the prefix, beside the file and in the current folder. "." is the file itself.
        paths = [os.path.join(where, file) for where in (prefix, folder, "")] if file != "." else []
        path = next((path for path in paths if os.path.isfile(path)), None) if paths else dataset.file.filename
        if path is None:
            raise ValueError(f"{name!r} needs {source!r} in {file!r}, but this file does not exist")
        with h5py().File(path, "r") as opened:
            if opened.get(source) is None:
                raise ValueError(f"{name!r} needs {source!r} in {file!r}, which has no such dataset")
