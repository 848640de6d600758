"""After a failed iteration: which samples were bad, and why. Each is decoded alone, once."""

from __future__ import annotations

import os
import re
from typing import Literal

import numpy as np
import numpy.typing as npt
from nvidia.dali import Pipeline, fn

from ...errors import BadSample
from ..torch.decode import Undecodable, decode
from .graph import MEDIA, DecoderOptions, encoded

__all__ = ["Probe", "clean"]


def clean(message: str) -> str:
    """DALI's own sentence out of a message of many lines."""
    found = re.findall(r"encountered:\s*(.*?)\s*(?:C\+\+ context|Current pipeline|$)", message, re.DOTALL)
    text = found[-1] if found else message
    return " ".join(re.sub(r"\[/opt/dali\S*\]:?|Error in thread \d+:", "", text).split()) or "DALI gave no reason"


class Probe:
    """A pipeline of batch size one that decodes a sample as the hot path does. Built at the first failure, then
    kept."""

    def __init__(self, media: Literal["path", "bytes"], decoder: DecoderOptions, device_id: int | None):
        self._media = media
        self._pipe = Pipeline(batch_size=1, num_threads=1, device_id=device_id, prefetch_queue_depth=1)
        with self._pipe:
            image = fn.decoders.image(encoded(media), **decoder.arguments(device_id is not None))
            self._pipe.set_outputs(image)
        self._pipe.build()

    def examine(
        self, index: int, name: str, media: npt.NDArray[np.uint8], size: npt.NDArray[np.int32] | None
    ) -> BadSample | None:
        """What is wrong with one sample, or ``None``.

        Args:
            index, name: of the sample, for the answer.
            media: u8[L], what was fed: encoded bytes, or a path with zeros behind it.
            size: height and width as the plan took them to be.
        """
        if not media.size:
            return BadSample(index, name, "empty", "0 bytes")
        try:
            (out,) = self._pipe.run(**{MEDIA: [media]})
        except RuntimeError as e:
            return BadSample(index, name, *self._opinion(media, clean(str(e))))
        height, width = out.shape()[0][:2]
        if size is not None and (height, width) != tuple(size):
            return BadSample(
                index,
                name,
                "changed",
                f"it is {height}x{width} pixels, but {size[0]}x{size[1]} in the index; run gpupipe index --rebuild",
            )
        return None

    def _opinion(self, media: npt.NDArray[np.uint8], reason: str) -> tuple[str, str]:
        """(kind, reason). Pillow words it as the reference engine would; DALI often has no more than a number."""
        encoded = media.tobytes()
        try:
            decode(os.fsdecode(encoded.rstrip(b"\0")) if self._media == "path" else encoded)
        except Undecodable as e:
            return e.kind, e.reason
        return "unsupported", f"DALI cannot decode it, Pillow can: {reason}"
