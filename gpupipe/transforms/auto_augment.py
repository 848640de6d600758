"""Automatic augmentation: policies that choose operations and magnitudes for each image.

The plan holds the choices, so every engine applies the same ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ..errors import ConfigError
from . import fields
from .auto_augment_ops import GEOMETRIC, Draw, layer
from .auto_augment_tables import AUGMIX, AUGMIX_PART, AUTO, POLICIES, RAND, WIDE, Space
from .fields import Color, Converted, Interpolation, OptionalFill, TorchvisionEnum, frozen
from .numbers import below, everywhere, uniform_weights
from .ops import Mix, Op
from .ops.op import F64
from .transform import Images, Ops, Transform
from .warp import check_mode

__all__ = ["AugMix", "AutoAugment", "RandAugment", "TrivialAugmentWide"]

# Levels of severity: torchvision's _PARAMETER_MAX.
_AUGMIX_BINS = 10

Count: TypeAlias = Converted[int, int]
PolicyName: TypeAlias = Literal["imagenet", "cifar10", "svhn"]
Policy: TypeAlias = Converted[TorchvisionEnum | PolicyName, str]


def _policy(value: Any, what: str) -> str:
    """Convert torchvision's policy enum, or the name of a policy, to the name."""
    policy = getattr(value, "value", value)
    if policy not in POLICIES:
        raise ConfigError(f"{what} must be one of {', '.join(POLICIES)}, not {value!r}")
    return str(policy)


@frozen
class _Policy(Transform):
    """Base class of policies: applies one operation to each image, with any interpolation and fill."""

    def _check(self, images: Images) -> None:
        if images.dtype != "uint8":
            raise self.refuse(f"the image is {images.dtype} at this point and must be uint8; put it before ToTensor")

    def _layer(
        self, space: Space, bins: int, draw: Draw, images: Images, interpolation: str, fill: Color | None
    ) -> Ops:
        # Only operations that move pixels interpolate.
        if any(name in space for name in GEOMETRIC):
            check_mode(self, interpolation, images)
        return layer(space, bins, draw, images, interpolation, fill)


@frozen
class RandAugment(_Policy):
    """Apply ``num_ops`` operations in a row, each drawn from fourteen, all with the same ``magnitude`` out of
    ``num_magnitude_bins`` (Cubuk et al., *RandAugment*, 2020).

    Takes and returns a PIL image or a tensor u8 ``[1 or 3, H, W]``, of the same size.

    Args:
        num_ops: operations per image.
        magnitude: strength, from 0 to below ``num_magnitude_bins``.
        num_magnitude_bins: number of strengths.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        fill: value of pixels outside the image: a number, or one per channel. ``None``: black.

    >>> RandAugment(magnitude=5)
    RandAugment(num_ops=2, magnitude=5, num_magnitude_bins=31, interpolation='nearest', fill=None)
    """

    num_ops: Count = Converted(fields.whole(0), default=2)
    magnitude: int = 9
    num_magnitude_bins: Count = Converted(fields.whole(2), default=31)
    interpolation: Interpolation = Converted(fields.interpolation, default="nearest")
    fill: OptionalFill = Converted(fields.optional_fill, default=None)

    def __post_init__(self) -> None:
        fields.whole(0, self.num_magnitude_bins - 1)(self.magnitude, "RandAugment: magnitude")

    @property
    def draws(self) -> int:
        return 2 * self.num_ops

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        self._check(images)
        which = np.full(len(u), self.magnitude, np.int64)
        ops: list[Op] = []
        for k in range(self.num_ops):
            draw = Draw(below(u[:, 2 * k], len(RAND)), which, u[:, 2 * k + 1] < 0.5)
            ops += self._layer(RAND, self.num_magnitude_bins, draw, images, self.interpolation, self.fill)
        return tuple(ops), images


@frozen
class TrivialAugmentWide(_Policy):
    """Apply one operation, drawn from fourteen, with a magnitude drawn from ``num_magnitude_bins`` (Müller and Hutter,
    *TrivialAugment*, 2021).

    Takes and returns a PIL image or a tensor u8 ``[1 or 3, H, W]``, of the same size.

    Args:
        num_magnitude_bins: number of strengths.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        fill: value of pixels outside the image: a number, or one per channel. ``None``: black.

    >>> TrivialAugmentWide(interpolation="bilinear").num_magnitude_bins
    31
    """

    num_magnitude_bins: Count = Converted(fields.whole(2), default=31)
    interpolation: Interpolation = Converted(fields.interpolation, default="nearest")
    fill: OptionalFill = Converted(fields.optional_fill, default=None)

    @property
    def draws(self) -> int:
        return 3

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        self._check(images)
        draw = Draw(below(u[:, 0], len(WIDE)), below(u[:, 1], self.num_magnitude_bins), u[:, 2] < 0.5)
        return self._layer(WIDE, self.num_magnitude_bins, draw, images, self.interpolation, self.fill), images


