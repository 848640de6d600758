"""Choice of the reader for a dataset and an engine: the only place that distinguishes kinds of datasets."""

from __future__ import annotations

import numpy as np

from ..errors import PipelineError
from .clips import ClipReader
from .files import FileReader
from .paths import PathReader
from .pixels import PixelReader
from .reader import Decodes, Feed, MediaForm, Reader
from .setup import Setup
from .smaller import Smaller

_CODES = 255
"""Maximum number of codings with names; see :attr:`gpupipe.datasets.Dataset.codings`."""


def feed_of(setup: Setup, accepts: frozenset[MediaForm], decodes: Decodes) -> Feed:
    """Return the form in which an engine gets a setup's dataset.

    Args:
        accepts: forms that the engine accepts.
        decodes: codings that it decodes.

    Raises :class:`PipelineError` if there is no such form.
    """
    dataset = setup.dataset
    if dataset.kind == "files":
        feed = _of_files(setup, accepts, decodes)
    else:
        feed = Feed("pixels" if dataset.kind == "pixels" else "frames")
    if feed.form not in accepts:
        raise PipelineError(f"{dataset!r} has {feed.form}, but the engine takes {', '.join(sorted(accepts))}")
    return feed


def _of_files(setup: Setup, accepts: frozenset[MediaForm], decodes: Decodes) -> Feed:
    dataset, scaled = setup.dataset, setup.scaled and Smaller.of(setup.dataset, setup.pipeline) is not None
    turns = dataset.orientations if dataset.limits.exif else np.ones(1, np.uint8)
    if dataset.codings is None or turns is None:  # Pillow decodes unknown codings
        return Feed("pixels")
    _, codings = dataset.codings
    own = [setup.cache is None and decodes(coding) for coding in codings if coding.format]  # bad samples have none
    # Beyond the last named coding lie unknown ones, which Pillow decodes.
    handed = scaled or not all(own) or len(codings) >= _CODES
    if handed and not any(own):
        return Feed("pixels")
    turned = bool((turns != 1).any())
    opens = dataset.whole_files and "paths" in accepts
    return Feed("paths" if opens else "encoded", handed, turned)


def reader_for(setup: Setup, accepts: frozenset[MediaForm], *, decodes: Decodes) -> Reader:
    """Return the reader of a setup for an engine; see :func:`feed_of`."""
    dataset, feed = setup.dataset, feed_of(setup, accepts, decodes)
    if dataset.kind == "files":
        only_paths = feed.form == "paths" and not feed.handed
        return PathReader(dataset, turned=feed.turned) if only_paths else FileReader(setup, feed, decodes)
    return ClipReader(setup) if feed.form == "frames" else PixelReader(setup)
