"""Whether two samples of random images come from one distribution.

Of every image a few numbers are taken. If it is known which picture an image was, pictures are strata: what they differ
by among each other is left out, and a few hundred images tell a small change of what is drawn. If it is not known,
images of one batch may belong together, so batches are compared and not images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .compare import is_image

__all__ = ["Sample", "apart", "numbers_of"]

F64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

Sides = tuple[F64, F64, Array, Array]

LIMIT = 5.0
"""Standard errors that two means may be apart. By chance that is one test in two million."""
SLACK = 0.02
"""Of a number's standard deviation over all images: by how much rounding may shift its mean."""
EXTREMES = ("share of the brightest value", "share of the darkest value")
"""Their means may be apart by half a pixel in every image: where a few pixels of one image are all that there are, the
standard error says nothing."""


def numbers_of(samples: Array) -> dict[str, F64]:
    """f64[N] each, of samples [N, ...]; of images what crops, flips, colours, blurs and erasing change."""
    x = samples.astype(np.float64)
    if not is_image(samples) or x.ndim < 4:
        rows = x.reshape(len(x), -1)
        if rows.shape[1] == 1:
            return {"value": rows[:, 0]}
        return {"mean": rows.mean(1), "deviation": rows.std(1), "largest": rows.max(1), "smallest": rows.min(1)}
    x = _planes(x)
    n, channels, height, width = x.shape
    flat, gray = x.reshape(n, channels, -1), x.mean(1)
    low, high = flat.min(), flat.max()
    least = 1e-3 * float(flat.std()) + 1e-12  # so that an image without any detail has a logarithm too
    near = 0.01 * (high - low)
    across, down = np.diff(gray, axis=2), np.diff(gray, axis=1)
    rows, columns = height // 4 * 4, width // 4 * 4
    coarse = gray[:, :rows, :columns].reshape(n, rows // 4, 4, columns // 4, 4).mean((2, 4))
    fine = np.abs(across).mean((1, 2)) + least
    found = {f"mean of channel {c}": flat[:, c].mean(1) for c in range(channels)}
    found |= {f"contrast of channel {c}": np.log(flat[:, c].std(1) + least) for c in range(channels)}
    levels = np.quantile(gray.reshape(n, -1), (0.02, 0.25, 0.5, 0.75, 0.98), axis=1)
    found |= {f"{q} of gray": level for q, level in zip(("2 %", "25 %", "50 %", "75 %", "98 %"), levels, strict=True)}
    found |= {
        "detail across": np.log(fine),
        "detail down": np.log(np.abs(down).mean((1, 2)) + least),
        "shape": np.log(fine) - np.log(np.abs(down).mean((1, 2)) + least),
        "sharpness": np.log(np.abs(np.diff(across, axis=2)).mean((1, 2)) + least) - np.log(fine),
        "scale": np.log(np.abs(np.diff(coarse, axis=2)).mean((1, 2)) + least) - np.log(fine),
        "share of left brighter than right": np.sign(_halves(x, 3)[:, 0]),
        "share of top brighter than bottom": np.sign(_halves(x, 2)[:, min(1, channels - 1)]),
        "share of the brightest value": (flat >= high - near).mean((1, 2)),
        "share of the darkest value": (flat <= low + near).mean((1, 2)),
    }
    if channels == 3:
        # Independent of what a normalisation did to each channel.
        colour = 1 - _correlation(flat[:, 0], flat[:, 2])
        found |= {"colour": colour, "share of gray": (colour < 1e-4).astype(np.float64)}
    return found


def _halves(x: F64, axis: int) -> F64:
    """f64[N, C]: how much brighter the first half of an axis is than the second."""
    half = x.shape[axis] // 2
    first, second = (x.take(range(*part), axis) for part in ((0, half), (x.shape[axis] - half, x.shape[axis])))
    return np.asarray(first.mean((2, 3)) - second.mean((2, 3)))


def _correlation(a: F64, b: F64) -> F64:
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    return np.asarray((a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1) + 1e-12))


