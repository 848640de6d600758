"""After a failed iteration: which samples were bad, and why. Each is decoded alone, once."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from nvidia.dali import fn

from ...codecs.decode import decode
from ...codecs.files import Undecodable
from ...errors import BadSample
from ...reading.sample import changed
from .graph import MEDIA, DecoderOptions, encoded, new_pipeline

__all__ = ["BadSampleFinder", "Suspect", "clean"]


class Suspect(NamedTuple):
    """A sample of a batch that failed."""

    index: int  # type: ignore[assignment]
    name: str
    media: npt.NDArray[np.uint8]
    """u8[L], what was fed: encoded bytes, or a path with zeros behind it."""
    size: npt.NDArray[np.int32] | None
    """Height and width as the plan took them to be."""


def clean(message: str) -> str:
    """DALI's own sentence out of a message of many lines."""
    found = re.findall(r"encountered:\s*(.*?)\s*(?:C\+\+ context|Current pipeline|$)", message, re.DOTALL)
    text = found[-1] if found else message
    return " ".join(re.sub(r"\[/opt/dali\S*\]:?|Error in thread \d+:", "", text).split()) or "DALI gave no reason"


class BadSampleFinder:
    """Finds the bad samples of a batch with one more decode of it. Built at the first failure, then kept.

    Pillow looks at all samples, in threads; DALI, one sample at a time, at those that Pillow refuses. If DALI takes
    them all, it looks at the whole batch: then it may be DALI alone that refuses one. If it refuses none, the batch has
    failed all the same, and what Pillow refuses is to blame: DALI takes another decoder for one image than for a batch.
    """

    def __init__(
        self, form: Literal["paths", "encoded"], decoder: DecoderOptions, device_id: int | None, num_threads: int
    ):
        self._form = form
        self._exif = decoder.exif
        self._threads = num_threads
        self.pipe = new_pipeline(batch_size=1, num_threads=1, device_id=device_id, prefetch=1)
        with self.pipe:
            image = fn.decoders.image(encoded(form), **decoder.arguments(device_id is not None))
            self.pipe.set_outputs(image)
        self.pipe.build()

    def find(self, samples: list[Suspect]) -> list[BadSample]:
        """The bad ones among ``samples``."""
        with ThreadPoolExecutor(self._threads) as pool:
            opinions = list(pool.map(self._pillow, samples))
        refused = [(s, o) for s, o in zip(samples, opinions, strict=True) if o is not None]
        found = [o for s, o in refused if o.kind == "changed" or not s.media.size or self._dali(s.media) is not None]
        if found:
            return found
        for s in samples:
            # Twice: what fails once is no sample's fault (a network file system, the limit on open files).
            if self._dali(s.media) is not None and (reason := self._dali(s.media)) is not None:
                found.append(BadSample(s.index, s.name, "unsupported", f"DALI cannot decode it, Pillow can: {reason}"))
        return found or [o for _, o in refused]

    def _pillow(self, sample: Suspect) -> BadSample | None:
        """Pillow's opinion, worded as the reference engine would."""
        data = sample.media.tobytes()
        try:
            picture = decode(os.fsdecode(data.rstrip(b"\0")) if self._form == "paths" else data, exif=self._exif)
        except Undecodable as e:
            return BadSample(sample.index, sample.name, e.kind, e.reason)
        size = picture.shape[:2]
        if sample.size is not None and size != tuple(sample.size):
            other = changed((int(sample.size[0]), int(sample.size[1])), size)
            return BadSample(sample.index, sample.name, other.kind, other.reason)
        return None

    def _dali(self, media: npt.NDArray[np.uint8]) -> str | None:
        """DALI's reason to refuse a sample, or ``None``."""
        try:
            self.pipe.run(**{MEDIA: [media]})
        except RuntimeError as e:
            return clean(str(e))
        return None
