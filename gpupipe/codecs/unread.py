"""PIL images that user code opens and passes on without reading their pixels, so that another decoder can make them.

``Image.open(path).convert("RGB")`` reads a file's header and then decodes all of it. Within :func:`unread` it returns
an image that is decoded only when its pixels are read. Until then :func:`encoded_of` returns the file. In the same way,
``Image.fromarray(pixels)`` keeps the array, which :func:`pixels_of` returns.
"""

from __future__ import annotations

import io
import os
import threading
import time
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from .files import Place, read_at
from .pillow import Header, jpeg_header

U8 = npt.NDArray[np.uint8]

_FROM = {"RGB": None, "L": ("1", "L", "LA", "RGB", "RGBA")}
"""Modes that another decoder converts equally: to RGB, any mode; to L, the modes whose color version has equal gray."""

_NEW = 2.0
"""Age in seconds up to which a file may be a temporary one."""

_here = threading.local()
_really = Image.Image.convert
_really_of = Image.fromarray


class Undecoded(Image.Image):
    """An image that is decoded when its pixels are read. Its size and mode are known before."""

    decoded = False
    """Whether the pixels were read."""

    def __init__(self, size: tuple[int, int], mode: str):
        super().__init__()
        self._size, self._mode = size, mode

    def made(self) -> Image.Image:
        """The image."""
        raise NotImplementedError

    def load(self) -> Any:
        if not self.decoded:
            self.decoded = True
            made = self.made()
            made.load()
            self.im, self.palette, self._size, self._mode = made.im, made.palette, made.size, made.mode
        return super().load()

    def copy(self) -> Image.Image:
        self.load()
        return super().copy()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _as_it_is, (self.copy(),)


