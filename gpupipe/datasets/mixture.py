"""``Mixture``: samples of several datasets in fixed proportions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..codecs.decode import Media
from ..errors import BadSample, ConfigError, DatasetError, StateError
from ..transforms.compose import Output
from .dataset import Batches, Dataset, Sample

I64 = npt.NDArray[np.int64]


class Mixture(Dataset[Sample, Batches]):
    """Samples of several datasets, each with its own transforms, in fixed proportions.

    Counts follow the weights: among the first ``p`` samples of an epoch, ``w * p`` come from a dataset with a share of
    ``w``, up to less than one. Nothing is drawn, so all batches have nearly the same composition. Each dataset is used
    pass by pass. A pass has all of its samples once, in an order of its own if the loader shuffles, and the next epoch
    continues where the last one ended. A sample that comes again is augmented differently.

    Args:
        datasets: weight of each dataset. Datasets may be of different kinds, such as a folder, tar shards and videos,
            but their transforms must make tensors of one shape and data type, and their targets must have the same
            names.
        stop: end of an epoch: ``"first"`` before a dataset would give a sample again, ``"all"`` as soon as every
            sample of every dataset was given, an integer after so many samples.

    MixUp and CutMix work on the whole batch, so they must end the transforms of every dataset.

    Weights are used as fractions with a common denominator of at most 65,536. Indices of samples count the samples of
    the first dataset, then those of the second, and so on.

    Raises:
        ConfigError: there is no dataset, or a weight is not positive, or ``stop`` is none of the above.
        DatasetError: an item is not a dataset of gpupipe, or does not fit the others.

    >>> from gpupipe import DataLoader
    >>> from gpupipe.datasets import Arrays
    >>> many, few = (Arrays(np.full((n, 8, 8, 3), n, np.uint8), [n] * n) for n in (6, 2))
    >>> mixture = Mixture({many: 0.6, few: 0.4}, stop=10)
    >>> [labels.tolist() for images, labels in DataLoader(mixture, batch_size=5, device="cpu")]
    [[6, 2, 6, 2, 6], [6, 2, 6, 2, 6]]
    """

    kind = "mixture"

    def __init__(
        self, datasets: Mapping[Dataset[Sample, Batches], float], *, stop: Literal["first", "all"] | int = "first"
    ):
        if not isinstance(datasets, Mapping) or not datasets:
            raise ConfigError(f"Mixture: give the weight of each dataset, such as {{a: 0.7, b: 0.3}}, not {datasets!r}")
        for dataset in datasets:
            if not isinstance(dataset, Dataset) or isinstance(dataset, Mixture):
                raise DatasetError(
                    f"Mixture: {dataset!r} cannot be a part of a mixture, which takes gpupipe's datasets of files, "
                    "clips and arrays"
                )
            if not len(dataset):
                raise DatasetError(f"Mixture: {dataset!r} has no samples; leave it out")
        if stop not in ("first", "all") and (type(stop) is not int or stop < 1):
            raise ConfigError(f'Mixture: stop must be "first", "all" or a number of samples, not {stop!r}')
        self._parts = tuple(datasets)
        self.stop = stop
        self.weights: list[tuple[int, tuple[float, ...]]] = [(0, self._checked(datasets))]
        """Pairs of a position, counted in samples over all epochs, and the weights from there on."""
        self.transform = self.parts[0].transform  # which has the MixUp or CutMix of all
        self.medium, self.form = self.parts[0].medium, self.parts[0].form
        self._ends: I64 = np.cumsum([len(part) for part in self.parts])
        self._check_fit()

    @property
    def parts(self) -> tuple[Dataset, ...]:
        return self._parts

    def _checked(self, weights: Mapping[Dataset, float]) -> tuple[float, ...]:
        if set(weights) != set(self.parts):
            raise ConfigError("Mixture: give a weight for each of its datasets, and for no others")
        values = [weights[part] for part in self.parts]
        for part, value in zip(self.parts, values, strict=True):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ConfigError(f"Mixture: the weight of {part!r} must be a positive number, not {value!r}")
        return tuple(map(float, values))

    def _check_fit(self) -> None:
        """Raise an error unless samples of all parts can be in one batch."""
        outputs = [_shapes(part) for part in self.parts]
        targets = [sorted(part.target_columns) for part in self.parts]
        for part, output, names in zip(self.parts, outputs, targets, strict=True):
            if _on_batch(part) != _on_batch(self.parts[0]):
                raise ConfigError(
                    f"Mixture: the transforms of {part!r} end with {_on_batch(part) or 'nothing'} for the whole batch, "
                    f"and those of {self.parts[0]!r} with {_on_batch(self.parts[0]) or 'nothing'}; use the same ones"
                )
            if None in output:
                raise DatasetError(
                    f"Mixture: images of {part!r} come out of its transforms in different sizes; end them with a crop "
                    "or a Resize((height, width))"
                )
            if output != outputs[0]:
                raise DatasetError(
                    f"Mixture: {part!r} makes samples of {_text(output)}, and {self.parts[0]!r} of "
                    f"{_text(outputs[0])}; let their transforms make tensors of one shape and data type"
                )
            if names != targets[0]:
                raise DatasetError(
                    f"Mixture: {part!r} has the targets {names}, and {self.parts[0]!r} has {targets[0]}; give them "
                    "the same names with datasets.Columns"
                )

    def set_weights(self, datasets: Mapping[Dataset, float], *, after: int) -> None:
        """Change the weights from a position on; only with ``stop=n``.

        The change is a part of the order: a loader that loads a ``state_dict()`` saved after it continues with it.

        Args:
            datasets: weight of each dataset.
            after: number of samples, over all epochs and ranks, after which the weights change. It must lie ahead of
                the samples that a loader has prepared: give it before training, or a whole epoch ahead.

        Raises :class:`ConfigError` if ``after`` does not follow the last change.
        """
        if not isinstance(self.stop, int):
            raise ConfigError(
                f"Mixture: weights change only if epochs have a fixed length; use stop=n instead of stop={self.stop!r}"
            )
        if type(after) is not int or after <= self.weights[-1][0]:
            raise ConfigError(
                f"Mixture: after={after!r} must be a number of samples above {self.weights[-1][0]}, where the last "
                "weights begin"
            )
        self.weights = [*self.weights, (after, self._checked(datasets))]

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, which a loader's state contains."""
        return {"weights": [[start, *values] for start, values in self.weights]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the changes of weights in a state. Raises :class:`StateError` if it began with other
        weights."""
        weights = [(int(row[0]), tuple(map(float, row[1:]))) for row in state["weights"]]
        if weights[0] != self.weights[0]:
            raise StateError(
                f"this state belongs to a Mixture with the weights {weights[0][1]}, and this one has "
                f"{self.weights[0][1]}; use the same weights and change them with set_weights(), or start a new epoch "
                "with set_epoch()"
            )
        self.weights = weights

    @property
    def offsets(self) -> I64:
        """i64[k]: index of the first sample of each dataset."""
        return self._ends - np.array([len(part) for part in self.parts], np.int64)

    def part_of(self, indices: npt.ArrayLike) -> I64:
        """Return the number of the dataset to which each index belongs."""
        found: I64 = np.searchsorted(self._ends, np.asarray(indices), "right")
        return found

    def _place(self, index: int) -> tuple[Dataset, int]:
        number = int(self.part_of(index))
        return self.parts[number], int(index - self.offsets[number])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def sizes(self) -> None:
        """``None``: every part resolves its own ops."""

    @cached_property
    def labels(self) -> I64 | None:
        labels = [part.labels for part in self.parts]
        return None if any(each is None for each in labels) else np.concatenate(labels)  # type: ignore[arg-type]

    @cached_property
    def fingerprint(self) -> str:
        text = f"mixture 1 {self.stop} {[part.fingerprint + part.transform.fingerprint for part in self.parts]}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def fetch(self, index: int) -> tuple[Media, Any]:
        part, inside = self._place(index)
        return part.fetch(inside)

    def forget(self, index: int) -> bool:
        part, inside = self._place(index)
        return part.forget(inside)

    def describe(self, index: int) -> str:
        part, inside = self._place(index)
        return part.describe(inside)

    def bad(self, indices: I64) -> list[BadSample]:
        numbers, found = self.part_of(indices), []
        for number, (part, offset) in enumerate(zip(self.parts, self.offsets.tolist(), strict=True)):
            mine = indices[numbers == number] - offset
            found += [sample._replace(index=sample.index + offset) for sample in part.bad(mine)]
        return found

    def raw(self, index: int) -> tuple[Any, Any]:
        part, inside = self._place(index)
        return part.raw(inside)

    def __getitem__(self, index: int) -> Sample:
        part, inside = self._place(self.checked_index(index))
        return part[inside]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        weights = self.weights[-1][1]
        shares = ", ".join(
            f"{part!r}: {weight / math.fsum(weights):.4g}" for part, weight in zip(self.parts, weights, strict=True)
        )
        return f"Mixture({{{shares}}}, stop={self.stop!r})"


def _on_batch(part: Dataset) -> str:
    return ", ".join(repr(transform) for transform in part.transform if transform.on_batch)


def _shapes(part: Dataset) -> list[tuple[Any, ...] | None]:
    """Return data type, shape and layout of a sample's tensors; ``None`` for one whose shape varies."""
    layout: tuple[Any, ...] = (part.medium, part.transform.memory_format)
    if part.medium.moves:
        layout += (part.pictures_per_sample,)
    return [
        None if output.shape is None else (f"{output.dtype}{list(output.shape)}", *layout) for output in _outputs(part)
    ]


def _outputs(part: Dataset) -> Sequence[Output]:
    """Return the outputs of a dataset's transforms, with sizes that follow from a common size of all images."""
    outputs, pipeline = part.transform.outputs, part.transform
    unknown = any(output.size is None for output in outputs) and not pipeline.draws_by_boxes
    common = part.common_size() if unknown else None
    if common is None or pipeline.draws_size(common):
        return outputs
    # No size is drawn, so one image shows that of all.
    images = pipeline.resolve(0, 0, np.zeros(1, np.uint64), np.array([common])).images
    views = images.views or (images,)
    return [
        replace(output, size=(int(view.height[0]), int(view.width[0])))
        for output, view in zip(outputs, views, strict=True)
    ]


def _text(output: Sequence[tuple[Any, ...] | None]) -> str:
    made = [each for each in output if each is not None]
    return " and ".join(f"{shape} ({', '.join(map(str, layout))})" for shape, *layout in made)
