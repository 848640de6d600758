"""PIL images that wait: plain JPEG files that were opened, and what functions of libraries make of them.

An image that waits is an ordinary image of Pillow's class without pixels, whose attribute ``_gpupipe`` is its step.
Pillow reads pixels through the property ``im``, so that is where they are made.
"""

from __future__ import annotations

import io
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from PIL import Image, ImageFile, JpegImagePlugin, MpoImagePlugin

from ..codecs.raw_file import RawFile
from ..codecs.truncation import jpeg
from ..reading.kept import OpenFile
from . import looks, trays
from .steps import MODES, AnyImage, Encoded, ImageStep
from .switch import catch, is_on, uncaught
from .trays import Data

_HEAD = 4096
"""Bytes in which the first scan of a JPEG file usually begins."""
_FILES = (JpegImagePlugin.JpegImageFile, MpoImagePlugin.MpoImageFile)


def step_of(image: Any) -> AnyImage | None:
    """Return the step that an image waits for; ``None`` if it does not wait."""
    if not isinstance(image, Image.Image) or image._im is not None:
        return None
    step: AnyImage | None = image.__dict__.get("_gpupipe")
    if type(image) not in _FILES:
        return step
    # Pillow makes another plan for decoding if it is asked for another frame or for a smaller image.
    tile: Any = image.tile  # type: ignore[attr-defined]
    return step if step is not None and image.__dict__["_gpupipe_tile"] is tile else _begun(image)


def waiting(step: ImageStep, like: Image.Image | None = None) -> Image.Image:
    """Return an image that waits for a step, with the ``info`` of another image."""
    image = Image.Image()
    image._mode, image._size = step.mode, (step.size[1], step.size[0])
    if like is not None:
        image.info = like.info.copy()
    become(image, step)
    return image


def become(image: Image.Image, step: ImageStep) -> None:
    """Let an image of a step's size and mode wait for it."""
    image._im, image.readonly = None, 0
    image.__dict__["_gpupipe"] = step
    if _BYTES_PER_PIXEL * image.width * image.height < len(step.source.data):
        _small[-1].append(weakref.ref(image))


# ---- opening


def _begun(image: Any) -> Encoded | None:
    """Return the first step of an image that was opened in this thread while the switch is on, and whose file an engine
    decodes to Pillow's pixels; ``None`` for any other one.

    The file is read here, since the script may close, change or remove it.
    """
    if not is_on() or image.decoderconfig or len(image.tile) != 1 or image.fp is None:
        return None
    decoder, box, offset, args = image.tile[0]
    if decoder != "jpeg" or offset or args != (image.mode, "") or image.mode not in MODES:
        return None
    if box != (0, 0, *image.size) or min(image.size) < 1:
        return None
    data, file = _content(image.fp)
    if data is None or jpeg(lambda n, at: bytes(data[at : at + n]), len(data), image.height, image.width, _HEAD):
        return None  # incomplete, or with a structure that decoders read differently
    step = Encoded(data, (image.size[1], image.size[0]), image.mode, file)
    looks.opened(step)
    image.__dict__.update(_gpupipe=step, _gpupipe_tile=image.tile)
    image.readonly = 0  # as after decoding
    # Nothing keeps the file open either.
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image._close_fp()
        image._exclusive_fp, image.fp = False, _Kept(data)
    return step


def _content(file: Any) -> tuple[Data | None, OpenFile | None]:
    """Return all bytes of an open file, whose position stays, and which file it is; ``None`` if that is impossible."""
    if type(file) is io.BytesIO:
        return file.getvalue(), None
    try:
        if isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO):
            return _whole(file.fileno(), file.name)
        at = file.tell()
        file.seek(0)
        try:
            data = file.read()
        finally:
            file.seek(at)
    except Exception:  # of a class of the script or of any library; Pillow will meet it again
        return None, None
    return data if isinstance(data, bytes) else None, None


def _whole(file: int, name: Any) -> tuple[Data | None, OpenFile | None]:
    before = os.fstat(file)
    size = before.st_size
    data: Data | None = trays.room(size)
    if data is None:
        data = os.pread(file, size, 0)
    elif os.preadv(file, [data], 0) != size:
        return None, None
    # Equal times before and after reading prove that the bytes belong to this version.
    if not isinstance(name, (str, bytes)) or os.fstat(file).st_ctime_ns != before.st_ctime_ns:
        return data, None
    return data, OpenFile(os.fsencode(os.path.abspath(name)), size, before.st_ino, before.st_ctime_ns)


