"""The table of promises itself: see :mod:`.tolerances`, which says what follows from it for a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from .difference import Spread

__all__ = ["DECODE", "EQUAL", "TABLE", "Bound", "Row", "Tolerance"]

DECODE = "decode"


@dataclass(frozen=True)
class Bound:
    """The most that may differ, in grey levels; ``over_1`` is a share of the values."""

    max: float
    mean: float
    over_1: float = 0.0

    def __str__(self) -> str:
        if self.max == 0:
            return "equal"
        share = f", {100 * self.over_1:.3g} % over 1" if self.over_1 else ""
        return f"max {self.max:.3g}, mean {self.mean:.3g}{share}"

    def broken(self, found: Spread, where: str) -> list[str]:
        """What ``found`` does not keep, in words."""
        slack = 1e-6  # of arithmetic in the measuring itself
        return [
            f"{where}: {what} is {100 * value if percent else value:.4g}{percent}, promised is at most "
            f"{100 * limit if percent else limit:.4g}{percent}"
            for what, value, limit, percent in (
                ("the largest difference", found.max, self.max, ""),
                ("the mean difference", found.mean, self.mean, ""),
                ("the share of values off by more than 1", found.over_1, self.over_1, " %"),
            )
            if value > limit + slack
        ]


EQUAL = Bound(0, 0)


@dataclass(frozen=True)
class Tolerance:
    """What is promised of one operation, and why it is not less."""

    interior: Bound
    border: Bound | None = None
    """Of pixels that a filter reached over the edge for; as ``interior`` where ``None``."""
    gain: float = 1.0
    """How much a difference in the input can grow: filters with negative weights overshoot."""
    mean_gain: float | None = None
    """How much the mean of many differences grows; as ``gain`` where ``None``."""
    reason: str = ""

    def __str__(self) -> str:
        return str(self.interior) + (f"; border {self.border}" if self.border else "")


@dataclass(frozen=True)
class Row:
    """One row of the table: the DALI engine against the reference."""

    what: str
    cpu: Tolerance | None
    cuda: Tolerance | None = None


_TRIANGLE_EDGE = Bound(60, 3, 0.5)
_EDGE = (
    "over the edge DALI repeats the edge pixel, which gives it 1/8 of the filter; Pillow and torch cut the filter off. "
    "So at most 32 levels, 60 in a corner; photographs: 16 at 224 pixels, 27 at 16"
)
_ROUNDS = "Pillow and torch round between their two passes, DALI does not"

_CLIPS = (
    "Pillow and torch clip to 0..255 between their two passes, which cuts overshoots at hard edges; DALI clips last"
)

_TIES = (
    "places are computed in float32 by DALI, in 16.16 fixed point or float64 by Pillow; where one falls between two "
    "pixels, DALI may take the other one"
)
_RIM = "a place on the rim of the image, within the last bit of a float32, may count as outside"
_PLACES = "places are computed in float32 on both sides, in another order"

_FACTORS = "for factors of up to 2: "
_SUMS = "sums that end close to a whole number are cut off apart"
_GRAYS = "torchvision cuts the fraction of gray off, DALI rounds"
_BATCH = "done by the same code on the batch"
_STEPS = "one level in its input can become many"

TABLE: dict[str, Row] = {
    DECODE: Row("decode, decode a window", Tolerance(EQUAL, reason="the same libjpeg-turbo, the same settings")),
    "crop": Row("crop, pad", Tolerance(EQUAL)),
    "flip": Row("flip", Tolerance(EQUAL)),
    "gray pil": Row(
        "grayscale of PIL images",
        Tolerance(Bound(1, 0.01), reason="sums of 0.299 R + 0.587 G + 0.114 B that end in .5 round apart"),
    ),
    "gray tensor": Row(
        "grayscale of tensors", Tolerance(Bound(1, 0.6), reason="torchvision cuts the fraction off, DALI rounds")
    ),
    "resize bilinear uint8 antialias": Row(
        "resize, bilinear, antialias", Tolerance(Bound(1, 0.2), _TRIANGLE_EDGE, reason=f"{_ROUNDS}; {_EDGE}")
    ),
    "resize bilinear uint8": Row("resize, bilinear, no antialias", Tolerance(Bound(1, 0.25), reason=_ROUNDS)),
    "resize bilinear float antialias": Row(
        "resize, bilinear, antialias, of floats", Tolerance(Bound(0.1, 0.001), _TRIANGLE_EDGE, reason=_EDGE)
    ),
    "resize bilinear float": Row("resize, bilinear, no antialias, of floats", Tolerance(Bound(0.1, 0.001))),
    "resize bicubic uint8 antialias": Row(
        "resize, bicubic, antialias",
        Tolerance(Bound(40, 0.3, 0.005), Bound(40, 1.5, 0.3), gain=1.6, reason=_CLIPS),
    ),
    "resize bicubic float antialias": Row(
        "resize, bicubic, antialias, of floats",
        Tolerance(Bound(0.5, 0.05), Bound(30, 1.5, 0.3), gain=1.6, reason="DALI reads the filter from a table"),
    ),
    "resize lanczos uint8 antialias": Row(
        "resize, lanczos", Tolerance(Bound(80, 0.3, 0.01), Bound(80, 2, 0.3), gain=2.2, reason=_CLIPS)
    ),
    "resize nearest": Row(
        "resize, nearest",
        Tolerance(
            Bound(255, 6, 0.25),
            reason="where a place falls exactly between two rows or columns, DALI may take the other one",
        ),
    ),
    "warp nearest": Row("rotate, affine, nearest", Tolerance(Bound(255, 0.02, 0.0005), reason=_TIES)),
    "warp bilinear pil uint8": Row(
        "rotate, affine, bilinear, of PIL images", Tolerance(Bound(255, 0.02, 0.0003), reason=_RIM)
    ),
    "warp bilinear tensor uint8": Row(
        "rotate, affine, bilinear, of tensors", Tolerance(Bound(1, 0.01), reason="sums that end in .5 round apart")
    ),
    "warp bilinear tensor float": Row(
        "rotate, affine, bilinear, of floats", Tolerance(Bound(0.2, 0.002), reason=_PLACES)
    ),
    "perspective nearest": Row("perspective, nearest", Tolerance(Bound(255, 0.05, 0.0015), reason=_TIES)),
    "perspective bilinear pil uint8": Row(
        "perspective, bilinear, of PIL images", Tolerance(Bound(255, 0.02, 0.0005), reason=_RIM)
    ),
    "perspective bilinear tensor uint8": Row(
        "perspective, bilinear, of tensors", Tolerance(Bound(1, 0.01), reason="sums that end in .5 round apart")
    ),
    "perspective bilinear tensor float": Row(
        "perspective, bilinear, of floats", Tolerance(Bound(0.2, 0.002), reason=_PLACES)
    ),
    "blur uint8": Row("blur", Tolerance(Bound(1, 0.001), reason="sums that end in .5 round apart")),
    "blur float": Row("blur of floats", Tolerance(Bound(0.001, 0.0005), reason="sums in another order")),
    "elastic, noise, erase": Row(
        "elastic fields, noise, erase", Tolerance(EQUAL, reason="done by the same code on the batch")
    ),
    "brightness": Row("brightness", Tolerance(Bound(1, 0.01), gain=2, mean_gain=1.5, reason=f"{_FACTORS}{_SUMS}")),
    "contrast pil": Row(
        "contrast of PIL images", Tolerance(Bound(1, 0.01), gain=3, mean_gain=1.5, reason=f"{_FACTORS}{_SUMS}")
    ),
    "contrast tensor": Row(
        "contrast of tensors", Tolerance(Bound(1, 0.3), gain=3, mean_gain=1.5, reason=f"{_FACTORS}{_GRAYS}")
    ),
    "saturation pil": Row(
        "saturation of PIL images", Tolerance(Bound(1, 0.01), gain=3, mean_gain=1.5, reason=f"{_FACTORS}{_SUMS}")
    ),
    "saturation tensor": Row(
        "saturation of tensors", Tolerance(Bound(1, 0.5), gain=3, mean_gain=1.5, reason=f"{_FACTORS}{_GRAYS}")
    ),
    "hue": Row(
        "hue", Tolerance(EQUAL, gain=4, mean_gain=2, reason=f"{_BATCH}; hues of pale colours turn with one level")
    ),
    "sharpness": Row("sharpness", Tolerance(Bound(1, 0.001), gain=3, mean_gain=2, reason=f"{_FACTORS}{_SUMS}")),
    "posterize": Row("posterize", Tolerance(EQUAL, gain=255, mean_gain=2, reason=_STEPS)),
    "solarize": Row("solarize", Tolerance(EQUAL, gain=255, mean_gain=2, reason=_STEPS)),
    "solarizeadd": Row("timm's SolarizeAdd", Tolerance(EQUAL, gain=255, mean_gain=2, reason=_STEPS)),
    "boxblur": Row("timm's GaussianBlur", Tolerance(EQUAL, reason=_BATCH)),
    "invert": Row("invert", Tolerance(EQUAL)),
    "autocontrast": Row("autocontrast", Tolerance(Bound(1, 0.1), gain=255, mean_gain=3, reason=f"{_SUMS}; {_STEPS}")),
    "equalize": Row(
        "equalize",
        Tolerance(
            Bound(1, 0.5),
            gain=255,
            mean_gain=3,
            reason=f"Pillow counts in whole steps, DALI in fractions of them; {_STEPS}",
        ),
    ),
    "jpeg": Row("JPEG", Tolerance(EQUAL, gain=255, mean_gain=2, reason=f"the same libjpeg-turbo; {_STEPS}")),
    "arithmetic float32": Row(
        "scale, normalize",
        Tolerance(
            Bound(2.6e-4, 2.6e-4),
            reason="one millionth of the range of values: the same operations in another order",
        ),
    ),
    "arithmetic float16": Row(
        "scale, normalize, in float16", Tolerance(Bound(0.4, 0.1), reason="DALI computes in float32 and rounds once")
    ),
    "arithmetic bfloat16": Row(
        "scale, normalize, in bfloat16",
        Tolerance(
            Bound(3, 0.8, 0.2),
            reason="DALI computes in float32 and rounds once; a step of bfloat16 is up to a level wide",
        ),
    ),
    "mix": Row(
        "weighted sums of AugMix",
        Tolerance(Bound(1, 0.5), reason="sums in another order around whole numbers, where the fraction is cut off"),
    ),
}
