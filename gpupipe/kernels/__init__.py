"""Implementations of ops on images and batches in Pillow, numpy and torch, for all engines.

Importing this package registers the forms of all ops (:mod:`.registry`); :mod:`.apply` applies the ops of a plan.
"""

from . import blur, color, dtype, enhance, erasing, geometry, hue, lambda_, structure, warp
from .registry import ARITHMETIC, BATCH_FORMS, FORMS, has_batch_form, is_arithmetic

__all__ = [
    "ARITHMETIC",
    "BATCH_FORMS",
    "FORMS",
    "blur",
    "color",
    "dtype",
    "enhance",
    "erasing",
    "geometry",
    "has_batch_form",
    "hue",
    "is_arithmetic",
    "lambda_",
    "structure",
    "warp",
]
