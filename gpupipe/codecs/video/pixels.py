"""Convert decoded frames to RGB."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]

_own = threading.local()


def rgb(frame: Any) -> U8:
    """Convert a frame to u8[H, W, 3], equal to ``frame.to_ndarray(format="rgb24")``. The array keeps its memory alive.

    All frames of a thread use one swscale context without further threads. PyAV would make a context for every frame,
    with as many threads as there are cores.
    """
    made = _scaler().reformat(frame, format="rgb24", threads=1)
    plane = made.planes[0]
    pixels = np.ndarray((made.height, made.width, 3), np.uint8, plane, strides=(plane.line_size, 3, 1))
    pixels.flags.writeable = False
    return pixels


def _scaler() -> Any:
    scaler = getattr(_own, "scaler", None)
    if scaler is None:
        from av.video.reformatter import VideoReformatter

        scaler = _own.scaler = VideoReformatter()
    return scaler
