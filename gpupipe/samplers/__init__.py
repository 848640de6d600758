"""Samplers whose orders are functions of seed and epoch: pass one as ``DataLoader(dataset, sampler=...)``.

The loader divides these orders into ranks, resumes them at any step and finds the samples of any step, as with
``shuffle=True``. They need a planned loader: a dataset of gpupipe, or one of torchvision that gpupipe knows.

A sample that an epoch has several times draws other numbers each time.
"""

from .buckets import AspectRatioBuckets, RandomShapes, TokenBuckets, aspect_ratios
from .sampler import Sampler
from .schemes import ClassBalanced, ClassBatches, RepeatedAugmentation, Weighted

__all__ = [
    "AspectRatioBuckets",
    "ClassBalanced",
    "ClassBatches",
    "RandomShapes",
    "RepeatedAugmentation",
    "Sampler",
    "TokenBuckets",
    "Weighted",
    "aspect_ratios",
]
