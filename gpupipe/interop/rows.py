"""A script's own datasets whose samples are rows of arrays, such as images and labels in memory.

``__getitem__`` runs once, with stand-ins for the index, for the arrays that the dataset holds and for its transforms.
If the code is closed (:mod:`.closed`) and does nothing with them but take a row, make an image of it and give it to a
transform, it does the same for every index. So batches can be made of the arrays themselves. Datasets and subsets that
the dataset reads are followed in the same way.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import IterableDataset, default_collate

from .. import datasets as ours
from ..datasets.dataset import Dataset
from ..datasets.sample_form import Rest, SampleForm, View, kept, leaves, mapped, view_of
from ..signal_handlers import pass_on
from ..targets import NumberColumn
from ..transforms import Compose, MultiView, PILToTensor
from ..transforms.albumentations import ToArray
from .classes import exact_name
from .closed import NotClosed
from .draws import NotUnderstood
from .marks import marked_dataset
from .row_code import Sample, sample_of
from .row_stand_ins import Picture, Row, StandIn, Transformed
from .row_values import I64, Values
from .snapshot import COMPARED
from .transforms import Translated, leaves_of, translation

_TRIED = 3
"""Number of samples that the script's own code makes as well."""


def rows_of(ds: Any) -> Rows | None:
    """Return the arrays from which a script's dataset takes its samples; ``None`` if it may do more than that."""
    if isinstance(ds, IterableDataset) or not hasattr(type(ds), "__len__"):
        return None
    try:
        found = Rows(ds, sample_of(ds))
        found.check()
        return found
    except (NotClosed, NotUnderstood):
        return None
    except Exception as e:  # raised by code that cannot work with a stand-in
        pass_on(e)
        return None


