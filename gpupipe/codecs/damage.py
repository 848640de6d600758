"""Detects JPEG data that libjpeg repairs with a warning, which Pillow, DALI and torchvision do not pass on.

Uses ``simplejpeg``, whose TurboJPEG treats warnings as errors. It decodes to an eighth of the size in gray, which still
reads all compressed data.
"""

from __future__ import annotations

import importlib.util

from .files import Undecodable

_EIGHTH = 8


def installed() -> bool:
    """Return whether simplejpeg can be imported."""
    return importlib.util.find_spec("simplejpeg") is not None


def refuse_damaged(encoded: bytes) -> None:
    """Raise :class:`Undecodable` of kind ``damaged`` if libjpeg has to repair something in a JPEG file.

    This finds violations of the syntax: unexpected bytes or markers, codes that no table has, a scan that ends too
    early or more than some bytes too late. Damage that leaves the syntax valid, such as one changed byte after which
    the decoder synchronizes again, only changes pixels and cannot be found.
    """
    import simplejpeg

    try:
        simplejpeg.decode_jpeg(encoded, "gray", min_factor=_EIGHTH, min_height=1, min_width=1, strict=True)
    except ValueError as e:
        raise Undecodable("damaged", f"libjpeg repairs it: {e}") from None