@frozen
class AutoAugment(_Policy):
    """Apply one of 25 pairs of operations found by search (Cubuk et al., *AutoAugment*, 2019). Each operation has its
    own probability and magnitude.

    Args:
        policy: the dataset that was searched on: ``"imagenet"``, ``"cifar10"``, ``"svhn"``, or torchvision's enum.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        fill: value of pixels outside the image: a number, or one per channel. ``None``: black.

    >>> AutoAugment("cifar10").policy
    'cifar10'
    """

    policy: Policy = Converted(_policy, default="imagenet")
    interpolation: Interpolation = Converted(fields.interpolation, default="nearest")
    fill: OptionalFill = Converted(fields.optional_fill, default=None)

    @property
    def draws(self) -> int:
        return 5

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        self._check(images)
        pairs = POLICIES[self.policy]
        pair = below(u[:, 0], len(pairs))
        ops: list[Op] = []
        for k in (0, 1):
            steps = [p[k] for p in pairs]
            # The graph needs no op for an operation that never occurs in this step.
            space = {name: how for name, how in AUTO.items() if any(n == name and p > 0 for n, p, _ in steps)}
            names = list(space)
            # A step of probability 0 has no place in the space, hence -1. None stands for no magnitude; its 0 is not
            # read.
            chosen = np.array([names.index(n) if p > 0 else -1 for n, p, _ in steps])[pair]
            choice = np.where(u[:, 1 + 2 * k] < np.array([p for _, p, _ in steps])[pair], chosen, -1)
            which = np.array([m or 0 for *_, m in steps])[pair]
            draw = Draw(choice, which, u[:, 2 + 2 * k] < 0.5)
            ops += self._layer(space, 10, draw, images, self.interpolation, self.fill)
        return tuple(ops), images


@frozen
class AugMix(_Policy):
    """Blend the image with a weighted sum of ``mixture_width`` chains of operations on it (Hendrycks et al., *AugMix*,
    2020).

    A chain has ``chain_depth`` operations, or 1 to 3 if that is not positive. The weights of the chains and their share
    are uniform. As in torchvision, PIL images get the operations of tensors.

    Takes and returns a PIL image or a tensor u8 ``[1 or 3, H, W]``, of the same size.

    Args:
        severity: largest strength, 1 to 10.
        mixture_width: number of chains.
        chain_depth: operations of a chain; -1 draws 1 to 3.
        alpha: must be 1, torchvision's default: the weights are uniform.
        all_ops: with brightness, contrast, color and sharpness, which some test sets of corruptions also change.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        fill: value of pixels outside the image: a number, or one per channel. ``None``: black.

    >>> AugMix(severity=2).chain_depth
    -1
    """

    severity: Count = Converted(fields.whole(1, _AUGMIX_BINS), default=3)
    mixture_width: Count = Converted(fields.whole(1), default=3)
    chain_depth: Count = Converted(fields.whole(-(10**9)), default=-1)
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Interpolation = Converted(fields.interpolation, default="bilinear")
    fill: OptionalFill = Converted(fields.optional_fill, default=None)

    def __post_init__(self) -> None:
        if self.alpha != 1:
            raise ConfigError(
                f"AugMix: alpha must be 1, not {self.alpha!r}; torchvision's datasets take its AugMix as it is"
            )

    @property
    def _depth(self) -> int:
        return self.chain_depth if self.chain_depth > 0 else 3

    @property
    def draws(self) -> int:
        return 2 + self.mixture_width * (2 + 3 * self._depth)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        self._check(images)
        space, n = (AUGMIX if self.all_ops else AUGMIX_PART), self.mixture_width
        # A Dirichlet of two is a Beta and its complement: share[:, 0] belongs to the image, share[:, 1] to the chains.
        # torchvision multiplies in float32.
        share = uniform_weights(u[:, :2]).astype(np.float32)
        weights = uniform_weights(u[:, 2 : 2 + n]).astype(np.float32) * share[:, 1:]
        depth = 1 + below(u[:, 2 + n : 2 + 2 * n], 3)
        if self.chain_depth > 0:
            depth[:] = self.chain_depth
        # Each step of each chain needs an operation, a magnitude and a sign.
        steps = u[:, 2 + 2 * n :].reshape(len(u), n, self._depth, 3)
        inside = replace(images, kind="tensor")  # torchvision converts the image to a tensor before it mixes
        # The first branch is the image itself.
        branches: list[tuple[Op, ...]] = [()]
        for i in range(n):
            chain: list[Op] = []
            for k in range(self._depth):
                operation, which, sign = steps[:, i, k].T
                # All images share one sequence of ops, so a shorter chain takes no operation in its last steps.
                choice = np.where(k < depth[:, i], below(operation, len(space)), -1)
                draw = Draw(choice, below(which, self.severity), sign < 0.5)
                chain += self._layer(space, _AUGMIX_BINS, draw, inside, self.interpolation, self.fill)
            branches.append(tuple(chain))
        weights = np.concatenate([share[:, :1], weights], axis=1)
        mix = Mix(everywhere(len(u)), weights, branches=tuple(branches), kind=images.kind, always=True)
        return (mix,), images
