"""What a script's own function does to an image, in transforms of gpupipe."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .base import Images, Ops, Transform
from .fields import frozen
from .ops import Op
from .ops.base import F64, Mask

__all__ = ["HandWritten", "Path", "Step"]


class Step(NamedTuple):
    """One transform of a path."""

    transform: Transform
    numbers: tuple[int, ...] = ()
    """Which of the uniform numbers it gets; none if it is the same whatever it gets."""

    def __repr__(self) -> str:
        # A transform that looks at one of its numbers may get the same one for all.
        by = f" by {', '.join(f'u{k}' for k in dict.fromkeys(self.numbers))}" if self.numbers else ""
        return f"{self.transform!r}{by}"


class Path(NamedTuple):
    """What is done if uniform numbers are within ranges."""

    where: tuple[tuple[int, float, float], ...]
    """(k, low, high): number k is in [low, high)."""
    steps: tuple[Step, ...]

    def __repr__(self) -> str:
        ranges = [
            f"u{k} < {high!r}" if not low else f"u{k} >= {low!r}" if high == 1 else f"{low!r} <= u{k} < {high!r}"
            for k, low, high in self.where
        ]
        done = " then ".join(map(repr, self.steps)) or "nothing"
        return f"if {' and '.join(ranges)}: {done}" if ranges else done


@frozen
class HandWritten(Transform):
    """What ``name``, a script's own function, was found to do: one of several paths, by uniform numbers.

    Number k stands for what the function draws as its k-th: given the same numbers, both make the same of an image. It
    is made by :mod:`gpupipe.interop.handwritten`, which proves that.

    Args:
        name: of the function, as :class:`~gpupipe.transforms.Lambda` has it.
        paths: of which each vector of numbers takes exactly one.

    >>> from gpupipe.transforms import PILGaussianBlur
    >>> blur = Path(((0, 0.0, 0.1),), (Step(PILGaussianBlur((0.1, 2.0)), (1,)),))
    >>> HandWritten("MaybeBlur", (blur, Path(((0, 0.1, 1.0),), ())))
    HandWritten(MaybeBlur: if u0 < 0.1: PILGaussianBlur(radius=(0.1, 2.0)) by u1; if u0 >= 0.1: nothing)
    """

    name: str
    paths: tuple[Path, ...]

    @property
    def draws(self) -> int:
        used = [k for path in self.paths for k, _, _ in path.where]
        used += [k for path in self.paths for step in path.steps for k in step.numbers]
        return max(used, default=-1) + 1

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        takes = [_within(path, u) for path in self.paths]
        ops: list[Op] = []
        for transform, by_path in self._places():
            numbers = np.zeros((len(u), transform.draws))
            mask = np.zeros(len(u), np.bool_)
            for p, columns in by_path.items():
                mask |= takes[p]
                if columns:
                    numbers[takes[p]] = u[takes[p]][:, columns]
            found, after = transform.resolve(numbers, images)
            if len(by_path) < len(self.paths):
                found = tuple(op.where(mask, images.sizes) for op in found)
                after = replace(after, sizes=np.where(mask[:, None], after.sizes, images.sizes))
            ops += found
            images = after
        return tuple(ops), images

    def _places(self) -> list[tuple[Transform, dict[int, tuple[int, ...]]]]:
        """The steps of all paths in one sequence, and by the number of each path that has one its uniform numbers. An
        image takes one path only, so what several of them have in the same order stands there once."""
        places: list[tuple[Transform, dict[int, tuple[int, ...]]]] = []
        for p, path in enumerate(self.paths):
            at = 0
            for step in path.steps:
                same = (n for n in range(at, len(places)) if places[n][0] == step.transform)
                found = next(same, None)
                if found is None:
                    found = at
                    places.insert(at, (step.transform, {}))
                places[found][1][p] = step.numbers
                at = found + 1
        return places

    def __repr__(self) -> str:
        return f"HandWritten({self.name}: {'; '.join(map(repr, self.paths))})"


def _within(path: Path, u: F64) -> Mask:
    """bool[B]: which rows of u f64[B, draws] take a path."""
    mask = np.ones(len(u), np.bool_)
    for k, low, high in path.where:
        mask &= (low <= u[:, k]) & (u[:, k] < high)
    return mask
