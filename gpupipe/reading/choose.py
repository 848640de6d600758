"""Which reader a dataset needs for an engine: the one place that looks at kinds of datasets."""

from __future__ import annotations

from collections.abc import Callable

from ..datasets.base import Dataset
from ..datasets.subset import Subset
from ..datasets.user_code import FromTorch
from ..errors import PipelineError
from .base import Form, Reader
from .clips import ClipReader
from .cuts import Cuts
from .paths import PathReader
from .pixels import PixelReader
from .png_copies import PngCopies, PngCopy
from .ranges import RangeReader
from .setup import Setup
from .user_code import UserCodeReader

__all__ = ["form_of", "reader_for"]

_RETURNS: dict[str, Form] = {"path": "paths", "bytes": "encoded", "array": "pixels", "pil": "pixels"}


def form_of(setup: Setup, accepts: frozenset[Form]) -> Form:
    """What an engine that accepts these forms is given of the dataset of a setup.

    Raises :class:`PipelineError` if it is none of them.
    """
    dataset, form = setup.dataset, _form_of(setup, accepts)
    if form not in accepts:
        raise PipelineError(f"{dataset!r} has {form}, and the engine takes {', '.join(sorted(accepts))}")
    return form


def _form_of(setup: Setup, accepts: frozenset[Form]) -> Form:
    dataset = setup.dataset
    if dataset.kind == "files":
        opens = dataset.whole_files and "paths" in accepts and Cuts.of(dataset, setup.pipeline) is None
        return "paths" if opens else "encoded"
    if dataset.kind == "user code":
        return _RETURNS[_whole(dataset, FromTorch).returns]
    return "pixels" if dataset.kind == "pixels" else "frames"


def reader_for(setup: Setup, accepts: frozenset[Form], *, decodes: Callable[[str], bool]) -> Reader:
    """The reader of a setup for an engine.

    Args:
        accepts: forms that the engine takes.
        decodes: whether the engine decodes a coding (see :class:`gpupipe.codecs.pillow.Header`) to Pillow's pixels; of
            others it is given a PNG that Pillow's pixels were written to. Picklable.
    """
    dataset, form = setup.dataset, form_of(setup, accepts)
    if dataset.kind == "user code":
        return UserCodeReader(setup, form, PngCopy(dataset.exif, dataset.max_pixels, decodes))
    if form == "frames":
        return ClipReader(setup)
    if form == "pixels":
        return PixelReader(dataset, pinned=setup.cuda)
    copies = PngCopies.of(dataset, setup.threads, decodes)
    if form == "paths":
        return PathReader(dataset, copies)
    return RangeReader(setup, copies, Cuts.of(dataset, setup.pipeline))


def _whole(dataset: Dataset, kind: type[FromTorch]) -> FromTorch:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    assert isinstance(dataset, kind)
    return dataset
