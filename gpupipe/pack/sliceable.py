"""The sliceable form: see :mod:`gpupipe.codecs.jpeg`."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..codecs.files import Undecodable
from ..codecs.jpeg.markers import Unsliceable
from ..codecs.jpeg.rewrite import rewrite
from ..codecs.jpeg.tiles import cut
from ..codecs.pillow import guarded, open_image, quiet
from .base import Kept

__all__ = ["Sliceable"]


class Sliceable:
    """JPEG files that windows can be cut out of, each proven to have the pixels of the file that it was made of."""

    made = ""

    def __str__(self) -> str:
        return "sliceable"

    def __call__(self, files: Sequence[bytes]) -> list[bytes | Kept | Undecodable]:
        return _sliceable(files)


def _sliceable(files: Sequence[bytes]) -> list[bytes | Kept | Undecodable]:
    photos = [i for i, data in enumerate(files) if data.startswith(b"\xff\xd8")]
    made = dict(zip(photos, rewrite([files[i] for i in photos]), strict=True))
    with quiet():
        return [_judged(data, made.get(i)) for i, data in enumerate(files)]


def _judged(data: bytes, made: bytes | Unsliceable | None) -> bytes | Kept:
    if not data:
        return Kept("empty", "0 bytes")
    if isinstance(made, Unsliceable):
        return Kept(made.kind, made.reason)
    try:
        if made is None:
            image = guarded(lambda: open_image(io.BytesIO(data)))
            return Kept(image.format or "?", "only JPEGs can be cut")
        before = _pixels(data)
    except Undecodable as e:
        return Kept(e.kind, e.reason)
    try:
        after = _pixels(made)
    except Undecodable as e:
        return Kept("unproven", f"the rewritten file cannot be decoded: {e.reason}")
    if before.shape != after.shape or not np.array_equal(before, after):
        return Kept("unproven", "the rewritten file has other pixels: it is damaged, and decoders mend it in their way")
    if cut(lambda n, at: made[at : at + n], len(made), (0, 0, *before.shape[:2])) is None:
        return Kept("unproven", "the rewritten file cannot be cut")
    return made


def _pixels(data: bytes) -> npt.NDArray[np.uint8]:
    return guarded(lambda: np.asarray(open_image(io.BytesIO(data))))
