"""Which reader a dataset needs for an engine: the one place that looks at kinds of datasets."""

from __future__ import annotations

import numpy as np

from ..codecs.coding import Coding
from ..datasets.base import Dataset
from ..datasets.subset import Subset
from ..datasets.user_code import FromTorch
from ..errors import PipelineError
from .base import Decodes, Feed, Form, Reader
from .clips import ClipReader
from .cuts import Cuts
from .files import FileReader
from .paths import PathReader
from .pixels import PixelReader
from .scaled import scaled_of
from .setup import Setup
from .user_code import UserCodeReader

__all__ = ["feed_of", "nothing", "reader_for"]

_RETURNS: dict[str, Form] = {"path": "paths", "bytes": "encoded", "array": "pixels", "pil": "encoded"}
_CODES = 255
"""So many codings have names; see :attr:`gpupipe.datasets.Dataset.codings`."""


def nothing(coding: Coding) -> bool:
    """What an engine decodes itself if decoded images are kept: they are Pillow's."""
    return False


def feed_of(dataset: Dataset, accepts: frozenset[Form], decodes: Decodes, *, scaled: bool = False) -> Feed:
    """What an engine is given of a dataset.

    Args:
        accepts: forms that the engine takes.
        decodes: which codings it decodes.
        scaled: whether some images are decoded smaller, which Pillow does.

    Raises :class:`PipelineError` if there is no such form.
    """
    feed = _feed_of(dataset, accepts, decodes, scaled)
    if feed.form not in accepts:
        raise PipelineError(f"{dataset!r} has {feed.form}, and the engine takes {', '.join(sorted(accepts))}")
    return feed


def _feed_of(dataset: Dataset, accepts: frozenset[Form], decodes: Decodes, scaled: bool) -> Feed:
    if dataset.kind == "files":
        return _of_files(dataset, accepts, decodes, scaled)
    if dataset.kind == "user code":
        form = _RETURNS[_whole(dataset, FromTorch).returns]
        # How its images are encoded is known when they are there.
        return Feed(form) if form == "pixels" else Feed(form, handed=True, turned=dataset.limits.exif)
    return Feed("pixels" if dataset.kind == "pixels" else "frames")


def _of_files(dataset: Dataset, accepts: frozenset[Form], decodes: Decodes, scaled: bool) -> Feed:
    turns = dataset.orientations if dataset.limits.exif else np.ones(1, np.uint8)
    if dataset.codings is None or turns is None:  # what is not known is Pillow's
        return Feed("pixels")
    _, codings = dataset.codings
    own = [decodes(coding) for coding in codings if coding.format]  # bad samples have none
    handed = scaled or not all(own) or len(codings) >= _CODES
    if handed and not any(own):
        return Feed("pixels")
    turned = bool((turns != 1).any())
    opens = dataset.whole_files and "paths" in accepts and Cuts.of(dataset) is None
    return Feed("paths" if opens else "encoded", handed, turned)


def reader_for(setup: Setup, accepts: frozenset[Form], *, decodes: Decodes) -> Reader:
    """The reader of a setup for an engine; see :func:`feed_of`."""
    decodes = decodes if setup.cache is None else nothing
    dataset, feed = setup.dataset, feed_of(setup.dataset, accepts, decodes, scaled=scaled_of(setup) is not None)
    if dataset.kind == "user code":
        return UserCodeReader(setup, feed, decodes)
    if dataset.kind == "files":
        only_paths = feed.form == "paths" and not feed.handed
        return PathReader(dataset, turned=feed.turned) if only_paths else FileReader(setup, feed, decodes)
    return ClipReader(setup) if feed.form == "frames" else PixelReader(dataset, pinned=setup.cuda)


def _whole(dataset: Dataset, kind: type[FromTorch]) -> FromTorch:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    assert isinstance(dataset, kind)
    return dataset
