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

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

LIMIT = 5.0
"""Standard errors that two means may be apart. By chance that is one test in two million."""
SLACK = 0.02
"""Of a number's standard deviation over all images: by how much rounding may shift its mean."""
EXTREMES = ("share of the brightest value", "share of the darkest value")
"""Their means may be apart by half a pixel in every image: where a few pixels of one image are all that there are, the
standard error says nothing."""


def numbers_of(samples: Array) -> dict[str, F64]:
    """f64[N] each, of samples [N, ...]; of images what crops, flips, colors, blurs and erasing change."""
    if not is_image(samples) or samples.ndim < 4:
        rows = samples.astype(np.float64).reshape(len(samples), -1)
        if rows.shape[1] == 1:
            return {"value": rows[:, 0]}
        return {"mean": rows.mean(1), "deviation": rows.std(1), "largest": rows.max(1), "smallest": rows.min(1)}
    x = _planes(samples.astype(np.float32))
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
    ordered = np.sort(gray.reshape(n, -1), axis=1)
    found |= {f"{q} % of gray": ordered[:, round(q / 100 * (ordered.shape[1] - 1))] for q in (2, 25, 50, 75, 98)}
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
        # Independent of what a normalization did to each channel.
        color = 1 - _correlation(flat[:, 0], flat[:, 2])
        found |= {"color": color, "share of gray": color < 1e-4}
    return {name: values.astype(np.float64) for name, values in found.items()}


def _halves(x: F32, axis: int) -> F32:
    """f32[N, C]: how much brighter the first half of an axis is than the second."""
    half = x.shape[axis] // 2
    first, second = (x.take(range(*part), axis) for part in ((0, half), (x.shape[axis] - half, x.shape[axis])))
    return np.asarray(first.mean((2, 3)) - second.mean((2, 3)))


def _correlation(a: F32, b: F32) -> F32:
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    return np.asarray((a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1) + 1e-12))


def _planes(x: F32) -> F32:
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
    numbers, mine = numbers_of(theirs.values), numbers_of(ours.values)
    a, b = (np.stack([side[name] for name in numbers]) for side in (numbers, mine))
    slack = SLACK * np.concatenate([a, b], axis=1).std(axis=1) + 1e-9
    for i, name in enumerate(numbers):
        if name in EXTREMES:
            slack[i] += 0.5 / (ours.values.shape[-2] * ours.values.shape[-1])
    if named:
        assert theirs.names is not None and ours.names is not None
        known, codes = np.unique(np.concatenate([theirs.names, ours.names]), return_inverse=True)
        pictures = np.split(codes, [len(theirs.names)])
        mean = _difference(*(_Groups(x, of, len(known)) for x, of in zip((a, b), pictures, strict=True)))
        far = [np.abs(_Groups(x, of, len(known)).centered) for x, of in zip((a, b), pictures, strict=True)]
    else:
        mean = _difference(*map(_one_group, (_batch_means(a, theirs.batches), _batch_means(b, ours.batches))))
        far = [np.abs(x - x.mean(axis=1, keepdims=True)) for x in (a, b)]
        far = [_batch_means(x, side.batches) for x, side in zip(far, (theirs, ours), strict=True)]
    problems = []
    for what, (left, right, difference, error) in {"mean": mean, "spread": _difference(*map(_one_group, far))}.items():
        for i, name in enumerate(numbers):
            if what == "spread" and name.startswith("share"):
                continue  # it follows from the mean, or a few images make all of it
            if abs(difference[i]) > slack[i] + LIMIT * error[i]:
                many = "far more than" if error[i] < 1e-9 else format(abs(difference[i]) / error[i], ".1f")
                problems.append(
                    f"the {what} of '{name}' is {right[i]:.4g}, torch {left[i]:.4g}: {many} standard errors"
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


class _Groups:
    """``values`` f64[K, N], K numbers of N images, by the group of each image, i64[N] below ``count``.

    Attributes:
        values: as given.
        sizes: i64[G], how many images a group has.
        means: f64[K, G].
        centered: f64[K, N], how far each is from the mean of its group.
    """

    def __init__(self, values: F64, groups: Array, count: int):
        self._member = np.eye(count)[groups]
        self.values = values
        self.sizes = self._member.sum(axis=0)
        self.means = values @ self._member / np.maximum(self.sizes, 1)
        self.centered = values - self.means[:, groups]

    @property
    def errors(self) -> F64:
        """f64[K, G]: variances of the means, as far as a group has two images."""
        squares = self.centered**2 @ self._member
        return np.asarray(squares / np.maximum(self.sizes - 1, 1) / np.maximum(self.sizes, 1))


def _one_group(values: F64) -> _Groups:
    return _Groups(values, np.zeros(values.shape[1], np.intp), 1)


def _batch_means(values: F64, batches: Array) -> F64:
    """f64[K, batches]"""
    known, codes = np.unique(batches, return_inverse=True)
    return _Groups(values, codes, len(known)).means


def _difference(a: _Groups, b: _Groups) -> tuple[F64, F64, F64, F64]:
    """(mean of a, of b, difference of the means group by group, its standard error), each f64[K], over the groups of
    which both have two images."""
    both = (a.sizes > 1) & (b.sizes > 1)
    count = max(int(both.sum()), 1)
    difference = (b.means - a.means)[:, both].sum(axis=1) / count
    error = np.sqrt((a.errors + b.errors)[:, both].sum(axis=1)) / count
    return a.values.mean(axis=1), b.values.mean(axis=1), difference, error