class _Shown:
    """What transforms were given when the script's own code ran."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, tuple[Any, ...]]] = []

    def standing(self, transform: Any) -> _Showing:
        return _Showing(self, transform)

    def of(self, value: Any) -> tuple[Any, tuple[Any, ...]] | None:
        """Return the image that a number stands for, and the transforms that it was given to."""
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float64 or value.ndim:
            return None
        return self.found[int(value)]


class _Showing:
    """Stand-in for a transform, which returns a tensor with the number of what it was given."""

    def __init__(self, shown: _Shown, transform: Any):
        self._shown, self._transform = shown, transform

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._transform)

    def __call__(self, *given: Any, **named: Any) -> Any:
        (image,) = (*given, *named.values())
        image, steps = self._shown.of(image) or (image, ())
        self._shown.found.append((image, (*steps, self._transform)))
        made = torch.tensor(len(self._shown.found) - 1.0, dtype=torch.float64)
        return {"image": made} if named else made


class Rows:
    """Arrays from which a dataset takes its samples.

    Args:
        ds: the dataset.
        sample: what its code returns for any index.

    Attributes:
        views: images that its samples have after transforms, if any.
        shows_index: whether samples depend on the type of the index.

    Raises :class:`NotUnderstood` if a sample has anything but transformed images of one array and rows of others.
    """

    def __init__(self, ds: Any, sample: Sample):
        self.ds, self._sample, self.count, self._reads = ds, sample.made, sample.length, sample.reads
        parts = {id(part): part for part in leaves(sample.made)}.values()
        self.views = [part for part in parts if type(part) is Transformed]
        self._rows = [part for part in parts if type(part) is Row]
        if not parts or len(self.views) + len(self._rows) < len(parts):
            raise NotUnderstood("its samples have other parts")
        if len({_place_of(view.image) for view in self.views}) > 1:
            raise NotUnderstood("its samples have several images")
        for part in [_row_of(view.image) for view in self.views] + self._rows:
            if part.values.key is not None:
                self._reads.indices(part.values.key)
        self.shows_index = sample.asks_index or any(row.is_index for row in self._rows)
        self._is_flat = type(sample.made) in (tuple, list) and all(type(part) is Row for part in sample.made)
        self._types: dict[int, np.dtype[Any]] = {}
        """Data type that torch gives to a batch, by the identity of the row."""

    def changed(self) -> bool:
        """Tell whether the code, or what it has read, has changed since. Arrays may have other values."""
        return self._reads.changed()

    def check(self) -> None:
        """Compare some samples with what the script's own code makes. Raise :class:`NotUnderstood` if they differ."""
        shown = _Shown()
        other = marked_dataset(self.ds, shown.standing)[0]
        indices = sorted({round(k) for k in np.linspace(0, self.count - 1, _TRIED)})
        values: dict[int, dict[int, Any]] = {id(row): {} for row in self._rows}
        for index in indices:
            for part, true in _pairs(self._sample, other[index]):
                if type(part) is Row:
                    values[id(part)][index] = true
                elif (given := shown.of(true)) is None or not _is_given(part, *given, index):
                    raise NotUnderstood("its images are not those of the array")
        for row in self._rows:
            batch = default_collate([*values[id(row)].values()])
            self._types[id(row)] = batch.numpy().dtype
            if row.values.dtype not in (row.values.array.dtype, batch.numpy().dtype):
                raise NotUnderstood("it converts values twice")
            made = self._taken(row, np.array(indices))
            if made.stride() != batch.stride() or not torch.equal(made.nan_to_num(), batch.nan_to_num()):
                raise NotUnderstood("its numbers are not those of the arrays")

    def batch(self, indices: I64) -> Any:
        """Return a batch as torch makes it, for samples without transformed images. Raises :class:`DatasetError`."""
        if self._is_flat:
            return [self._taken(row, indices) for row in self._sample]
        return mapped(lambda row: self._taken(row, indices), self._sample)

    def _taken(self, row: Row, indices: I64) -> torch.Tensor:
        # Only a batch has the type that torch gives to numbers.
        return torch.from_numpy(np.ascontiguousarray(row.values.rows(indices), self._types[id(row)]))

    def dataset(self, *, live: bool = True) -> Dataset:
        """Return a dataset of the arrays. Raises :class:`NotUnderstood` and the errors of translation.

        Args:
            live: whether numbers follow changes at once, as in torch's loader without workers. Otherwise it has copies
                of small ones.
        """
        image = self.views[0].image
        row = _row_of(image)
        values = row.values
        if values.dtype != np.uint8 or values.array.dtype != np.uint8:
            raise NotUnderstood("its images are not bytes")
        planes = row.kind == "tensor" and row.ndim == 3
        pixels = np.moveaxis(values.array, 1, -1) if planes else values.array
        color = pixels.shape[3:] == (3,) or (type(image) is Picture and image.mode == "RGB")

        def translated(view: Transformed) -> Translated:
            return translation(self._chain(view), channels=3 if color else 1, size=pixels.shape[1:3])

        found = [translated(view) for view in self.views]
        kinds = {one.kind for one in found}
        if len(kinds) > 1 or not kinds <= {"tensor", "image"}:
            raise NotUnderstood("its images are no tensors, or some are of another kind")
        if any(view.is_tensor and one.nested is not None for view, one in zip(self.views, found, strict=True)):
            raise NotUnderstood("it makes a tensor of several views")
        for shared in self._shared():
            if any(transform.draws for transform in translated(shared).pipeline):
                raise NotUnderstood("it uses a random result several times")
        (kind,), pipeline, nested = kinds, found[0].pipeline, found[0].nested
        views = [kept(lambda view: view_of(view.number, kind), View(0) if nested is None else nested)]
        if len(found) > 1:
            if any(len(one.pipeline.outputs) > 1 for one in found):
                raise NotUnderstood("it makes several views of each of several views")
            views = [view_of(number, kind) for number in range(len(found))]
            same = all(view.steps == self.views[0].steps for view in self.views)
            several = MultiView(pipeline, len(found)) if same else MultiView([one.pipeline for one in found])
            pipeline = Compose([several])
        return self._formed(pixels, values.at, pipeline, views, live)

    def _shared(self) -> Iterator[Transformed]:
        """Iterate over results that more than one part of a sample comes from."""
        users: dict[int, set[int]] = {}
        """Results and parts that each result is used for, by the identity of the call that made it."""
        for view in self.views:
            user = id(view)
            last: Transformed | None = view
            while last is not None:
                of_last = users.setdefault(id(last.origin), set())
                if len(of_last) == 1 and user not in of_last:
                    yield last
                of_last.add(user)
                user, last = id(last.origin), last.before

    def _chain(self, view: Transformed) -> list[Any]:
        """Return the transforms of a PIL image that do what these do."""
        steps, row = leaves_of(view.steps), _row_of(view.image)
        if type(view.image) is Picture:
            return steps
        if row.kind == "numpy":
            return [ToArray(), *steps]
        if steps and exact_name(steps[0], "torchvision.transforms") == "ToPILImage" and steps[0].mode is None:
            return steps[1:]
        if row.ndim != 3:
            raise NotUnderstood("its images have no channels")
        return [PILToTensor(), *steps]

    def _formed(
        self, pixels: npt.NDArray[Any], at: I64 | None, pipeline: Compose, views: list[Any], live: bool
    ) -> Dataset:
        """Return the dataset that makes these samples."""
        rests = {id(row): Rest((f"part {k}",)) for k, row in enumerate(self._rows)}
        positions = rests | dict(zip(map(id, self.views), views, strict=True))
        tree = kept(lambda part: positions[id(part)], self._sample)
        values = [replace(row.values, dtype=self._types[id(row)]) for row in self._rows]
        if not live:
            values = [one.kept() if one.array.nbytes <= COMPARED else one for one in values]
        made: Dataset
        if tree == (View(0), *rests.values()) and len(values) == 1 and at is None and _is_labels(values[0]):
            return ours.Arrays(pixels, values[0].array, transform=pipeline)
        made = ours.Arrays(pixels, transform=pipeline)
        made = made if at is None else ours.Subset(made, at)
        if values:
            columns = {path.path[0]: NumberColumn(one) for path, one in zip(rests.values(), values, strict=True)}
            made = ours.Columns(made, columns)
        made.form = SampleForm(tree)
        return made


