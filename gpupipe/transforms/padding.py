"""Padding of a batch whose images come out in different sizes."""

from __future__ import annotations

import numpy as np

from .compose import Compose
from .dtype import ConvertImageDtype, Normalize, PILToTensor, ToDtype, ToImage, ToTensor
from .fields import frozen
from .numbers import filled, i32
from .ops import Crop
from .ops.op import F64
from .transform import Images, Ops, Transform

_BY_PIXEL = (ConvertImageDtype, Normalize, PILToTensor, ToDtype, ToImage, ToTensor)


@frozen
class PadToLargest(Transform):
    """Pad images on the right and at the bottom to the largest height and width of their batch.

    Engines make batches of one size. For a collate function that takes samples of different sizes, the loader cuts the
    padding off again.
    """

    sizes_vary = True

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        start = i32(np.zeros(len(images.sizes)))
        # An empty batch has no largest edge.
        height, width = (filled(len(start), int(edge.max(initial=1))) for edge in (images.height, images.width))
        pad = Crop(start, start, i32(height), i32(width), padded=True, content=i32(images.sizes))
        return (pad,), images.sized(height, width)


def padded(pipeline: Compose) -> Compose:
    """Return the pipeline with :class:`PadToLargest` before the steps that only change single values or boxes."""
    count = len(pipeline)
    while count and (pipeline[count - 1].on_objects or isinstance(pipeline[count - 1], _BY_PIXEL)):
        count -= 1
    steps = pipeline.transforms
    return Compose([*steps[:count], PadToLargest(), *steps[count:]], memory_format=pipeline.memory_format)
