"""Samplers by weight and class, and repeated augmentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, StateError
from ..planning.classes import ClassBlocks, InTurn, Members
from ..planning.order import Order, Repeats, checked_weights, weighted
from ..planning.schedules import SamplerPlan
from ..types import check_integer
from .sampler import Sampler

if TYPE_CHECKING:
    from ..datasets.dataset import Dataset

F64 = npt.NDArray[np.float64]


class RepeatedAugmentation(Sampler):
    """Every sample several times in a row, each time augmented differently.

    It is the repeated augmentation of Hoffer et al., *Augment your batch* (CVPR 2020), and of DeiT. A global batch of B
    has B / repeats different samples. Without ``num_samples``, an epoch is as long as the dataset, so it has one sample
    in ``repeats``, and the following epochs have the others.

    Args:
        repeats: number of occurrences of each sample, at least 1.
        num_samples: length of an epoch, counted with repeats; ``None`` for that of the dataset.

    Raises :class:`ConfigError` for other values.

    >>> import numpy as np
    >>> from gpupipe import DataLoader, datasets
    >>> pixels = datasets.Arrays(np.zeros((6, 8, 8, 3), np.uint8), range(6))
    >>> loader = DataLoader(pixels, batch_size=6, sampler=RepeatedAugmentation(3), seed=0, device="cpu")
    >>> [labels.tolist() for epoch in range(2) for images, labels in loader]
    [[5, 5, 5, 0, 0, 0], [4, 4, 4, 1, 1, 1]]
    """

    def __init__(self, repeats: int, num_samples: int | None = None):
        self.repeats = check_integer(repeats, "repeats")
        self.num_samples = None if num_samples is None else check_integer(num_samples, "num_samples")

    def plan(self, dataset: Dataset) -> SamplerPlan:
        n = len(dataset)
        length = n if self.num_samples is None else self.num_samples
        name = f"{self.repeats} augmentations of each sample, epochs of {length:,} samples"
        return SamplerPlan.of(name, length, partial(Repeats, n, self.repeats, length))

    def __repr__(self) -> str:
        return f"RepeatedAugmentation({self.repeats}, num_samples={self.num_samples})"


class Weighted(Sampler):
    """Samples drawn with probabilities that may differ in every epoch, for curricula and hard examples.

    Args:
        weights: f64[N], a weight of at least 0 for each sample, or a function that returns them for an epoch.
        num_samples: length of an epoch; ``None`` for that of the dataset.
        replacement: whether a sample may be drawn several times in an epoch.

    Raises :class:`ConfigError` for weights that are negative, not finite, or all zero.

    >>> sampler = Weighted([1, 1, 1, 0])
    >>> sampler.set_weights([0, 0, 1, 1], epoch=5)
    """

    def __init__(
        self,
        weights: npt.ArrayLike | Callable[[int], npt.ArrayLike],
        num_samples: int | None = None,
        *,
        replacement: bool = True,
    ):
        self.num_samples = None if num_samples is None else check_integer(num_samples, "num_samples")
        self.replacement = bool(replacement)
        self._function = weights if callable(weights) else None
        self._weights: list[tuple[int, F64]] = []
        """Pairs of an epoch and the weights from there on: the two latest ones."""
        if self._function is None:
            self._weights = [(0, self._checked(weights))]
            self._first = _digest(self._weights[0][1])

    def _checked(self, weights: Any) -> F64:
        found = np.asarray(weights.numpy() if callable(getattr(weights, "numpy", None)) else weights, np.float64)
        count = len(found) if self.num_samples is None and found.ndim == 1 else self.num_samples or 1
        # A copy, because the script may change its array.
        return checked_weights(found, count, self.replacement).copy()

    def __repr__(self) -> str:
        which = "a function" if self._function is not None else f"{len(self._weights[-1][1]):,} weights"
        return f"Weighted({which}, num_samples={self.num_samples}, replacement={self.replacement})"

    def set_weights(self, weights: npt.ArrayLike, *, epoch: int) -> None:
        """Draw by other weights from an epoch on.

        The weights become a part of the loader's state, so that a resumed run draws by them as well. The two latest
        ones are kept. All ranks must set the same weights.

        Args:
            weights: f64[N].
            epoch: first epoch that has them. It must not have begun.

        Raises :class:`ConfigError` if ``epoch`` does not follow the last change, or weights are a function already.
        """
        if self._function is not None:
            raise ConfigError("this Weighted sampler has a function of the epoch for its weights; change the function")
        if type(epoch) is not int or epoch <= self._weights[-1][0]:
            raise ConfigError(
                f"epoch={epoch!r} must be an integer above {self._weights[-1][0]}, where the last weights begin"
            )
        new = self._checked(weights)
        if len(new) != len(self._weights[-1][1]):
            raise ConfigError(f"{len(new)} weights for {len(self._weights[-1][1])} samples")
        self._weights = [*self._weights[-1:], (epoch, new)]

    def weights_of(self, epoch: int) -> F64:
        """Return the weights f64[N] of an epoch. Raises :class:`ConfigError` if they are not kept any more."""
        if self._function is not None:
            return self._checked(self._function(epoch))
        for first, weights in reversed(self._weights):
            if epoch >= first:
                return weights
        raise ConfigError(
            f"the weights of epoch {epoch} are not known any more, because only the latest two are kept: those from "
            f"epoch {self._weights[0][0]} on and those from epoch {self._weights[-1][0]} on"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the weights that were set, which a loader's state contains; empty if none were."""
        if self._function is not None or len(self._weights) == 1:
            return {}
        return {"first": self._first, "weights": [(epoch, weights.tolist()) for epoch, weights in self._weights]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the weights of a state. Raises :class:`StateError` if it began with other weights."""
        if self._function is not None or state["first"] != self._first:
            raise StateError(
                "this state belongs to a Weighted sampler that began with other weights; use the same weights and "
                "change them with set_weights(), or start a new epoch with set_epoch()"
            )
        self._weights = [(int(epoch), self._checked(weights)) for epoch, weights in state["weights"]]

    def plan(self, dataset: Dataset) -> SamplerPlan:
        n = len(dataset)
        count = n if self.num_samples is None else self.num_samples
        have = len(self.weights_of(0)) if self._function is not None else len(self._weights[-1][1])
        if have != n:
            raise ConfigError(f"sampler has {have} weights, but this dataset has {n:,} samples; give one for each")

        def order(seed: int, epoch: int) -> Order:
            return weighted(self.weights_of(epoch), count, self.replacement, seed, epoch)

        which = "a function of the epoch" if self._function is not None else self._first
        how = "with" if self.replacement else "without"
        return SamplerPlan.of(f"{count:,} weighted ({which}), {how} replacement", count, order, settings=self)


def _digest(weights: F64) -> str:
    return f"{crc32(weights.tobytes()):08x}"


class _ByClass(Sampler):
    """Base class of samplers that know the class of each sample."""

    def __init__(self, labels: npt.ArrayLike | None = None, num_samples: int | None = None):
        self._labels = labels
        self.num_samples = None if num_samples is None else check_integer(num_samples, "num_samples")

    def _members(self, dataset: Dataset) -> Members:
        labels = dataset.labels if self._labels is None else np.asarray(self._labels)
        name = type(self).__name__
        if labels is None:
            raise ConfigError(f"{name} needs the class of each sample, and {dataset!r} has no labels; pass labels=")
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(dataset):
            raise ConfigError(
                f"{name}: labels are {labels.dtype}{list(labels.shape)}, but must be integers [{len(dataset)}], one "
                "for each sample"
            )
        return Members(labels.astype(np.int64))


class ClassBalanced(_ByClass):
    """Every class equally often, whatever its number of samples.

    Each class comes once in every run of as many samples as there are classes, in a random order. The samples of a
    class come pass by pass, so small classes repeat theirs often, and large ones need several epochs for all.

    Args:
        labels: int[N], the class of each sample; ``None`` for the labels of the dataset.
        num_samples: length of an epoch; ``None`` for that of the dataset.

    Raises :class:`ConfigError` if no labels are known, or there is not one for each sample.
    """

    def __repr__(self) -> str:
        return f"ClassBalanced(num_samples={self.num_samples})"

    def plan(self, dataset: Dataset) -> SamplerPlan:
        members = self._members(dataset)
        length = len(dataset) if self.num_samples is None else self.num_samples
        name = f"{len(members.sizes):,} classes in turn, epochs of {length:,} samples"
        return SamplerPlan.of(name, length, partial(InTurn, members, length))


class ClassBatches(_ByClass):
    """Batches of P classes with K samples each, for metric learning, re-identification and few-shot episodes.

    Samples of a class are neighbors: the first K samples of a batch have one class, the next K another one. A class
    comes at most once in such a group of P * K samples, and a sample too if its class has at least K. A class with
    fewer repeats its samples, augmented differently. Over the groups, classes come pass by pass, and so do the samples
    of a class.

    For episodes of N ways, S shots and Q queries, use ``classes=N, samples=S + Q``, and the first S of each class as
    shots.

    Args:
        classes: P, number of different classes in a group.
        samples: K, number of samples of each class.
        labels: int[N], the class of each sample; ``None`` for the labels of the dataset.
        num_samples: length of an epoch; ``None`` for that of the dataset, in whole groups.

    The batch size on a rank must be P * K, a multiple of it, or a multiple of K that divides it.

    Raises :class:`ConfigError` for other batch sizes, if no labels are known, or for more classes than there are.

    >>> import numpy as np
    >>> from gpupipe import DataLoader, datasets
    >>> pixels = datasets.Arrays(np.zeros((12, 8, 8, 3), np.uint8), [0, 1, 2] * 4)
    >>> loader = DataLoader(pixels, batch_size=4, sampler=ClassBatches(2, 2), seed=0, device="cpu")
    >>> [labels.tolist() for images, labels in loader]
    [[2, 2, 0, 0], [0, 0, 1, 1], [2, 2, 0, 0]]
    """

    def __init__(self, classes: int, samples: int, labels: npt.ArrayLike | None = None, num_samples: int | None = None):
        super().__init__(labels, num_samples)
        self.classes, self.samples = check_integer(classes, "classes"), check_integer(samples, "samples")

    def __repr__(self) -> str:
        return f"ClassBatches({self.classes}, {self.samples}, num_samples={self.num_samples})"

    def check(self, batch_size: int) -> None:
        group = self.classes * self.samples
        divides = group % batch_size == 0 and batch_size % self.samples == 0
        if batch_size % group and not divides:
            raise ConfigError(
                f"ClassBatches({self.classes}, {self.samples}): batch_size={batch_size} cuts groups of {group} samples "
                f"apart; use batch_size={group}, a multiple of it, or a multiple of {self.samples} that divides it"
            )

    def plan(self, dataset: Dataset) -> SamplerPlan:
        members, group = self._members(dataset), self.classes * self.samples
        if self.classes > len(members.sizes):
            raise ConfigError(
                f"ClassBatches: {self.classes} different classes in a group, but there are {len(members.sizes)}"
            )
        length = max(len(dataset) // group, 1) * group if self.num_samples is None else self.num_samples
        name = f"{self.classes} classes with {self.samples} samples each, epochs of {length:,} samples"
        return SamplerPlan.of(name, length, partial(ClassBlocks, members, self.classes, self.samples, length))
