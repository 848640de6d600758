"""``ImageList``: image files listed in Python or in a CSV or TSV file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
import numpy.typing as npt

from ..errors import DatasetError
from ..sources.files import Listed
from ..sources.list_file import read_list
from ..sources.names import Outside, below, texts_of
from ..targets import as_labels
from ..transforms.compose import Transforms
from .dataset import Batches, Sample
from .images import EncodedImages
from .options import ImageOptions, limits_of

if TYPE_CHECKING:
    from torch import Tensor

I64 = npt.NDArray[np.int64]


class ImageList(EncodedImages[Sample, Batches]):
    """Image files listed in Python, or in a CSV or TSV file. A missing file is a bad sample, not an error.

    Not supported: paths that lead out of ``root``, or by ``..`` out of the folder of the list file, unless
    ``allow_outside=True``.

    Args:
        paths: The paths; or the path of a CSV or TSV file with the columns path and, optionally, label. A header is
            recognized.
        labels: int[N], or N class names, which are numbered in sorted order (``classes``, ``class_to_idx``).
        root: Base of relative paths. Default: the folder of the list file, or the current folder for paths from Python.
        allow_outside: Allow paths that lead out of ``root``. Without ``root``: paths in a list file that lead out of
            its folder by ``..``; absolute ones may, and so may all paths from Python.

    Raises:
        DatasetError: The list cannot be read, labels do not match, or a path leads out of ``root`` or the list's
            folder.

    >>> import numpy as np
    >>> [(bad.index, bad.kind) for bad in ImageList(["no/such.jpg"], [3]).bad(np.array([0]))]
    [(0, 'missing')]
    """

    @overload
    def __init__(
        self: ImageList[Any, Any],  # a list file may have labels
        paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
        labels: None = None,
        *,
        transform: Transforms = ...,
        root: str | os.PathLike[str] | None = ...,
        allow_outside: bool = ...,
        **options: Unpack[ImageOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: ImageList[tuple[Any, int], tuple[Tensor, Tensor]],
        paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
        labels: Any,
        *,
        transform: Transforms = ...,
        root: str | os.PathLike[str] | None = ...,
        allow_outside: bool = ...,
        **options: Unpack[ImageOptions],
    ) -> None: ...
    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
        labels: Any = None,
        *,
        transform: Transforms = None,
        root: str | os.PathLike[str] | None = None,
        allow_outside: bool = False,
        **options: Unpack[ImageOptions],
    ):
        source = listed("ImageList", paths, labels, root, allow_outside)
        self.root = os.fsdecode(source.prefix)
        super().__init__(source, transform, limits_of(options))

    def __repr__(self) -> str:
        return f"ImageList({len(self):,} samples below {self.root!r})"


def listed(
    owner: str,
    paths: Iterable[Any] | str | os.PathLike[str],
    labels: Any,
    root: str | os.PathLike[str] | None,
    allow_outside: bool,
) -> Listed:
    """Return the files given by the arguments of :class:`ImageList`. ``owner`` names the class in messages."""
    base = None if root is None else os.path.abspath(os.path.expanduser(root))
    outside: Outside = "allowed" if base is None or allow_outside else "refused"
    if isinstance(paths, (str, bytes, os.PathLike)):
        file = os.path.abspath(os.path.expanduser(os.fsdecode(paths)))
        texts, known = read_list(file, owner)
        if labels is not None and known is not None:
            raise DatasetError(f"{owner}: {file} has a label column, but labels were given too; use only one of them")
        labels = known if labels is None else labels
        if base is None:
            base, outside = os.path.dirname(file), "allowed" if allow_outside else "absolute"
    else:
        texts = texts_of(paths, owner)
    numbers, classes = _numbers(labels, len(texts), owner)
    return Listed(below(texts, base, outside, owner), numbers, classes)


def _numbers(labels: Any, count: int, owner: str) -> tuple[I64 | None, tuple[str, ...]]:
    """Return (i64[N] or ``None``, class names)."""
    if labels is None:
        return None, ()
    if callable(labels):
        raise DatasetError(f"{owner}: labels are {labels!r}; pass transforms as transform=")
    try:
        values = np.asarray(labels.numpy() if callable(getattr(labels, "numpy", None)) else labels)
    except ValueError:  # lists of different lengths
        raise DatasetError(f"{owner}: labels must be one integer or class name per path") from None
    if values.size == 0 and count == 0:
        return np.empty(0, np.int64), ()
    if values.ndim != 1 or len(values) != count:
        raise DatasetError(f"{owner}: {count} paths, but labels of shape {values.shape}; there must be one per path")
    if values.dtype.kind in "iu":
        return as_labels(values, owner).copy(), ()
    if values.dtype.kind != "U":
        raise DatasetError(f"{owner}: labels are {values.dtype}; they must be integers or class names")
    names, numbers = np.unique(values, return_inverse=True)
    return numbers.astype(np.int64).reshape(-1), tuple(names.tolist())
