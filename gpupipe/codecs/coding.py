"""How an image or a video is encoded. Standard library only, because a probing process loads it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TILES", "Coding", "VideoCoding"]

TILES = "tiles"
"""The note of a sliceable JPEG; see :mod:`gpupipe.codecs.jpeg`."""


class Coding(NamedTuple):
    """How an image is encoded, in Pillow's words. A decoder other than Pillow may treat each coding differently.

    ``str()`` gives the text that index files hold, and :meth:`parse` reads it.

    >>> str(Coding("JPEG", "RGB", "jpeg", "RGB", ("tiles",)))
    'JPEG/RGB/jpeg/RGB tiles'
    """

    format: str = ""
    """Such as ``JPEG`` or ``PNG``; empty if nothing is known, as for bad samples."""
    mode: str = ""
    """Pillow's mode, such as ``RGB`` or ``L``."""
    decoder: str = ""
    """Pillow's decoder, such as ``jpeg``; for TIFF files the compression."""
    raw: str = ""
    """The raw mode, such as ``RGB;16B``."""
    notes: tuple[str, ...] = ()
    """What is special about the file, such as ``planar``, ``animated``, ``tiles`` or ``junk``."""

    @classmethod
    def parse(cls, text: str) -> Coding:
        """The coding of a text.

        >>> Coding.parse("TIFF/L/tiff_lzw/L planar")
        Coding(format='TIFF', mode='L', decoder='tiff_lzw', raw='L', notes=('planar',))
        """
        name, *notes = text.split(" ")
        format, mode, decoder, raw = (*name.split("/", 3), "", "", "")[:4]
        return cls(format, mode, decoder, raw, tuple(notes))

    def __str__(self) -> str:
        return " ".join(("/".join(self[:4]), *self.notes)) if self.format else ""

    @property
    def is_jpeg(self) -> bool:
        """Whether libjpeg decodes it. MPO files are JPEG files with further images behind the first."""
        return self.format in ("JPEG", "MPO")

    @property
    def sliceable(self) -> bool:
        """Whether windows can be cut out of the file without decoding the rest."""
        return TILES in self.notes

    @property
    def whole(self) -> Coding:
        """What a decoder of the whole file needs to know: tiles change nothing for it."""
        return self._replace(notes=tuple(note for note in self.notes if note != TILES))


class VideoCoding(NamedTuple):
    """How a video is encoded, in FFmpeg's words.

    >>> VideoCoding.parse("h264/yuv420p/matroska,webm").container
    'matroska,webm'
    """

    codec: str = ""
    """Such as ``h264``; empty if nothing is known."""
    pixels: str = ""
    """The pixel format, such as ``yuv420p``."""
    container: str = ""
    """The container's format, such as ``mov,mp4,m4a,3gp,3g2,mj2``."""

    @classmethod
    def parse(cls, text: str) -> VideoCoding:
        """The coding of a text, as ``str()`` gives it."""
        return cls(*text.split("/", 2))

    def __str__(self) -> str:
        return "/".join(self) if self.codec else ""
