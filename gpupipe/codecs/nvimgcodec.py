"""JPEG decoding by nvImageCodec, the library that decodes for DALI, on the CPU.

It makes Pillow's pixels in less time, and skips what lies above, below and beside a window.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .coding import Coding

U8 = npt.NDArray[np.uint8]

_here = threading.local()
"""Decoder and parameters of each thread."""

SAFE = frozenset(map(Coding.parse, ("JPEG/RGB/jpeg/RGB", "JPEG/L/jpeg/L", "MPO/RGB/jpeg/RGB")))
"""Safe codings. Unusual JPEGs have other codings, including CMYK ones, which this library converts by another rule."""


def is_safe(coding: Coding) -> bool:
    """Return whether nvImageCodec decodes a coding to Pillow's pixels and without a crash."""
    return coding.whole in SAFE


def decode_window(encoded: bytes, size: tuple[int, int], window: tuple[int, int, int, int] | None = None) -> U8 | None:
    """Decode a safe coding to u8[H, W, 3], without turning it.

    Args:
        encoded: the file.
        size: height and width of the image.
        window: top, left, height and width of what to return; ``None`` means the whole image.

    Returns:
        ``None`` if Pillow has to tell what is wrong: the image has another size or is damaged, or the library is not
        installed.
    """
    library = _library()
    if library is None:
        return None
    try:
        stream = library.CodeStream(encoded)
        found = stream.height, stream.width
    except RuntimeError:  # not an image
        return None
    if found != size:
        return None
    if window is not None:
        top, left, height, width = window
        stream = stream.get_sub_code_stream(region=library.Region(top, left, top + height, left + width))
    if not hasattr(_here, "decoder"):
        _here.decoder = library.Decoder(
            device_id=library.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=1,
            backends=[library.Backend(library.CPU_ONLY)],
            # libjpeg's default, with which Pillow decodes too.
            options=":fancy_upsampling=1",
        )
        _here.params = library.DecodeParams(apply_exif_orientation=False)
    image = _here.decoder.decode(stream, params=_here.params)
    return None if image is None else np.asarray(image.cpu())


@cache
def _library() -> Any:
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # nothing about files that it cannot decode
    try:
        from nvidia import nvimgcodec
    except ImportError:
        return None
    return nvimgcodec
