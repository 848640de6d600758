"""Samplers whose batches have a shape, or a number of tokens, in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..planning.buckets import Buckets, Line, in_turn, laid_out
from ..planning.classes import Members
from ..planning.mixtures import Proportions
from ..planning.order import Order, Sequential, Shuffle
from ..planning.schedules import SamplerPlan
from ..types import check_integer
from .sampler import Sampler

if TYPE_CHECKING:
    from ..datasets.dataset import Dataset

I64 = npt.NDArray[np.int64]
Shape = tuple[int, int]
Tokens = Callable[[I64, I64], Any]
Remainder = Literal["neighbor", "short"]

_CHUNK = 1 << 20
"""Samples whose sizes are looked at together, so that temporary arrays stay small."""
_LOOKED_AT = 1 << 18
"""Samples from which the limits between buckets are computed."""


def aspect_ratios(area: int, *, divisor: int = 64, max_ratio: float = 2.0) -> list[Shape]:
    """Return shapes (height, width) of about the same area, from tall to wide, for :class:`AspectRatioBuckets`.

    For every height that is a multiple of ``divisor``, the width is the largest one with at most ``area`` pixels, and
    for every width the height, as in the aspect-ratio bucketing of NovelAI (2022).

    Args:
        area: most pixels of a shape.
        divisor: heights and widths are multiples of this.
        max_ratio: longest edge divided by the shortest, at most.

    Raises :class:`ConfigError` if there is no such shape.

    >>> aspect_ratios(512 * 512, divisor=128)
    [(640, 384), (512, 512), (384, 640)]
    """
    area, divisor = check_integer(area, "area"), check_integer(divisor, "divisor")
    if not max_ratio >= 1:
        raise ConfigError(f"max_ratio must be at least 1, not {max_ratio!r}")
    edges = range(divisor, area // divisor + 1, divisor)
    found = {(edge, area // edge // divisor * divisor) for edge in edges}
    found |= {(width, height) for height, width in found}
    # Of several widths for one height, the widest has the area.
    fits = [shape for shape in found if min(shape) and max(shape) <= max_ratio * min(shape)]
    widest = {height: max(width for h, width in fits if h == height) for height, _ in fits}
    tallest = {width: max(height for height, w in fits if w == width) for _, width in fits}
    kept = [(h, w) for h, w in fits if widest[h] == w and tallest[w] == h]
    if not kept:
        raise ConfigError(f"no shape has at most {area} pixels, multiples of {divisor} and a ratio up to {max_ratio}")
    return sorted(kept, key=lambda shape: shape[1] / shape[0])


class _InBuckets(Sampler):
    """Base class of samplers with buckets."""

    def __init__(
        self,
        *,
        shuffle: bool,
        remainder: Remainder,
        max_tokens: int | None,
        multiple_of: int,
        sizes: npt.ArrayLike | None,
    ):
        if remainder not in get_args(Remainder):
            raise ConfigError(f'remainder must be "neighbor" or "short", not {remainder!r}')
        self.shuffle, self.remainder = bool(shuffle), remainder
        self.max_tokens = None if max_tokens is None else check_integer(max_tokens, "max_tokens")
        self.multiple_of = check_integer(multiple_of, "multiple_of")
        self._sizes = sizes

    def _sizes_of(self, dataset: Dataset) -> npt.NDArray[np.int32]:
        """Return i32[N, 2]: height and width of every image, 0 and 0 if it is bad."""
        name = type(self).__name__
        found = dataset.sizes if self._sizes is None else np.asarray(self._sizes)
        if found is None:
            raise ConfigError(
                f"{name} needs the size of each image, which {dataset!r} does not know before it reads them; pass "
                f"sizes=, (height, width) for each sample"
            )
        if found.shape != (len(dataset), 2) or found.dtype.kind not in "iu":
            raise ConfigError(
                f"{name}: sizes are {found.dtype}{list(found.shape)}, but must be integers [{len(dataset)}, 2], "
                "(height, width) for each sample"
            )
        return found

    def _batch(self, tokens: I64, what: Sequence[str]) -> I64 | None:
        """Return the samples i64[K] in a global batch of each bucket, whose samples have up to ``tokens`` i64[K]."""
        if self.max_tokens is None:
            return None
        batch = self.max_tokens // np.maximum(tokens, 1)
        if (batch < 1).any():
            worst = int(np.argmax(tokens))
            raise ConfigError(
                f"{type(self).__name__}: {what[worst]} has {tokens[worst]:,} tokens, more than "
                f"max_tokens={self.max_tokens:,} of a global batch"
            )
        batch = np.maximum(batch // self.multiple_of * self.multiple_of, 1)
        return np.asarray(batch, np.int64)

    def _grouped(
        self, dataset: Dataset, what: str, ids: npt.NDArray[np.int16], kinds: Sequence[Any], tokens: I64, *, up: bool
    ) -> SamplerPlan:
        """Return the plan of samples in buckets.

        Args:
            ids: i16[N], the bucket of each sample.
            kinds: of every bucket, its shape or its description.
            tokens: i64[K], most tokens of a sample of each bucket.
            up: whether samples may move to buckets with more tokens only.
        """
        members = Members(ids)
        used = np.unique(ids)
        shapes = [kinds[k] for k in used]
        batch = self._batch(tokens[used], [f"a sample of bucket {kind}" for kind in shapes])
        home = None
        if self.remainder == "neighbor":
            # In a bucket with fewer tokens a sample would exceed max_tokens, so with `up` all move to the last one.
            home = len(used) - 1 if up else int(np.argmax(members.sizes))
        buckets = Buckets(
            partial(Line, members, self.shuffle),
            partial(laid_out, members.sizes, home=home),
            None if up else shapes,
            batch,
            len(used),
            self.shuffle,
        )
        # A saved state contains the name, which therefore tells other buckets apart.
        digest = crc32(
            repr((shapes, None if batch is None else batch.tolist(), self.remainder)).encode(), crc32(ids.tobytes())
        )
        return self._plan(buckets, f"{len(used)} {what} ({digest:08x})", len(dataset))

    def _plan(self, buckets: Buckets, name: str, length: int) -> SamplerPlan:
        name = f"{name}, {'shuffled' if self.shuffle else 'in order'}"
        return SamplerPlan.of(name, length, buckets.order, buckets=buckets)


class AspectRatioBuckets(_InBuckets):
    """Batches of images of similar aspect ratio, which :class:`~gpupipe.transforms.ResizeToBucket` brings to one shape.

    Every image goes to the shape whose aspect ratio is nearest to its own. With several lists of shapes it goes to the
    list with the largest area that is not above its own, so that it is not enlarged, or to the smallest list. All ranks
    get the same shape in every step. Nothing is decoded to know it: the sizes come from the index.

    Args:
        *shapes: lists of (height, width), such as from :func:`aspect_ratios`. All shapes of a list have about the same
            area.
        max_tokens: tokens in a global batch, of all ranks together; each shape then has a batch size of its own.
            Without it, all have the loader's ``batch_size`` or ``global_batch_size``.
        tokens: function that returns the tokens of an image from its height and width; by default its pixels.
        multiple_of: batch sizes from ``max_tokens`` are multiples of this where they can, such as the number of ranks.
        remainder: ``"neighbor"`` moves the images that fill no batch to a shape of similar aspect ratio, so that an
            epoch has at most one short batch. Every epoch moves other images. ``"short"`` keeps a short batch for each
            shape, at the end of the epoch. ``drop_last=True`` drops short batches.
        shuffle: whether images and batches come in a random order.
        sizes: int[N, 2], height and width of each image; ``None`` for those of the dataset's index.

    Raises :class:`ConfigError` if sizes are unknown, or a shape does not fit into ``max_tokens``.

    >>> sampler = AspectRatioBuckets(aspect_ratios(512 * 512), aspect_ratios(1024 * 1024))
    >>> images = datasets.ImageFolder(root, [ResizeToBucket(), ToTensor()])  # doctest: +SKIP
    >>> loader = DataLoader(images, batch_size=16, sampler=sampler)  # doctest: +SKIP
    """

    def __init__(
        self,
        *shapes: Sequence[Shape],
        max_tokens: int | None = None,
        tokens: Tokens | None = None,
        multiple_of: int = 1,
        remainder: Remainder = "neighbor",
        shuffle: bool = True,
        sizes: npt.ArrayLike | None = None,
    ):
        super().__init__(
            shuffle=shuffle, remainder=remainder, max_tokens=max_tokens, multiple_of=multiple_of, sizes=sizes
        )
        levels = [[_shape(shape) for shape in level] for level in shapes]
        if not levels or not all(levels):
            raise ConfigError("AspectRatioBuckets needs lists of shapes: [(height, width), ...]")
        self.levels = [sorted(set(level), key=lambda s: s[1] / s[0]) for level in sorted(levels, key=_area)]
        """Shapes from tall to wide, by area."""
        self._tokens = _pixels if tokens is None else tokens
        # Neighbors in the line have similar shapes: wide at the end of one level, and at the beginning of the next one.
        self.shapes: list[Shape] = [
            shape for k, level in enumerate(self.levels) for shape in (level if k % 2 == 0 else reversed(level))
        ]

    def __repr__(self) -> str:
        budget = "" if self.max_tokens is None else f", max_tokens={self.max_tokens}"
        return f"AspectRatioBuckets({len(self.shapes)} shapes{budget}, remainder={self.remainder!r})"

    def plan(self, dataset: Dataset) -> SamplerPlan:
        ids = self._ids(self._sizes_of(dataset))
        tokens = _counted(self._tokens, np.array(self.shapes, np.int64))
        return self._grouped(dataset, "shapes by aspect ratio", ids, self.shapes, tokens, up=False)

    def _ids(self, sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.int16]:
        """Return i16[N], the number of each image's shape in :attr:`shapes`."""
        areas = np.array([_area(level) for level in self.levels])
        limits, places = [], []
        for level in self.levels:
            # Distances are those of logarithms: twice as wide is as far away as twice as high.
            logs = np.log([width / height for height, width in level])
            limits.append((logs[1:] + logs[:-1]) / 2)
            places.append(np.array([self.shapes.index(shape) for shape in level], np.int16))
        ids = np.empty(len(sizes), np.int16)
        good = np.empty(len(sizes), np.bool_)
        for begin in range(0, len(sizes), _CHUNK):
            here = slice(begin, begin + _CHUNK)
            height, width = np.asarray(sizes[here], np.float64).T
            good[here] = fits = (height > 0) & (width > 0)
            ratio = np.log(np.where(fits, width, 1) / np.where(fits, height, 1))
            level = np.maximum(np.searchsorted(areas, height * width, "right") - 1, 0)
            for k in range(len(areas)):
                mine = level == k
                ids[here][mine] = places[k][np.searchsorted(limits[k], ratio[mine])]
        if not good.all():  # bad samples have no size; they are replaced or skipped
            ids[~good] = np.bincount(ids[good], minlength=1).argmax()
        return ids