def _is_labels(values: Values) -> bool:
    array = values.array
    is_plain = array.dtype == values.dtype == np.int64 and array.ndim == 1
    return is_plain and values.at is None and values.numbers is None


def _row_of(image: Picture | Row) -> Row:
    return image.row if type(image) is Picture else image  # type: ignore[return-value]


def _place_of(image: Picture | Row) -> tuple[Any, ...]:
    """Return everything that tells images of arrays apart."""
    row = _row_of(image)
    values, array = row.values, row.values.array
    at = None if values.at is None else values.at.tobytes()
    mode = image.mode if type(image) is Picture else ""
    return array.__array_interface__["data"], array.shape, array.strides, values.dtype, at, row.kind, mode


def _is_given(part: Transformed, image: Any, steps: tuple[Any, ...], index: int) -> bool:
    """Tell whether the image is that of the array, and the transforms are the same."""
    if len(steps) != len(part.steps) or not all(map(operator.is_, steps, part.steps)):
        return False
    pixels, expected = np.asarray(image), _row_of(part.image).values.rows(np.array([index]))[0]
    if type(part.image) is Picture and part.image.mode == "RGB" and expected.ndim == 2:
        expected = np.repeat(expected[:, :, None], 3, axis=2)
    same_kind = isinstance(image, part.image.shown())
    return same_kind and pixels.dtype == expected.dtype and np.array_equal(pixels, expected)


def _pairs(part: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over the leaves of two samples. Raise :class:`NotUnderstood` if their containers differ."""
    if isinstance(part, StandIn) or not isinstance(part, (list, tuple, Mapping)):
        yield part, other
        return
    if type(part) is not type(other) or len(part) != len(other):
        raise NotUnderstood("its samples have different forms")
    keys = [*part] if isinstance(part, Mapping) else range(len(part))
    if isinstance(part, Mapping) and keys != [*other]:
        raise NotUnderstood("its samples have different keys")
    for key in keys:
        yield from _pairs(part[key], other[key])
