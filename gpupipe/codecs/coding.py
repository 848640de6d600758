"""Encoding of images and videos. Standard library only, because a probing process loads it."""

from __future__ import annotations

from typing import NamedTuple


class Coding(NamedTuple):
    """Encoding of an image, in Pillow's terms. A decoder other than Pillow may treat each coding differently.

    ``str()`` gives the text that index files hold, and :meth:`parse` reads it.

    >>> str(Coding("JPEG", "RGB", "jpeg", "RGB", ("junk",)))
    'JPEG/RGB/jpeg/RGB junk'
    """

    format: str = ""
    """Pillow's format, such as ``JPEG`` or ``PNG``; empty if nothing is known, as for bad samples."""
    mode: str = ""
    """Pillow's mode, such as ``RGB`` or ``L``."""
    decoder: str = ""
    """Pillow's decoder, such as ``jpeg``; for TIFF files the compression."""
    raw: str = ""
    """The raw mode, such as ``RGB;16B``."""
    notes: tuple[str, ...] = ()
    """Peculiarities of the file, such as ``planar``, ``animated`` or ``junk``."""

    @classmethod
    def parse(cls, text: str) -> Coding:
        """Parse the text of a coding.

        >>> Coding.parse("TIFF/L/tiff_lzw/L planar")
        Coding(format='TIFF', mode='L', decoder='tiff_lzw', raw='L', notes=('planar',))
        """
        name, *notes = text.split(" ")
        # The padding lets shorter texts be read as well, and the empty one of a bad sample.
        format, mode, decoder, raw = (*name.split("/", 3), "", "", "")[:4]
        return cls(format, mode, decoder, raw, tuple(notes))

    def __str__(self) -> str:
        return " ".join(("/".join(self[:4]), *self.notes)) if self.format else ""

    @property
    def is_jpeg(self) -> bool:
        """Return whether libjpeg decodes it. MPO files are JPEG files with further images after the first."""
        return self.format in ("JPEG", "MPO")


class VideoCoding(NamedTuple):
    """Encoding of a video, in FFmpeg's terms.

    >>> VideoCoding.parse("h264/yuv420p/matroska,webm").container
    'matroska,webm'
    """

    codec: str = ""
    """FFmpeg's codec name, such as ``h264``; empty if nothing is known."""
    pixels: str = ""
    """The pixel format, such as ``yuv420p``."""
    container: str = ""
    """The container's format, such as ``mov,mp4,m4a,3gp,3g2,mj2``."""

    @classmethod
    def parse(cls, text: str) -> VideoCoding:
        """Parse the text of a coding, as ``str()`` gives it."""
        return cls(*text.split("/", 2))

    def __str__(self) -> str:
        return "/".join(self) if self.codec else ""