class _Unread(Undecoded):
    """The image of a file, in mode RGB or L."""

    def __init__(
        self,
        encoded: str | bytes,
        size: tuple[int, int],
        mode: str,
        info: dict[Any, Any],
        kind: str | None,
        header: Header | None = None,
    ):
        super().__init__(size, mode)
        self.encoded, self.info, self.format, self.header = encoded, info, kind, header

    def made(self) -> Image.Image:
        with Image.open(self.encoded if isinstance(self.encoded, str) else io.BytesIO(self.encoded)) as opened:
            return _really(opened, self._mode)

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        return self if mode == self.mode and not args and not kwargs else _really(self, mode, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.decoded:
            return super().__reduce_ex__(protocol)
        return _Unread, (self.encoded, self.size, self.mode, self.info, self.format)


class _OfArray(Image.Image):
    """The image of an array uint8[H, W] or uint8[H, W, 3]. Becomes a plain image when its pixels are read.

    Pillow copies the pixels of a color image when it makes the image. A gray image shares them with a contiguous array
    until code writes to the image.
    """

    def __init__(self, pixels: U8):
        super().__init__()
        self._size, self._mode = pixels.shape[1::-1], "L" if pixels.ndim == 2 else "RGB"
        self.pixels = pixels

    def load(self) -> Any:
        made = _really_of(self.pixels)
        self._im, self.readonly = made.im, made.readonly
        del self.pixels
        self.__class__ = Image.Image  # type: ignore[assignment]
        return self.load()

    @property
    def im(self) -> Any:
        self.load()
        return self._im

    @im.setter
    def im(self, im: Any) -> None:
        self._im = im

    def unchanged(self) -> _OfArray:
        """Return an image with the same pixels also after the script writes to the array."""
        return _OfArray(self.pixels if self.mode == "RGB" else self.pixels.copy())

    def copy(self) -> Image.Image:
        copied = self.unchanged()
        copied.info = self.info.copy()
        return copied

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        return self.copy() if mode == self.mode and not args and not kwargs else _really(self, mode, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.load()
        return self.__reduce_ex__(protocol)


def _as_it_is(image: Image.Image) -> Image.Image:
    return image


def sendable(image: Any) -> Any:
    """Return an image that another process decodes at its first use, if it is not decoded here yet."""
    if isinstance(image, ImageFile.ImageFile) and (found := encoded_of(image)) is not None:
        return _unread(image, *found, image.format)
    return image


def unchanged(image: Any) -> Any:
    """Return an image with the pixels that an image has now, also after the script writes to that.

    The script's image becomes read-only, which makes Pillow copy its pixels before it writes to them. Other objects are
    returned as they are.
    """
    if not isinstance(image, Image.Image):
        return image
    if isinstance(image, _OfArray):
        return image.unchanged()
    if (file := sendable(image)) is not image:
        return file
    if isinstance(image, _Unread) and not image.decoded:
        made: Image.Image = _Unread(image.encoded, image.size, image.mode, image.info, image.format, image.header)
    else:
        image.load()  # WebP, AVIF and GIF have no pixels before
        made = image._new(image.im)
    image.readonly = 1
    return made


def may_differ(image: Any, before: Any) -> bool:
    """Return whether an image may have been written to since :func:`unchanged` returned ``before``."""
    if isinstance(image, _OfArray):
        return not np.array_equal(image.pixels, pixels_of(before))
    return isinstance(image, Image.Image) and image._im is not None and not image.readonly


def pixels_of(image: Image.Image) -> U8:
    """Return the pixels u8[H, W] or u8[H, W, C] of an image."""
    return image.pixels if isinstance(image, _OfArray) else np.asarray(image)


def _convert(self: Image.Image, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
    if getattr(_here, "opened", None) is not None and not args and not kwargs and _is_simple(self, mode):
        encoded = _encoded_of_file(self)
        if encoded is not None:
            close_with(self)
            return _unread(self, encoded, str(mode), None)  # a converted image has no format
    return _really(self, mode, *args, **kwargs)


def _unread(opened: Image.Image, encoded: str | bytes, mode: str, kind: str | None) -> _Unread:
    header = None
    if opened.format == "JPEG":
        # Reads the file, which is open, and what Pillow has found in it, so that nothing has to do so again.
        if isinstance(encoded, str):
            encoded = read_at(opened.fp.fileno(), Place(os.fsencode(encoded)))  # type: ignore[attr-defined]
        header = jpeg_header(opened, encoded)
    return _Unread(encoded, opened.size, mode, opened.info.copy(), kind, header)


def _fromarray(obj: Any, mode: str | None = None) -> Image.Image:
    is_plain = mode is None and type(obj) in (np.ndarray, np.memmap) and obj.dtype == np.uint8 and obj.size
    if is_plain and getattr(_here, "opened", None) is not None:
        if obj.ndim == 2 and obj.flags.c_contiguous:
            return _OfArray(obj)
        if obj.ndim == 2 or obj.shape[2:] == (3,):
            return _OfArray(np.array(obj, order="C"))
    return _really_of(obj, mode)


_fromarray.__module__ = _really_of.__module__  # so that code which calls it is seen to call Pillow


class unread:
    """Within this context, images that this thread opens, converts to RGB or L, or makes with ``fromarray()`` stay
    undecoded.

    At its end, the files of unreferenced images are closed, as Pillow closes them after decoding. Images that the
    script keeps stay open.
    """

    def __enter__(self) -> None:
        if Image.Image.convert is _really:
            Image.Image.convert = _convert  # type: ignore[method-assign]
        if Image.fromarray is _really_of:
            Image.fromarray = _fromarray
        self._outer, _here.opened = getattr(_here, "opened", None), []

    def __exit__(self, *_: object) -> None:
        kept, _here.opened = _here.opened, self._outer
        for image, file in kept:
            if image() is None:
                file.close()
            elif self._outer is not None:
                self._outer.append((image, file))


def header_of(image: Any) -> Header | None:
    """Return the properties of the file that :func:`encoded_of` returns, if they are known."""
    return image.header if isinstance(image, _Unread) and not image.decoded else None


def encoded_of(image: Image.Image) -> tuple[str | bytes, str] | None:
    """Return (path or bytes of the file of an image, its mode ``"RGB"`` or ``"L"``) if its pixels were not
    read; else ``None``."""
    if isinstance(image, _Unread):
        return None if image.decoded else (image.encoded, image.mode)
    encoded = _encoded_of_file(image) if image.mode in _FROM else None
    if encoded is not None:
        close_with(image)
    return None if encoded is None else (encoded, image.mode)


def is_unread(image: Image.Image) -> bool:
    """Return whether :func:`encoded_of` would return a file."""
    if isinstance(image, _Unread):
        return not image.decoded
    return image.mode in _FROM and _encoded_of_file(image) is not None


def close_with(image: Any) -> None:
    """Close the file of an image that Pillow opened by name at the end of :func:`unread`, if nothing refers to
    the image."""
    opened = getattr(_here, "opened", None)
    if opened is None or not isinstance(image, ImageFile.ImageFile):
        return
    if image._exclusive_fp and image._im is None and image.fp is not None:
        opened.append((weakref.ref(image), image.fp))


def _is_simple(image: Image.Image, to: str | None) -> bool:
    """Tell whether another decoder converts an image equally, and Pillow neither warns nor changes its ``info``."""
    # Pillow replaces a transparent color, and warns of several.
    if image.mode != to and "transparency" in image.info:
        return False
    return to in _FROM and (_FROM[to] is None or image.mode in _FROM[to])  # type: ignore[operator]


def _encoded_of_file(image: Image.Image) -> str | bytes | None:
    if not isinstance(image, ImageFile.ImageFile):
        return None
    if image._im is not None or not image.tile or image.decoderconfig or image.tell():
        return None  # decoded, reduced by draft(), or not the first frame
    source = image.fp
    if isinstance(source, io.BytesIO):
        return source.getvalue()
    # For a member of an archive, the name is that of the archive. A file that was opened by name has no other layer.
    if isinstance(source, io.BufferedReader) and isinstance(source.raw, io.FileIO) and isinstance(source.name, str):
        return _content(source) if _is_new(source) else source.name
    return None


def _is_new(file: io.BufferedReader) -> bool:
    """Tell whether a file has just been written. Then it may be a temporary one, which the script writes once more for
    its next image, or removes."""
    return time.time() - os.fstat(file.fileno()).st_mtime < _NEW


def _content(file: io.BufferedReader) -> bytes:
    at = file.tell()
    file.seek(0)
    content = file.read()
    file.seek(at)
    return content