class RandomShapes(_InBuckets):
    """A shape for every batch, in fixed proportions, whatever its samples are: multi-scale training.

    :class:`~gpupipe.transforms.ResizeToBucket` brings the images to the shape of their batch. All ranks get the same
    shape in every step.

    Args:
        shapes: (height, width) of the batches.
        weights: how often each shape comes; all alike by default.
        max_tokens, tokens, multiple_of, shuffle: as in :class:`AspectRatioBuckets`.

    >>> import numpy as np
    >>> from gpupipe import DataLoader, datasets, transforms
    >>> pixels = datasets.Arrays(np.zeros((8, 40, 40, 3), np.uint8), transform=transforms.ResizeToBucket())
    >>> loader = DataLoader(pixels, batch_size=4, sampler=RandomShapes([(32, 32), (24, 32)]), device="cpu")
    >>> sorted(tuple(batch.shape) for batch in loader)
    [(4, 3, 24, 32), (4, 3, 32, 32)]
    """

    def __init__(
        self,
        shapes: Sequence[Shape],
        weights: Sequence[float] | None = None,
        *,
        max_tokens: int | None = None,
        tokens: Tokens | None = None,
        multiple_of: int = 1,
        shuffle: bool = True,
    ):
        super().__init__(shuffle=shuffle, remainder="short", max_tokens=max_tokens, multiple_of=multiple_of, sizes=None)
        self.shapes = [_shape(shape) for shape in shapes]
        if not self.shapes:
            raise ConfigError("RandomShapes needs shapes: [(height, width), ...]")
        if weights is not None and len(weights) != len(self.shapes):
            raise ConfigError(f"RandomShapes: {len(weights)} weights for {len(self.shapes)} shapes")
        self._proportions = Proportions([1] * len(self.shapes) if weights is None else list(weights))
        self._tokens = _pixels if tokens is None else tokens

    def __repr__(self) -> str:
        budget = "" if self.max_tokens is None else f", max_tokens={self.max_tokens}"
        return f"RandomShapes({len(self.shapes)} shapes{budget})"

    def plan(self, dataset: Dataset) -> SamplerPlan:
        n = len(dataset)
        tokens = _counted(self._tokens, np.array(self.shapes, np.int64))
        batch = self._batch(tokens, [f"shape {shape}" for shape in self.shapes])
        turns = lambda positions: self._proportions.at(positions)[0]  # noqa: E731
        line: Callable[[int, int], Order] = partial(Shuffle, n) if self.shuffle else lambda seed, epoch: Sequential(n)
        buckets = Buckets(line, partial(in_turn, n, turns), self.shapes, batch, len(self.shapes), self.shuffle)
        facts = self.shapes, None if batch is None else batch.tolist(), self._proportions.parts
        digest = crc32(repr(facts).encode())
        return self._plan(buckets, f"{len(self.shapes)} shapes in turn ({digest:08x})", n)


