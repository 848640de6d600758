"""PIL images that user code opens and hands on without looking at their pixels, so that another decoder can make them.

``Image.open(path).convert("RGB")`` reads a file's header and then decodes all of it. Within :func:`unread` it gives an
image that does so only if somebody looks. Who does not gets the file with :func:`encoded_of`.
"""

from __future__ import annotations

import io
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image, ImageFile

__all__ = ["close_with", "encoded_of", "is_unread", "unread"]

_FROM = {"RGB": None, "L": ("1", "L", "LA", "RGB", "RGBA")}
"""What others decode to: colour of any mode; and the gray of those modes whose colour has the same."""

_here = threading.local()
_really = Image.Image.convert


class _Unread(Image.Image):
    """An image that is decoded when somebody looks at it."""

    def __init__(self, encoded: str | bytes, opened: ImageFile.ImageFile, mode: str):
        super().__init__()
        self.encoded = encoded
        self.decoded = False
        """Whether somebody looked."""
        self.info = opened.info.copy()
        self._size, self._mode = opened.size, mode

    def load(self) -> Any:
        if not self.decoded:
            self.decoded = True
            with Image.open(self.encoded if isinstance(self.encoded, str) else io.BytesIO(self.encoded)) as opened:
                self.im = _really(opened, self._mode).im
        return super().load()

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        return self if mode == self.mode and not args and not kwargs else _really(self, mode, *args, **kwargs)

    def copy(self) -> Image.Image:
        self.load()
        return super().copy()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _as_it_is, (self.copy(),)


def _as_it_is(image: Image.Image) -> Image.Image:
    return image


def _convert(self: Image.Image, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
    if getattr(_here, "opened", None) is not None and not args and not kwargs and _is_simple(self.mode, mode):
        encoded = _encoded_of_file(self)
        if encoded is not None:
            close_with(self)
            return _Unread(encoded, self, mode)  # type: ignore[arg-type]
    return _really(self, mode, *args, **kwargs)


@contextmanager
def unread() -> Iterator[None]:
    """Within it this thread's images are not decoded by being opened and converted to RGB or L.

    At its end files of images that nothing refers to any more are closed, as Pillow closes them when it has decoded
    them. Those that the script keeps stay open.
    """
    if Image.Image.convert is _really:
        Image.Image.convert = _convert  # type: ignore[method-assign]
    outer, _here.opened = getattr(_here, "opened", None), []
    try:
        yield
    finally:
        kept, _here.opened = _here.opened, outer
        for image, file in kept:
            if image() is None:
                file.close()
            elif outer is not None:
                outer.append((image, file))


def encoded_of(image: Image.Image) -> tuple[str | bytes, str] | None:
    """(path or bytes of the file that an image is, its mode ``"RGB"`` or ``"L"``), if nobody has looked at its pixels;
    else ``None``."""
    if isinstance(image, _Unread):
        return None if image.decoded else (image.encoded, image.mode)
    encoded = _encoded_of_file(image) if image.mode in _FROM else None
    if encoded is not None:
        close_with(image)
    return None if encoded is None else (encoded, image.mode)


def is_unread(image: Image.Image) -> bool:
    """Whether :func:`encoded_of` would give a file."""
    if isinstance(image, _Unread):
        return not image.decoded
    return image.mode in _FROM and _encoded_of_file(image) is not None


def close_with(image: Any) -> None:
    """Close the file of an image that Pillow opened by name, at the end of :func:`unread` if nothing refers to it."""
    opened = getattr(_here, "opened", None)
    if opened is None or not isinstance(image, ImageFile.ImageFile):
        return
    if image._exclusive_fp and image._im is None and image.fp is not None:
        opened.append((weakref.ref(image), image.fp))


def _is_simple(mode: str, to: str | None) -> bool:
    return to in _FROM and (_FROM[to] is None or mode in _FROM[to])  # type: ignore[operator]


def _encoded_of_file(image: Image.Image) -> str | bytes | None:
    if not isinstance(image, ImageFile.ImageFile):
        return None
    if image._im is not None or not image.tile or image.decoderconfig or image.tell():
        return None  # decoded, or made smaller by draft(), or another frame of several
    source = image.fp
    if isinstance(source, io.BytesIO):
        return source.getvalue()
    # Of a member of an archive the name is the archive's; a file that was opened by name has no other layer.
    if isinstance(source, io.BufferedReader) and isinstance(source.raw, io.FileIO) and isinstance(source.name, str):
        return source.name
    return None
