"""Options that many datasets share: declared, documented and given defaults once.

A constructor takes them as ``**options: Unpack[ShardOptions]``, which type checkers expand. :func:`with_options`
expands the signature and the docstring, so that ``help()`` and ``inspect.signature`` show every argument as well.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypedDict, get_args

from ..codecs.limits import MAX_BYTES, Limits
from ..errors import unexpected_argument
from ..sources.remote.options import Remote

if TYPE_CHECKING:
    from fractions import Fraction

    from ..media import Layout
    from ..transforms.compose import Transforms
    from .video.sampling import Padding, Sampling

__all__ = ["ArchiveOptions", "ClipOptions", "ImageOptions", "ShardOptions", "TableOptions", "limits_of", "with_options"]


class ImageOptions(TypedDict, total=False):
    """Options of every dataset of encoded images."""

    exif: bool | None
    max_pixels: int | None
    max_bytes: int


class TableOptions(ImageOptions, total=False):
    """Options of formats that have more than an image and a label per sample."""

    columns: Sequence[str]
    return_dict: bool


class ShardOptions(TableOptions, total=False):
    """Options of formats that are also read behind a network."""

    remote: Remote | None


class ArchiveOptions(ImageOptions, total=False):
    """Options of archives of images without further values."""

    return_dict: bool
    remote: Remote | None


class ClipOptions(TypedDict, total=False):
    """Options of every dataset of clips."""

    stride: int | None
    fps: float | Fraction | None
    clips: int
    sampling: Sampling
    padding: Padding
    transform: Transforms
    upright: bool
    layout: Layout


_DEFAULTS: dict[str, Any] = {
    "exif": None,
    "max_pixels": None,
    "max_bytes": MAX_BYTES,
    "columns": (),
    "return_dict": False,
    "remote": None,
    "stride": None,
    "fps": None,
    "clips": 1,
    "sampling": "random",
    "padding": "repeat",
    "transform": None,
    "upright": False,
    "layout": "CTHW",
}
_DOCUMENTED = """
Args:
    paths: The files: a path, a URL, a pattern such as ``"train-*.tar"``, a name with braces such as
        ``"train-{000..127}.tar"``, a folder, several of these joined by ``::``, or a list.
    transform: A gpupipe ``Compose``, the transforms for one, or transforms of torchvision or timm, which are
        translated.
    exif: Apply the EXIF orientation. ``None`` follows the library that owns the format: Hugging Face ``datasets``
        applies it, torchvision and all others do not.
    max_pixels: Larger images are bad samples of kind ``bomb`` and are never decoded. ``None`` means Pillow's own
        limit, which is twice ``PIL.Image.MAX_IMAGE_PIXELS``.
    max_bytes: Images with more bytes are bad samples of kind ``bomb`` and are never read. The default is 2 GiB, more
        than the largest uncompressed image that Pillow opens.
    columns: Names of further columns. A sample that lacks one is a bad sample.
    return_dict: Return samples, and therefore batches, as dictionaries with ``"image"``, ``"label"`` and the columns by
        name, instead of tuples.
    remote: How URLs are read; see :class:`~gpupipe.datasets.Remote`.
    frames: Frames per clip (T).
    stride: Distance between consecutive frames of a clip; 1 if neither this nor ``fps`` is given.
    fps: Frames per second of the clips, regardless of the rate of the videos: the frames on screen at 0, 1 / fps,
        2 / fps ... seconds of the clip.
    clips: Clips per video. A sample is one clip, so there are ``clips`` times as many samples as videos.
    sampling: ``random`` starts (for training); ``uniform``, evenly spread, a single clip in the center (for
        evaluation); ``segments``, a random frame of each of T parts of the video; ``segment_middles``, their middle
        frames.
    padding: Treatment of videos that are too short for a clip: ``repeat`` the last frame, ``loop``, or ``skip`` the
        video.
    upright: Rotate frames as their file requests, like players do. torchvision and PyAV do not.
    layout: Of a batch: ``CTHW`` for [B, C, T, H, W], which torchvision's video models take, or ``TCHW``.
"""
"""Documentation of shared arguments. A class that documents one itself keeps its own text."""
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n     .*)*)\n", re.MULTILINE)


def limits_of(options: ImageOptions, *, exif: bool = False) -> Limits:
    """Return the image options as one value. ``exif`` is the meaning of ``exif=None``."""
    given = options.get("exif")
    return Limits(exif if given is None else given, options.get("max_pixels"), options.get("max_bytes", MAX_BYTES))


def with_options(made: Any) -> None:
    """Expand ``**options: Unpack[...]`` in the signature and the docstring of a class's ``__init__``."""
    init: Callable[..., None] = made.__init__
    signature = inspect.signature(init)
    *own, last = signature.parameters.values()
    if last.kind is not last.VAR_KEYWORD or not str(last.annotation).startswith("Unpack["):
        return
    (kind,) = get_args(eval(last.annotation, init.__globals__))
    added = [
        inspect.Parameter(name, last.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=text.__forward_arg__)
        for name, text in kind.__annotations__.items()
    ]
    whole = signature.replace(parameters=[*own, *added])

    @wraps(init)
    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in whole.parameters:
                raise unexpected_argument(made.__name__, name, [*whole.parameters][1:])
        try:
            # **options would take any name; the expanded signature does not.
            whole.bind(self, *args, **kwargs)
        except TypeError as e:
            raise TypeError(f"{made.__name__}() {e}") from None
        init(self, *args, **kwargs)

    __init__.__signature__ = whole  # type: ignore[attr-defined]
    made.__init__ = __init__
    if made.__doc__:
        suffixes: tuple[str, ...] = getattr(made, "suffixes", ()) or (".tar",)
        made.__doc__ = _documented(made.__doc__, [*whole.parameters][1:], suffixes[0])


def _documented(text: str, names: Sequence[str], suffix: str) -> str:
    """A docstring with an entry for every argument, in the order of the signature."""
    before, header, rest = inspect.cleandoc(text).partition("\nArgs:\n")
    entries = dict(_ENTRY.findall(_DOCUMENTED.replace(".tar", suffix)))
    if header:
        section, _, after = (rest + "\n").partition("\n\n")
        entries |= dict(_ENTRY.findall(section + "\n"))
    else:
        before, after = before + "\n", ""
    lines = "".join(f"    {name}: {entries[name]}\n" for name in names if name in entries)
    return f"{before}\nArgs:\n{lines}\n{after}".rstrip() + "\n"
