"""What every op does to an image and to a batch, in Pillow, numpy and torch; for all engines.

The modules named here register the forms of their ops (:mod:`.registry`); :mod:`.apply` does the ops of a plan with
them.
"""

from . import blur_noise, color, dtype, enhance, erasing, geometry, hue, lambda_, structure, warp
from .registry import ARITHMETIC, BATCH_FORMS, FORMS, has_batch_form, is_arithmetic

__all__ = [
    "ARITHMETIC",
    "BATCH_FORMS",
    "FORMS",
    "blur_noise",
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
