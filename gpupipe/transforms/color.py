"""Random changes of brightness, contrast, saturation and hue; conversion to grayscale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from ..errors import ConfigError
from . import fields, ops
from .fields import Converted, Probability, frozen
from .numbers import between, everywhere
from .ops import Op
from .ops.op import F64, Mask
from .orders import places, random_order
from .transform import Images, Ops, Transform

__all__ = ["ColorJitter", "Grayscale", "RandomGrayscale"]

Bounds = tuple[float, float] | None

Strength: TypeAlias = Converted[float | Sequence[float] | None, Bounds]


def _range(center: float, lowest: float, highest: float) -> Callable[[Any, str], Bounds]:
    """Return a converter from an argument to (low, high), or to ``None`` if the argument changes nothing."""

    def convert(value: Any, what: str) -> Bounds:
        if value is None:
            return None
        if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
            if not value >= 0:
                raise ConfigError(f"{what} must not be negative if it is a single number, but is {value!r}")
            low, high = float(center - value), float(center + value)
            # A factor must not be negative, but hues turn in both directions.
            if center:
                low = max(low, 0.0)
        elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
            low, high = float(value[0]), float(value[1])
        else:
            raise ConfigError(f"{what} must be one number or a pair (low, high), not {value!r}")
        if not lowest <= low <= high <= highest:
            raise ConfigError(
                f"{what}={value!r} means the range {low:g} to {high:g}, which must be increasing and within "
                f"{lowest:g} to {highest:g}"
            )
        return None if low == high == center else (low, high)

    return convert


_HUE = 3
"""Index of the hue step."""

factor_range, hue_range = _range(1.0, 0.0, np.inf), _range(0.0, -0.5, 0.5)


@frozen
class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue, in a random order for each image.

    All orders are equally likely. Brightness, contrast and saturation occur before hue and again after it, as often as
    needed to contain every order (see :mod:`gpupipe.transforms.orders`); each image takes every step exactly once.

    Args:
        brightness, contrast, saturation: the factor is uniform in ``[max(0, 1 - value), 1 + value]``, or in the given
            (low, high). A factor of 1 changes nothing.
        hue: hues turn by a fraction of the circle that is uniform in ``[-value, value]`` with value at most 0.5, or in
            the given (low, high).

    ``None`` or 0 omits a step. Images of one channel skip saturation and hue. Float tensors must be in [0, 1].

    Raises:
        ConfigError: a number is negative, or a range is not increasing or exceeds the limits.

    >>> ColorJitter(brightness=0.25, hue=0.125)
    ColorJitter(brightness=(0.75, 1.25), contrast=None, saturation=None, hue=(-0.125, 0.125))
    """

    DRAWS: ClassVar[int] = 8  # even if a step is omitted, so that the others keep their numbers

    brightness: Strength = Converted(factor_range, default=None)
    contrast: Strength = Converted(factor_range, default=None)
    saturation: Strength = Converted(factor_range, default=None)
    hue: Strength = Converted(hue_range, default=None)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        color = images.channels == 3
        ranges: list[tuple[Any, Bounds]] = [
            (ops.Brightness, self.brightness),
            (ops.Contrast, self.contrast),
            (ops.Saturation, self.saturation if color else None),
            (ops.Hue, self.hue if color else None),
        ]
        factors = {k: between(u[:, k], *found) for k, (_, found) in enumerate(ranges) if found is not None}
        rank = u[:, 4:]  # an image takes its steps in the order of these numbers

        def step(k: int, mask: Mask, *, always: bool = False) -> Op:
            return ranges[k][0](mask, factors[k], kind=images.kind, always=always)  # type: ignore[no-any-return]

        others = [k for k in factors if k != _HUE]

        def shuffled(within: Mask) -> list[Op]:
            """Return the steps other than hue, each masked by ``within`` bool[B, 4]."""
            order = random_order(rank[:, others])
            return [step(others[i], mask) for i, mask in places(order, [within[:, k] for k in others])]

        everyone = everywhere(len(u))
        if len(factors) == 1:  # nothing to shuffle
            return tuple(step(k, everyone, always=True) for k in factors), images
        if _HUE not in factors:
            return tuple(shuffled(np.ones_like(rank, np.bool_))), images
        # Hue costs as much as all other steps, and DALI does not support it, so it occurs once and the others around
        # it.
        before = rank <= rank[:, _HUE:]
        return (*shuffled(before), step(_HUE, everyone, always=True), *shuffled(~before)), images


@frozen
class Grayscale(Transform):
    """Convert to grayscale with the luma of ITU-R BT.601, ``0.299 R + 0.587 G + 0.114 B``, in one or three equal
    channels.

    Takes a PIL image or a tensor ``[3, H, W]``, and returns one with ``num_output_channels`` channels.

    Args:
        num_output_channels: 1, or 3 equal channels.

    >>> Grayscale(3)
    Grayscale(num_output_channels=3)
    """

    num_output_channels: Literal[1, 3] = 1

    def __post_init__(self) -> None:
        if self.num_output_channels not in (1, 3):
            raise ConfigError(f"Grayscale: num_output_channels must be 1 or 3, not {self.num_output_channels!r}")

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        channels = self.num_output_channels
        gray = ops.Gray(everywhere(len(u)), channels=channels, always=True, kind=images.kind)
        return (gray,), replace(images, channels=channels)


@frozen
class RandomGrayscale(Transform):
    """Convert to grayscale with probability ``p``, keeping the number of channels.

    Args:
        p: probability of the change, 0 to 1.

    >>> RandomGrayscale(0.2)
    RandomGrayscale(p=0.2)
    """

    DRAWS: ClassVar[int] = 1

    p: Probability = Converted(fields.probability, default=0.1)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if images.channels == 1:
            return (), images
        return (ops.Gray(u[:, 0] < self.p, kind=images.kind),), images
