"""Policies of timm's ``create_transform`` that torchvision lacks, with timm's own operations and levels.

Colors and choices are drawn as in timm's ``auto_augment``; the reference calls Pillow wherever timm does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ..errors import ConfigError
from .fields import Converted, frozen
from .numbers import below, everywhere, uniform_weights
from .ops import Mix, Op
from .ops.op import F64, I64
from .timm_steps import DRAWS, NAMES, Drawn, Levels, Step, operation
from .transform import Images, Ops, Transform

__all__ = ["Levels", "Step", "TimmAugMix", "TimmAutoAugment", "TimmRandAugment"]


def _steps(value: Sequence[Any], what: str) -> tuple[Step, ...]:
    name = what.partition(":")[0]
    found = tuple(Step(*step) for step in value)
    for step in found:
        if step.name not in NAMES:
            raise ConfigError(f"{name}: unknown operation {step.name!r}; choose from {', '.join(NAMES)}")
        if not 0 <= step.prob <= 1:
            raise ConfigError(f"{name}: {step}: prob must be between 0 and 1")
    return found


def _policy(value: Sequence[Sequence[Any]], what: str) -> tuple[tuple[Step, ...], ...]:
    policy = tuple(_steps(steps, what) for steps in value)
    if not policy:
        raise ConfigError(f"{what} is empty")
    return policy


def _weights(value: Sequence[float] | None, what: str) -> tuple[float, ...] | None:
    """Convert to weights with a sum of 1."""
    if value is None:
        return None
    weights = tuple(float(w) for w in value)
    if min(weights) < 0 or not sum(weights):
        raise ConfigError(f"{what} must be numbers of at least 0 with a sum above 0, not {value!r}")
    return tuple(w / sum(weights) for w in weights)


Steps: TypeAlias = Converted[Sequence[Any], tuple[Step, ...]]


@frozen
class _Timm(Transform):
    def _check_images(self, images: Images) -> None:
        if images.kind != "pil" or images.dtype != "uint8":
            raise self.refuse("it needs PIL images; put it before ToTensor")

    def _step(self, u: F64, options: Sequence[Step], choice: I64, images: Images, levels: Levels) -> list[Op]:
        """Return the ops of one step per image.

        Args:
            u: f64[B, 6].
            choice: i64[B], index into ``options``, or -1 for none.
        """
        # -1 takes the last row, and `happens` excludes the image.
        prob, magnitude = (np.array([getattr(s, k) for s in options])[choice] for k in ("prob", "magnitude"))
        if math.isinf(levels.magnitude_std):
            magnitude = magnitude * u[:, 1]
        elif levels.magnitude_std > 0:  # Box and Muller, 1958
            # 1 - u, because u may be 0 but never 1.
            normal = np.sqrt(-2.0 * np.log1p(-u[:, 1])) * np.cos(2.0 * np.pi * u[:, 2])
            magnitude = magnitude + levels.magnitude_std * normal
        level = np.clip(magnitude, 0.0, levels.magnitude_max) / 10.0
        # timm omits a step if its number exceeds prob.
        happens = (choice >= 0) & (u[:, 0] <= prob)
        sign = np.where(u[:, 3] > 0.5, -1.0, 1.0)
        modes = below(u[:, 4], len(levels.interpolation))
        ops: list[Op] = []
        # Steps of one name differ only in their numbers, so they share an op.
        for name in dict.fromkeys(s.name for s in options):
            mine = np.isin(choice, [k for k, s in enumerate(options) if s.name == name])
            ops += operation(name, Drawn(happens & mine, level, sign, u[:, 5]), modes, images, levels)
        return ops


@frozen
class TimmRandAugment(_Timm):
    """Apply ``num_layers`` steps in a row, drawn from ``steps``. With ``weights``, no step is drawn twice.

    Takes and returns a PIL image.

    Args:
        steps: the steps to draw from.
        num_layers: steps per image.
        weights: weight of each step; ``None``: equal, and steps may repeat.
        levels: settings that all steps share.

    >>> TimmRandAugment([("Invert", 0.5, 9), ("Rotate", 0.5, 9)], 1, weights=[1, 3]).weights
    (0.25, 0.75)
    """

    steps: Steps = Converted(_steps)
    num_layers: int = 2
    weights: Converted[Sequence[float] | None, tuple[float, ...] | None] = Converted(_weights, default=None)
    levels: Levels = Levels()

    def __post_init__(self) -> None:
        weights = self.weights
        if weights is not None and (len(weights) != len(self.steps) or sum(w > 0 for w in weights) < self.num_layers):
            raise ConfigError(
                f"TimmRandAugment: weights must be one number per step, none negative, at least {self.num_layers} "
                f"of them above zero, not {weights!r}"
            )

    @property
    def draws(self) -> int:
        return self.num_layers * (1 + DRAWS)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        self._check_images(images)
        left = None if self.weights is None else np.tile(np.array(self.weights), (len(u), 1))
        ops: list[Op] = []
        for k in range(self.num_layers):
            v = u[:, k * (1 + DRAWS) : (k + 1) * (1 + DRAWS)]
            if left is None:
                choice = below(v[:, 0], len(self.steps))
            else:
                # Draw without replacement like numpy's choice: a drawn step loses its weight.
                cumulative = np.cumsum(left, axis=1)
                at = v[:, :1] * cumulative[:, -1:]
                choice = np.minimum((cumulative <= at).sum(axis=1), len(self.steps) - 1)
                left[np.arange(len(u)), choice] = 0.0
            ops += self._step(v[:, 1:], self.steps, choice, images, self.levels)
        return tuple(ops), images


@frozen
class TimmAutoAugment(_Timm):
    """Apply one of several sequences of steps.

    Takes and returns a PIL image.

    Args:
        policy: sequences of steps, of which each image draws one.
        levels: settings that all steps share.

    >>> len(TimmAutoAugment([[("Invert", 0.5, 9)], [("Rotate", 0.5, 9)]]).policy)
    2
    """

    policy: Converted[Sequence[Sequence[Any]], tuple[tuple[Step, ...], ...]] = Converted(_policy)
    levels: Levels = Levels()

    @property
    def draws(self) -> int:
        return 1 + DRAWS * max(map(len, self.policy))

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        self._check_images(images)
        chosen = below(u[:, 0], len(self.policy))
        ops: list[Op] = []
        for k in range(max(map(len, self.policy))):
            options = [steps[k] for steps in self.policy if len(steps) > k]
            # Sequences may differ in length: number the sequences that have a step k.
            number = np.cumsum([len(steps) > k for steps in self.policy]) - 1
            has = np.array([len(steps) > k for steps in self.policy])
            choice = np.where(has, number, -1)[chosen]
            v = u[:, 1 + k * DRAWS : 1 + (k + 1) * DRAWS]
            ops += self._step(v, options, choice, images, self.levels)
        return tuple(ops), images


@frozen
class TimmAugMix(_Timm):
    """Blend the image with a weighted sum of chains of steps (Hendrycks et al., 2020).

    timm blends with Pillow, and this with a sum in float32: the results differ by at most one gray level.

    Takes and returns a PIL image.

    Args:
        steps: the steps to draw from.
        alpha: must be 1, timm's default: the weights are uniform.
        width: number of chains.
        depth: steps of a chain; -1 draws 1 to 3.
        levels: settings that all steps share.

    >>> TimmAugMix([("Invert", 0.5, 9)], width=4).depth
    -1
    """

    steps: Steps = Converted(_steps)
    alpha: float = 1.0
    width: int = 3
    depth: int = -1
    """Steps of a chain; 1 to 3 if not positive."""
    levels: Levels = Levels()

    def __post_init__(self) -> None:
        if self.alpha != 1:
            raise ConfigError(
                f"TimmAugMix: alpha must be 1, not {self.alpha!r}; torchvision's datasets take timm's as it is"
            )

    @property
    def _depth(self) -> int:
        return self.depth if self.depth > 0 else 3

    @property
    def draws(self) -> int:
        return 1 + self.width * (2 + self._depth * (1 + DRAWS))

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        self._check_images(images)
        n, w = len(u), self.width
        weights = uniform_weights(u[:, 1 : 1 + w]).astype(np.float32)
        share = u[:, 0].astype(np.float32)
        lengths = 1 + below(u[:, 1 + w : 1 + 2 * w], 3) if self.depth <= 0 else np.full((n, w), self.depth)
        steps = u[:, 1 + 2 * w :].reshape(n, w, self._depth, 1 + DRAWS)
        chains = []
        for i in range(w):
            ops: list[Op] = []
            for k in range(self._depth):
                v = steps[:, i, k]
                choice = np.where(k < lengths[:, i], below(v[:, 0], len(self.steps)), -1)
                ops += self._step(v[:, 1:], self.steps, choice, images, self.levels)
            chains.append(tuple(ops))
        every = everywhere(n)
        # As in timm, the sum of the chains becomes an image before it is blended with the original.
        inner = Mix(every, weights, branches=tuple(chains), kind=images.kind, always=True)
        both = np.stack([np.float32(1) - share, share], axis=1)
        outer = Mix(every, both, branches=((), (inner,)), kind=images.kind, always=True)
        return (outer,), images
