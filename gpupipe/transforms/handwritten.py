"""A script's own transform function, expressed in transforms of gpupipe."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .fields import frozen
from .ops import Op
from .ops.op import F64, Mask
from .transform import Images, Ops, Transform


class Step(NamedTuple):
    """One transform of a path."""

    transform: Transform
    numbers: tuple[int, ...] = ()
    """Indices of the uniform numbers that the transform gets. Empty if its result does not depend on them."""

    def __repr__(self) -> str:
        # A transform that uses one of its numbers may get the same index for all of them.
        by = f" by {', '.join(f'u{k}' for k in dict.fromkeys(self.numbers))}" if self.numbers else ""
        return f"{self.transform!r}{by}"


class Path(NamedTuple):
    """Steps that apply if uniform numbers lie in given ranges."""

    where: tuple[tuple[int, float, float], ...]
    """(k, low, high): number k lies in [low, high)."""
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
    """The transforms equivalent to ``name``, a script's own function: one of several paths, selected by uniform
    numbers.

    Number k stands for the function's k-th draw. Given the same numbers, this transform and the function produce the
    same image; :mod:`gpupipe.interop.handwritten`, which creates this transform, proves it.

    Args:
        name: qualified name of the function, as in :class:`~gpupipe.transforms.Lambda`.
        paths: every vector of numbers takes exactly one of them.

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
            # An image takes one path only, so every row gets the numbers of its own path.
            for p, columns in by_path.items():
                mask |= takes[p]
                if columns:
                    numbers[takes[p]] = u[takes[p]][:, columns]
            found, after = transform.resolve(numbers, images)
            # What all paths share applies to every image and needs no mask.
            if len(by_path) < len(self.paths):
                found = tuple(op.where(mask, images.sizes) for op in found)
                after = replace(after, sizes=np.where(mask[:, None], after.sizes, images.sizes))
            ops += found
            images = after
        return tuple(ops), images

    def _places(self) -> list[tuple[Transform, dict[int, tuple[int, ...]]]]:
        """Merge the steps of all paths into one sequence: (transform, its uniform numbers by index of the path).

        An image takes only one path, so steps that several paths have in the same order occur once.
        """
        places: list[tuple[Transform, dict[int, tuple[int, ...]]]] = []
        for p, path in enumerate(self.paths):
            at = 0
            for step in path.steps:
                # Search behind the previous step of this path only, so that its order is kept.
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
    """Return bool[B]: which rows of u f64[B, draws] take a path."""
    mask = np.ones(len(u), np.bool_)
    for k, low, high in path.where:
        mask &= (low <= u[:, k]) & (u[:, k] < high)
    return mask