class _Kept(RawFile):
    """A file of bytes that are not copied."""

    def __init__(self, data: Data):
        super().__init__(len(data))
        self._data = memoryview(data)

    def at(self, position: int, count: int) -> memoryview:
        return self._data[position : position + count]


def opened(source: Any) -> Image.Image | None:
    """Open an encoded image that is given as a path or as a tensor u8[L], as Pillow does; ``None`` if it cannot."""
    try:
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as file:
                data = file.read()
        else:
            data = source.numpy().tobytes()
        return Image.open(io.BytesIO(data), formats=("JPEG",))
    except Exception:  # the library will say what it thinks of it
        return None


# ---- looking


def _im(really: Callable[[Any], Any], image: Any) -> Any:
    if image._im is None:
        _make(image)
    return really(image)


def _make(image: Any, place: str | None = None) -> None:
    """Make the pixels of an image that waits. ``place``: see :func:`.looks.looked`."""
    step = step_of(image)
    if step is None:
        return
    with step.source.lock:
        if step_of(image) is not step:
            return  # another thread was faster, and may have written to the pixels
        looks.looked(step.source, place)
        made = step.image()
        if isinstance(step, Encoded):
            # Other images may wait for the decoded one.
            image._im = made.im.copy()
        else:
            image._im = made.im
            step.forget()  # the script may write to the pixels
        if type(image) in _FILES:
            image.tile, image._exclusive_fp = [], False
        del image.__dict__["_gpupipe"]


class _Access:
    """Access to single pixels of an image that waits, as ``load()`` returns it."""

    def __init__(self, image: Any):
        self._image = image

    def _pixels(self) -> Any:
        return self._image.im.pixel_access(self._image.readonly)

    def __getitem__(self, at: Any) -> Any:
        return self._pixels()[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self._pixels()[at] = value


def _load(really: Callable[[Any], Any], image: Any) -> Any:
    """``Image.load`` and ``ImageFile.load``."""
    step = step_of(image)
    if step is None:
        if image._im is None and really.__qualname__ == "ImageFile.load":  # which calls the other one
            looks.decoded(image)
        return really(image)
    # Libraries call it to read the file, and let go of the result.
    if is_on():
        return _Access(image)
    _make(image)
    return uncaught(Image.Image.load)(image)


def _changed(really: Callable[..., Any], image: Any, *args: Any, **kwargs: Any) -> Any:
    """Methods that do something else before an image was decoded than after it."""
    if image._im is None and "_gpupipe" in image.__dict__:  # something has used it
        _make(image)
    return really(image, *args, **kwargs)


_BYTES_PER_PIXEL = 4
_small: deque[list[weakref.ref[Image.Image]]] = deque([[], []])
"""Images whose files are larger than their pixels, of this batch and of the one before."""


def let_go() -> None:
    """Make those that the script keeps since the batch before: some keep thousands of crops."""
    _small.append([])
    for reference in _small.popleft():
        _make(reference(), "images that are kept")


# ---- functions that never look


class _Pixels:
    """Stands for the pixels of an image that waits while the ``copy`` module copies it."""

    def __init__(self, step: AnyImage):
        self.step = step

    def __deepcopy__(self, memo: Any) -> _Pixels:
        return self


def _get_state(really: Callable[..., Any], image: Any) -> Any:
    step = step_of(image)
    if step is None or not looks.is_copied():
        return really(image)
    return [image.info, image.mode, image.size, None, _Pixels(step)]


def _set_state(really: Callable[..., Any], image: Any, state: Any) -> None:
    info, mode, size, _, pixels = state[:5]
    if not isinstance(pixels, _Pixels):
        really(image, state)
        return
    Image.Image.__init__(image)
    image.info, image._mode, image._size = info, mode, size
    image.__dict__.update(_gpupipe=pixels.step, _gpupipe_tile=getattr(image, "tile", None))


def install() -> None:
    """Catch Pillow's methods."""
    catch(Image.Image.im.fget, _im, always=True)  # type: ignore[attr-defined]
    catch(Image.Image.load, _load, always=True)
    catch(ImageFile.ImageFile.load, _load, always=True)
    catch(Image.Image.putpalette, _changed, always=True)
    catch(JpegImagePlugin.JpegImageFile.draft, _changed, always=True)
    catch(Image.Image.__getstate__, _get_state)
    catch(Image.Image.__setstate__, _set_state, always=True)
