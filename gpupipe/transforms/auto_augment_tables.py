"""Operations and magnitudes of the policies, from torchvision's ``autoaugment``.

RandAugment: Cubuk et al., *RandAugment*, 2020. TrivialAugmentWide: Müller and Hutter, *TrivialAugment*, 2021.
AutoAugment: Cubuk et al., *AutoAugment*, 2019. AugMix: Hendrycks et al., *AugMix*, 2020.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .ops.op import F64, I64

Magnitudes = Callable[[int, I64], F64] | None
"""Function from (bins, sizes i64[B, 2]) to magnitudes f64[B, bins], or f64[1, bins] if sizes do not matter. ``None``
for operations without a magnitude."""
Space = dict[str, tuple[Magnitudes, bool]]
"""Operations by name, in the order of their indices: (magnitudes, whether half of them are negative)."""
SubPolicy = tuple[tuple[str, float, int | None], tuple[str, float, int | None]]
"""Two steps, each (operation, probability, index of one of ten magnitudes)."""


def _steps(end: npt.ArrayLike, bins: int, start: float = 0.0) -> F64:
    """Compute ``torch.linspace`` in float32, from both ends to the middle, for several values of ``end``.

    torch rounds the last bit differently on processors with fused multiplication. That moves an image by one pixel less
    if a translation is a whole number.
    """
    first, last = np.float32(start), np.atleast_1d(np.asarray(end, np.float32))[:, None]
    i = np.arange(bins, dtype=np.float32)
    step = (last - first) / np.float32(bins - 1)
    values = np.where(i < bins // 2, first + step * i, last - step * (bins - 1 - i))
    return np.asarray(values.astype(np.float64))


def _up_to(end: float) -> Magnitudes:
    return lambda bins, sizes: _steps(end, bins)


def _of_width(share: float) -> Magnitudes:
    return lambda bins, sizes: _steps(share * sizes[:, 1], bins)


def _of_height(share: float) -> Magnitudes:
    return lambda bins, sizes: _steps(share * sizes[:, 0], bins)


def _third(axis: int) -> Magnitudes:
    return lambda bins, sizes: _steps(sizes[:, axis] / 3.0, bins)


def _bits(most: int, less: int) -> Magnitudes:
    """Return bits from ``most`` down to ``most - less``, computed in float32 and rounded, halves to even."""

    def bits(bins: int, sizes: I64) -> F64:
        width = np.float32((bins - 1) / less)
        steps = np.rint(np.float32(most) - np.arange(bins, dtype=np.float32) / width)
        return np.asarray(steps.astype(np.float64)[None])

    return bits


def _down(bins: int, sizes: I64) -> F64:
    return _steps(0.0, bins, start=1.0)


def _space(shear: float, x: Magnitudes, y: Magnitudes, rotate: float, enhance: float, bits: Magnitudes) -> Space:
    return {
        "ShearX": (_up_to(shear), True),
        "ShearY": (_up_to(shear), True),
        "TranslateX": (x, True),
        "TranslateY": (y, True),
        "Rotate": (_up_to(rotate), True),
        "Brightness": (_up_to(enhance), True),
        "Color": (_up_to(enhance), True),
        "Contrast": (_up_to(enhance), True),
        "Sharpness": (_up_to(enhance), True),
        "Posterize": (bits, False),
        "Solarize": (_down, False),
        "AutoContrast": (None, False),
        "Equalize": (None, False),
    }


# The paper translates images of 331 pixels by up to 150. torchvision scales that with the image.
_FAR = 150.0 / 331.0
_COMMON = _space(0.3, _of_width(_FAR), _of_height(_FAR), 30.0, 0.9, _bits(8, 4))

AUTO: Space = {**_COMMON, "Invert": (None, False)}
RAND: Space = {"Identity": (None, False), **_COMMON}
WIDE: Space = {"Identity": (None, False), **_space(0.99, _up_to(32.0), _up_to(32.0), 135.0, 0.99, _bits(8, 6))}

_MIX = _space(0.3, _third(1), _third(0), 30.0, 0.9, _bits(4, 4))
_ENHANCE = ("Brightness", "Color", "Contrast", "Sharpness")
# torchvision lists the enhancements last, and the order gives the indices.
AUGMIX_PART: Space = {name: how for name, how in _MIX.items() if name not in _ENHANCE}
AUGMIX: Space = {**AUGMIX_PART, **{name: _MIX[name] for name in _ENHANCE}}

# fmt: off
POLICIES: dict[str, tuple[SubPolicy, ...]] = {
    "imagenet": (
        (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, None)),
        (("Equalize", 0.8, None), ("Equalize", 0.6, None)),
        (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
        (("Equalize", 0.4, None), ("Solarize", 0.2, 4)),
        (("Equalize", 0.4, None), ("Rotate", 0.8, 8)),
        (("Solarize", 0.6, 3), ("Equalize", 0.6, None)),
        (("Posterize", 0.8, 5), ("Equalize", 1.0, None)),
        (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
        (("Equalize", 0.6, None), ("Posterize", 0.4, 6)),
        (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
        (("Rotate", 0.4, 9), ("Equalize", 0.6, None)),
        (("Equalize", 0.0, None), ("Equalize", 0.8, None)),
        (("Invert", 0.6, None), ("Equalize", 1.0, None)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
        (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
        (("Sharpness", 0.4, 7), ("Invert", 0.6, None)),
        (("ShearX", 0.6, 5), ("Equalize", 1.0, None)),
        (("Color", 0.4, 0), ("Equalize", 0.6, None)),
        (("Equalize", 0.4, None), ("Solarize", 0.2, 4)),
        (("Solarize", 0.6, 5), ("AutoContrast", 0.6, None)),
        (("Invert", 0.6, None), ("Equalize", 1.0, None)),
        (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
        (("Equalize", 0.8, None), ("Equalize", 0.6, None)),
    ),
    "cifar10": (
        (("Invert", 0.1, None), ("Contrast", 0.2, 6)),
        (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
        (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
        (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.5, None), ("Equalize", 0.9, None)),
        (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
        (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
        (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
        (("Equalize", 0.6, None), ("Equalize", 0.5, None)),
        (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
        (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
        (("Equalize", 0.3, None), ("AutoContrast", 0.4, None)),
        (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
        (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
        (("Solarize", 0.5, 2), ("Invert", 0.0, None)),
        (("Equalize", 0.2, None), ("AutoContrast", 0.6, None)),
        (("Equalize", 0.2, None), ("Equalize", 0.6, None)),
        (("Color", 0.9, 9), ("Equalize", 0.6, None)),
        (("AutoContrast", 0.8, None), ("Solarize", 0.2, 8)),
        (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
        (("Solarize", 0.4, 5), ("AutoContrast", 0.9, None)),
        (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
        (("AutoContrast", 0.9, None), ("Solarize", 0.8, 3)),
        (("Equalize", 0.8, None), ("Invert", 0.1, None)),
        (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, None)),
    ),
    "svhn": (
        (("ShearX", 0.9, 4), ("Invert", 0.2, None)),
        (("ShearY", 0.9, 8), ("Invert", 0.7, None)),
        (("Equalize", 0.6, None), ("Solarize", 0.6, 6)),
        (("Invert", 0.9, None), ("Equalize", 0.6, None)),
        (("Equalize", 0.6, None), ("Rotate", 0.9, 3)),
        (("ShearX", 0.9, 4), ("AutoContrast", 0.8, None)),
        (("ShearY", 0.9, 8), ("Invert", 0.4, None)),
        (("ShearY", 0.9, 5), ("Solarize", 0.2, 6)),
        (("Invert", 0.9, None), ("AutoContrast", 0.8, None)),
        (("Equalize", 0.6, None), ("Rotate", 0.9, 3)),
        (("ShearX", 0.9, 4), ("Solarize", 0.3, 3)),
        (("ShearY", 0.8, 8), ("Invert", 0.7, None)),
        (("Equalize", 0.9, None), ("TranslateY", 0.6, 6)),
        (("Invert", 0.9, None), ("Equalize", 0.6, None)),
        (("Contrast", 0.3, 3), ("Rotate", 0.8, 4)),
        (("Invert", 0.8, None), ("TranslateY", 0.0, 2)),
        (("ShearY", 0.7, 6), ("Solarize", 0.4, 8)),
        (("Invert", 0.6, None), ("Rotate", 0.8, 4)),
        (("ShearY", 0.3, 7), ("TranslateX", 0.9, 3)),
        (("ShearX", 0.1, 6), ("Invert", 0.6, None)),
        (("Solarize", 0.7, 2), ("TranslateY", 0.6, 7)),
        (("ShearY", 0.8, 4), ("Invert", 0.8, None)),
        (("ShearX", 0.7, 9), ("TranslateY", 0.8, 3)),
        (("ShearY", 0.8, 5), ("AutoContrast", 0.7, None)),
        (("ShearX", 0.7, 2), ("Invert", 0.1, None)),
    ),
}
# fmt: on
