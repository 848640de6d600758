"""Opens encoded images with Pillow and classifies errors uniformly.

Shared by the probing processes and the engines. It imports only Pillow, the standard library and modules of this
folder, because a probing process loads it without the rest of the package.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import IO, Any, NamedTuple, TypeVar

from PIL import Image, UnidentifiedImageError

from .coding import Coding
from .files import ReadAt, Undecodable
from .known_formats import HEAD, known_as
from .truncation import cut_short, tail

T = TypeVar("T")

_ORIENTATION = 0x0112
_EXIF = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"}
"""Entries of Pillow's ``info`` that may contain an orientation."""
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Header(NamedTuple):
    """Properties from the header of one image. ``height`` and ``width`` are in pixels as stored, before any
    orientation."""

    height: int
    width: int
    orientation: int
    """EXIF orientation, 1 to 8."""
    coding: Coding


class _Quiet:
    """Knows the threads inside: ``warnings.catch_warnings`` in two threads at once may leave the filters changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: list[int] = []
        self._filters: Any = None
        """Restores the filters, if they are changed."""

    def __enter__(self) -> None:
        with self._lock:
            if self._filters is None:
                filters = warnings.catch_warnings()
                filters.__enter__()
                self._filters = filters  # before the change, so that a fork at any point can undo it
                warnings.simplefilter("ignore")
            self._inside.append(threading.get_ident())

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._inside.remove(threading.get_ident())
            self._restore()

    def _restore(self) -> None:
        if self._filters is not None and not self._inside:
            self._filters.__exit__(None, None, None)
            self._filters = None

    def forked(self) -> None:
        """Forget the other threads in a child, which does not have them."""
        self._lock = threading.Lock()
        self._inside = [thread for thread in self._inside if thread == threading.get_ident()]
        self._restore()


_quiet = _Quiet()
os.register_at_fork(after_in_child=_quiet.forked)


def quiet() -> _Quiet:
    """Return a context that suppresses warnings, such as Pillow's (large images, odd EXIF), which would clutter a
    training log."""
    return _quiet


def open_image(source: IO[bytes], max_pixels: int | None = None) -> Image.Image:
    """Read the header, and reject images that must not be decoded before any memory is allocated for them.

    Call it inside :func:`guarded`.

    Raises:
        Undecodable: ``bomb`` if there are more than ``max_pixels`` pixels (at most what Pillow itself allows: twice
            ``PIL.Image.MAX_IMAGE_PIXELS``), ``zero-sized`` if there are none, ``truncated`` if a file that is too short
            for Pillow to recognize declares a larger size.
    """
    try:
        image = Image.open(source)
    except (MemoryError, Image.DecompressionBombError):
        raise
    except Exception as e:
        # An error of the system, which has a number, says nothing about the content.
        cut = None if isinstance(e, OSError) and e.errno is not None else cut_short(source)
        if cut is not None:
            raise Undecodable("truncated", cut) from None
        if isinstance(e, UnidentifiedImageError):
            _refuse_known(source)
        raise
    width, height = image.size
    limit = Image.MAX_IMAGE_PIXELS
    # Sizes are signed 32-bit integers in the index and in its protocol.
    if width < 1 or height < 1 or max(width, height) >= 1 << 31:
        _refuse_known(source)  # Pillow opens HDF5 by its first bytes, and knows no more
        raise Undecodable("zero-sized", f"the image is {height}x{width} pixels (height x width)")
    if max_pixels is not None and width * height > max_pixels:
        raise Undecodable("bomb", f"{height}x{width} pixels (height x width) are more than max_pixels={max_pixels}")
    # Pillow checks the size on opening, but not in every plugin: some learn it later.
    if limit is not None and width * height > 2 * limit:
        raise Undecodable("bomb", f"{width * height} pixels are more than twice PIL.Image.MAX_IMAGE_PIXELS ({limit})")
    return image


def _refuse_known(source: IO[bytes]) -> None:
    """Raise :class:`Undecodable` if something else than Pillow reads the file."""
    source.seek(0)
    known = known_as(source.read(HEAD))
    if known is not None:
        raise Undecodable("undecodable", f"Pillow does not read it: {known}") from None


def header(image: Image.Image, read: ReadAt, size: int) -> Header:
    """Return the properties of an image that was opened and not decoded. Call it inside :func:`guarded`.

    An image with an unexpected end is decoded here to be sure.

    Args:
        read: ``read(n, offset)`` returns bytes of the file, fewer at its end.
        size: size of the file in bytes.

    Raises:
        Undecodable: ``truncated``.
    """
    end = tail(image, read, size)
    # Only decoding shows whether such a file is complete. Its errors are classified by guarded().
    if end == "unchecked":
        image.convert("RGB")
    elif end == "suspect":
        try:
            image.convert("RGB")
        except (MemoryError, Image.DecompressionBombError):
            raise
        except Exception as e:
            # Reading failed, which is no reason to call the file truncated.
            if isinstance(e, OSError) and e.errno is not None:
                raise
            raise Undecodable("truncated", str(e) or type(e).__name__) from None
    return _header(image, end)


def _header(image: Image.Image, end: str) -> Header:
    width, height = image.size
    kind = image.format or ""
    orientation = orientation_of(image)
    decoder, raw = "", ""
    tiles: Any = getattr(image, "tile", ())
    if tiles:
        # Pillow's plan for decoding: decoder, box, offset and arguments. The first argument is the raw mode.
        decoder, _, _, args = tiles[0]
        first = args[0] if isinstance(args, tuple) and args else args
        raw = first if isinstance(first, str) else ""
    notes: list[str] = []
    if kind == "TIFF":
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        decoder = str(image.info.get("compression", decoder))
        # Pillow always turns a TIFF upright itself, and reports the size after turning.
        # Tag 284 is the planar configuration: 1 means that the channels of a pixel are neighbors.
        notes = ["turned"] * (tags.get(_ORIENTATION, 1) != 1) + ["planar"] * (tags.get(284, 1) != 1)
    elif kind == "WEBP":
        notes = ["animated"] * (getattr(image, "n_frames", 1) > 1) + ["exif"] * ("exif" in image.info)
    coding = Coding(kind, image.mode, decoder, raw, (*notes, *([end] if end else [])))
    return Header(height, width, orientation, coding)


def orientation_of(image: Image.Image) -> int:
    """Return the EXIF orientation from the header, 1 to 8. It is 1 for a TIFF, which Pillow has turned already."""
    # PNG's getexif() would decode the whole image to look for a chunk after the pixels.
    if image.format == "TIFF" or not _EXIF & image.info.keys():
        return 1
    try:
        value: Any = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged EXIF block does not mean a damaged image
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def upright(image: Image.Image) -> Image.Image:
    """Return the image turned by :func:`orientation_of`."""
    turn = _TURNS.get(orientation_of(image))
    return image if turn is None else image.transpose(turn)


def guarded(work: Callable[[], T], *, reading: bool = False) -> T:
    """Call ``work()`` and convert Pillow's various errors to :class:`Undecodable`.

    The caller handles warnings; see :func:`quiet`. With ``reading``, errors of the operating system pass through, so
    that :func:`~gpupipe.codecs.files.attempts` sees them.
    """
    try:
        return work()
    except (MemoryError, Undecodable):
        raise  # the former is a problem of the machine, not of the sample
    except Image.DecompressionBombError as e:
        raise Undecodable("bomb", str(e)) from None
    except UnidentifiedImageError:
        raise Undecodable("undecodable", "not an image in any format that Pillow reads") from None
    except Exception as e:  # OSError, SyntaxError, ValueError, struct.error, ...: they depend on the plugin
        if reading and isinstance(e, OSError) and e.errno is not None:
            raise
        # Pillow has no class for a truncated file; only the text tells.
        kind = "truncated" if isinstance(e, EOFError) or "truncated" in str(e).lower() else "undecodable"
        reason = str(e) if isinstance(e, OSError) else f"{type(e).__name__}: {e}"
        raise Undecodable(kind, reason) from None