def _planes(x: F64) -> F64:
    """Clips as images: [N, C, T, H, W] and [N, T, C, H, W] as [N, C, T·H, W]."""
    if x.ndim == 5 and x.shape[2] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.swapaxes(1, 2)
    return x.reshape(len(x), x.shape[1], -1, x.shape[-1])


@dataclass(frozen=True)
class Sample:
    """What one side drew: ``values`` [N, ...], of which batch each is, and of which picture if that is known."""

    values: Array
    batches: Array
    names: Array | None


def apart(theirs: Sample, ours: Sample) -> list[str]:
    """What distinguishes two samples, in words; empty if they could be of one distribution."""
    named = theirs.names is not None and ours.names is not None
    if not named:
        theirs, ours = _without_repetitions(theirs), _without_repetitions(ours)
    problems = []
    mine = numbers_of(ours.values)
    for name, a in numbers_of(theirs.values).items():
        b = mine[name]
        slack = SLACK * float(np.concatenate([a, b]).std()) + 1e-9
        if name in EXTREMES:
            slack += 0.5 / (ours.values.shape[-2] * ours.values.shape[-1])
        tests: dict[str, Sides] = {}
        if named:
            assert theirs.names is not None and ours.names is not None
            tests["mean"] = a, b, theirs.names, ours.names
            left, right = np.abs(_centred(a, theirs.names)), np.abs(_centred(b, ours.names))
            tests["spread"] = left, right, np.zeros(len(a)), np.zeros(len(b))
        else:
            left, right = _batch_means(a, theirs.batches), _batch_means(b, ours.batches)
            tests["mean"] = left, right, np.zeros(len(left)), np.zeros(len(right))
            left = _batch_means(np.abs(a - a.mean()), theirs.batches)
            right = _batch_means(np.abs(b - b.mean()), ours.batches)
            tests["spread"] = left, right, np.zeros(len(left)), np.zeros(len(right))
        if name.startswith("share"):
            del tests["spread"]  # it follows from the mean, or a few images make all of it
        for what, (left, right, groups_a, groups_b) in tests.items():
            difference, error = _difference(left, right, groups_a, groups_b)
            if abs(difference) > slack + LIMIT * error:
                problems.append(
                    f"the {what} of '{name}' is {right.mean():.4g}, torch {left.mean():.4g}: "
                    f"{'far more than' if error < 1e-9 else format(abs(difference) / error, '.1f')} standard errors"
                )
    return problems


def _without_repetitions(sample: Sample) -> Sample:
    """A batch that came twice says nothing new the second time."""
    seen, kept = set(), np.zeros(len(sample.values), np.bool_)
    for batch in np.unique(sample.batches):
        here = sample.batches == batch
        mark = np.ascontiguousarray(sample.values[here]).tobytes()
        kept[here] = mark not in seen
        seen.add(mark)
    return Sample(sample.values[kept], sample.batches[kept], None)


def _batch_means(values: F64, batches: Array) -> F64:
    return np.array([values[batches == batch].mean() for batch in np.unique(batches)])


def _difference(a: F64, b: F64, groups_a: Array, groups_b: Array) -> tuple[float, float]:
    """(difference of the means, its standard error), group by group, over the groups that both have."""
    differences, variances = [], []
    for group in np.intersect1d(groups_a, groups_b):
        x, y = a[groups_a == group], b[groups_b == group]
        if min(len(x), len(y)) > 1:
            differences.append(y.mean() - x.mean())
            variances.append(x.var(ddof=1) / len(x) + y.var(ddof=1) / len(y))
    if not differences:
        return 0.0, 0.0
    return float(np.mean(differences)), float(np.sqrt(np.sum(variances)) / len(differences))


def _centred(values: F64, groups: Array) -> F64:
    centred = values.copy()
    for group in np.unique(groups):
        centred[groups == group] -= values[groups == group].mean()
    return centred