class TokenBuckets(_InBuckets):
    """Batches of samples with similar numbers of tokens, and as many of them as ``max_tokens`` allows.

    It is for models that take images of any size, as sequences of patches: each sample keeps its own size, and a batch
    that is padded to its longest sample has at most ``max_tokens`` tokens. Nothing is decoded to count them.

    Args:
        tokens: function that returns the tokens of images from their heights and widths, such as
            ``transforms.SmartResize().tokens`` or ``transforms.ResizeToPatches(16, 1024).tokens``; or int[N], the
            tokens of each sample, such as the lengths of captions. The function is called with i64[B] arrays.
        max_tokens: tokens in a global batch, of all ranks together, including padding.
        buckets: number of groups of similar samples, which have about equally many samples. More groups need less
            padding, and mix less.
        multiple_of: batch sizes are multiples of this where they can, such as the number of ranks.
        remainder: ``"neighbor"`` moves the samples that fill no batch to the next bucket with more tokens, so that an
            epoch has at most one short batch; ``"short"`` keeps a short batch for each bucket, at the end of the epoch.
            ``drop_last=True`` drops short batches.
        shuffle, sizes: as in :class:`AspectRatioBuckets`.

    Raises :class:`ConfigError` if sizes are unknown, or a sample does not fit into ``max_tokens``.

    >>> TokenBuckets([7, 9, 40, 48], max_tokens=96, buckets=2)
    TokenBuckets(max_tokens=96, buckets=2, remainder='neighbor')
    """

    def __init__(
        self,
        tokens: Tokens | npt.ArrayLike,
        max_tokens: int,
        *,
        buckets: int = 16,
        multiple_of: int = 1,
        remainder: Remainder = "neighbor",
        shuffle: bool = True,
        sizes: npt.ArrayLike | None = None,
    ):
        super().__init__(
            shuffle=shuffle, remainder=remainder, max_tokens=max_tokens, multiple_of=multiple_of, sizes=sizes
        )
        self.buckets = check_integer(buckets, "buckets")
        self._tokens = tokens

    def __repr__(self) -> str:
        return f"TokenBuckets(max_tokens={self.max_tokens}, buckets={self.buckets}, remainder={self.remainder!r})"

    def plan(self, dataset: Dataset) -> SamplerPlan:
        counts = self._counts(dataset)
        some = np.sort(counts[:: max(len(counts) // _LOOKED_AT, 1)])
        # The limit of a bucket is the most tokens of its samples. The last one takes all that are longer.
        limits = np.unique(some[np.linspace(0, len(some) - 1, self.buckets + 1).astype(np.int64)[1:]])
        limits[-1] = counts.max()
        ids = np.searchsorted(limits, counts).astype(np.int16)
        kinds = [f"up to {limit:,}" for limit in limits.tolist()]
        return self._grouped(dataset, "buckets of similar length", ids, kinds, limits, up=True)

    def _counts(self, dataset: Dataset) -> I64:
        """Return the tokens i64[N] of each sample, at least 1."""
        if callable(self._tokens):
            sizes = self._sizes_of(dataset)
            parts = [sizes[begin : begin + _CHUNK] for begin in range(0, len(sizes), _CHUNK)]
            # Bad samples have no size. They are replaced or skipped.
            found = [_counted(self._tokens, np.maximum(np.asarray(part, np.int64), 1)) for part in parts]
            return np.concatenate(found)
        counts = np.asarray(self._tokens)
        if counts.shape != (len(dataset),) or counts.dtype.kind not in "iu" or counts.min() < 0:
            raise ConfigError(
                f"TokenBuckets: tokens are {counts.dtype}{list(counts.shape)}, but must be integers of at least 0, one "
                f"for each of {len(dataset)} samples"
            )
        return np.maximum(counts.astype(np.int64), 1)


def _pixels(height: I64, width: I64) -> I64:
    return height * width


def _counted(tokens: Tokens, sizes: I64) -> I64:
    """Return i64[B]: the tokens of images of ``sizes`` i64[B, 2]."""
    found = np.asarray(tokens(sizes[:, 0], sizes[:, 1]))
    if found.shape != (len(sizes),) or found.dtype.kind not in "iuf" or not (found >= 0).all():
        raise ConfigError(
            f"tokens= must return numbers of at least 0, one for each of {len(sizes)} images whose heights and widths "
            f"it is called with, not {found.dtype}{list(found.shape)}; write it with numpy"
        )
    return np.asarray(np.maximum(np.ceil(found), 1), np.int64)


def _shape(shape: Any) -> Shape:
    if not isinstance(shape, Sequence) or len(shape) != 2:
        raise ConfigError(f"a shape is (height, width), not {shape!r}")
    return check_integer(shape[0], "height"), check_integer(shape[1], "width")


def _area(level: Sequence[Shape]) -> float:
    return sum(height * width for height, width in level) / len(level)
