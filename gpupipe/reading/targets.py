"""Targets of a batch that its dataset knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..codecs.files import Undecodable
from ..datasets.dataset import Dataset
from ..errors import BadSample, ConfigError, PipelineError
from ..kernels.moving import Moves, check_followed
from ..targets import Target
from ..transforms.compose import Compose
from ..transforms.ops import Views
from ..types import Plan
from .sample import bad_sample


def targets_of(dataset: Dataset, plan: Plan) -> Any:
    """Return labels i64[B], or a dictionary of all columns by name if there are others, or ``None``. On the CPU.

    Without the columns that :func:`following` names.
    """
    still = {name: target for name, target in dataset.target_columns.items() if not _follows(target)}
    made = {name: collated(target, target.of(plan.indices)) for name, target in still.items()}
    return made if dataset.columns else made.get("label")


def following(dataset: Dataset) -> dict[str, Target]:
    """Return the columns whose values move with the image, or that a filter of objects may shorten."""
    return {name: target for name, target in dataset.columns.items() if _follows(target)}


def _follows(target: Target) -> bool:
    return target.moves or target.per_object


def check_targets(dataset: Dataset, pipeline: Compose) -> None:
    """Raise an error if a pipeline does something that the dataset's targets cannot follow."""
    columns = following(dataset)
    names = ", ".join(map(repr, columns))
    boxes = [name for name, target in columns.items() if target.format]
    needing = [t for t in pipeline.transforms if t.on_objects or t.draws_by_boxes]
    if needing and not boxes:
        raise ConfigError(
            f"{needing[0]!r} needs boxes, and {dataset!r} has no column of them; leave it out, or add targets.Boxes "
            "with datasets.Columns"
        )
    if pipeline.draws_by_boxes and len(boxes) > 1:
        raise ConfigError(
            f"the pipeline draws by the boxes of an image, and {dataset!r} has several columns of them: "
            f"{', '.join(map(repr, boxes))}; use a dataset with one"
        )
    if not any(target.moves for target in columns.values()):
        return
    if any(isinstance(op, Views) for op in pipeline.skeleton):
        raise PipelineError(
            f"the pipeline makes several views of each image, and the columns {names} can only follow one; remove the "
            "views, or read the columns with another loader"
        )
    if pipeline.mixing:
        mixing = type(pipeline.mixing[0]).__name__
        raise PipelineError(f"{mixing} mixes images and labels, but not the columns {names}; leave it out")
    check_followed(pipeline.skeleton, f"the columns {names}")


def follow(columns: Mapping[str, Target], pipeline: Compose, plan: Plan, rows: slice) -> dict[str, Sequence[Any]]:
    """Return the moved values of some rows of a plan, by column. Values that cannot be read are
    :class:`Undecodable`."""
    assert plan.ops is not None and plan.sizes is not None
    numbers, sizes = range(len(plan))[rows], plan.sizes[rows].tolist()
    moves = [Moves.of(plan.ops, row, size) for row, size in zip(numbers, sizes, strict=True)]
    indices = plan.indices[rows]
    made = {name: target.follow(target.of(indices), moves) for name, target in columns.items()}
    return _filtered(columns, pipeline, made, moves) if pipeline.on_objects else made


def _filtered(
    columns: Mapping[str, Target], pipeline: Compose, made: Mapping[str, Sequence[Any]], moves: Sequence[Moves]
) -> dict[str, Sequence[Any]]:
    """Apply the transforms of boxes, and remove the rows of objects that they filter from all columns."""
    out: dict[str, Sequence[Any]] = {name: list(values) for name, values in made.items()}
    of_objects = [name for name, target in columns.items() if target.per_object]
    for name, target in columns.items():
        if target.format is None:
            continue
        for row, move in enumerate(moves):
            boxes, format = out[name][row], target.format
            for transform in pipeline.on_objects:
                boxes, format, keep = transform.change(boxes, format, move.out_size)
                if keep is not None:
                    for other in of_objects:
                        # A value that cannot be read has no rows, and its sample is reported later.
                        if other != name and not isinstance(out[other][row], Undecodable):
                            out[other][row] = _kept(out[other][row], keep, other, name)  # type: ignore[index]
            out[name][row] = boxes  # type: ignore[index]
    return out


def _kept(values: Any, keep: Any, name: str, boxes: str) -> Any:
    if len(values) != len(keep):
        raise PipelineError(
            f"the column {name!r} has {len(values)} rows for an image with {len(keep)} boxes in {boxes!r}; columns of "
            "objects need one row for each box"
        )
    return values[keep]


def unreadable(dataset: Dataset, plan: Plan, made: Mapping[str, Sequence[Any]]) -> list[BadSample]:
    """Return the samples of a plan with a value that could not be read."""
    found = {
        row: value for values in made.values() for row, value in enumerate(values) if isinstance(value, Undecodable)
    }
    return [bad_sample(dataset, int(plan.indices[row]), why) for row, why in sorted(found.items())]


def collated(target: Target, values: Sequence[Any]) -> Any:
    """Return a batch of a column: a tensor, or a list of tensors or texts."""
    batch = target.collate(values)
    if isinstance(batch, np.ndarray):
        return torch.from_numpy(batch)
    return [torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in batch]


def with_numbers(target: Any) -> Any:
    """Return the targets of a batch with lists of Python numbers in place of the tensors whose rows are numbers in a
    sample. Reading them from a GPU would wait for it."""
    if isinstance(target, torch.Tensor):
        return target.tolist()
    if not isinstance(target, dict):
        return target
    return {
        name: values.tolist() if isinstance(values, torch.Tensor) and values.ndim == 1 else values
        for name, values in target.items()
    }


def targets_by_sample(target: Any, count: int) -> Any:
    """Return the target of each sample of a batch: Python numbers and texts, tensors, or dictionaries of these."""
    columns = with_numbers(target)
    if not isinstance(columns, dict):
        return columns
    return [{name: values[i] for name, values in columns.items()} for i in range(count)]
