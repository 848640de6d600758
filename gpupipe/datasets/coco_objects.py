"""Columns of the objects of a COCO annotation file, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..printable import printable
from ..targets import Boxes, Keypoints, ObjectMasks, ObjectNumbers, Target
from ..targets.segments import Segments

Array = npt.NDArray[Any]
Objects = Sequence[Sequence[dict[str, Any]]]
"""Annotations of every image."""

_FIELDS = {"boxes": "bbox", "masks": "segmentation", "labels": "category_id"}
_SHOWN = 60
"""Characters of a wrong value that messages show."""


def column_of(key: str, objects: Objects) -> tuple[Target, dict[int, str]]:
    """Return the column ``key`` of all images, and what is wrong with an object of some images, by image.

    Wrong objects have zeros, and no polygons. Raises KeyError if no object has the field.
    """
    offsets = np.concatenate([[0], np.cumsum([len(them) for them in objects])]).astype(np.int64)
    every = [one for them in objects for one in them]
    field = _FIELDS.get(key, key)
    if every and not any(field in one for one in every) and key != "keypoints":
        raise KeyError(field)
    raw = [one.get(field, () if key == "keypoints" else None) for one in every]
    made, wrong = _MAKERS[key](raw, offsets)
    images = np.searchsorted(offsets, [*wrong], "right") - 1
    of_images: dict[int, str] = {}
    for image, (k, why) in zip(images.tolist(), wrong.items(), strict=True):
        of_images.setdefault(image, f"annotation {_shown(every[k].get('id'))}: {why}")
    return made, of_images


def _boxes(raw: list[Any], offsets: Array) -> tuple[Target, dict[int, str]]:
    # As in torchvision, which converts in float32.
    boxes, wrong = _floats("bbox", raw, 4)
    boxes[:, 2:] += boxes[:, :2]
    return Boxes(boxes, offsets), wrong


def _masks(raw: list[Any], offsets: Array) -> tuple[Target, dict[int, str]]:
    segments = Segments.of(raw)
    return ObjectMasks(segments, offsets), segments.wrong


def _keypoints(raw: list[Any], offsets: Array) -> tuple[Target, dict[int, str]]:
    lengths = Counter(len(points) for points in raw if isinstance(points, list) and len(points) % 3 == 0)
    length = max(lengths, key=lambda n: (lengths[n], n), default=0)
    points, wrong = _floats("keypoints", raw, length)
    return Keypoints(points.reshape(len(raw), -1, 3) if length else np.zeros((len(raw), 0, 3), np.float32), offsets), (
        wrong
    )


def _areas(raw: list[Any], offsets: Array) -> tuple[Target, dict[int, str]]:
    areas, wrong = _floats("area", [[area] for area in raw], 1)
    return ObjectNumbers(areas[:, 0], offsets), wrong


def _floats(name: str, raw: list[Any], count: int) -> tuple[Array, dict[int, str]]:
    """Return f32[M, count] of lists of numbers, with zeros for those that are something else."""
    values = _all_at_once(raw, count)
    if values is not None:
        return values, {}
    values, wrong = np.zeros((len(raw), count), np.float32), dict[int, str]()
    for k, numbers in enumerate(raw):
        one = _all_at_once([numbers], count)
        if one is None:
            shown = numbers[0] if name == "area" else numbers
            wrong[k] = f"{name} must be {count if count != 1 else 'a'} finite number{'s'[: count != 1]}"
            wrong[k] += f", not {_shown(shown)}"
        else:
            values[k] = one[0]
    return values, wrong


def _all_at_once(raw: list[Any], count: int) -> Array | None:
    """Return f32[M, count], or ``None`` if a value is something else. A box reaches x + width."""
    if not raw:
        return np.zeros((0, count), np.float32)
    try:
        values: Array = np.array(raw)
    except (ValueError, OverflowError):
        return None
    if values.shape != (len(raw), count) or (values.dtype.kind not in "iuf" and values.size):
        return None
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    # Half of the range, because widths are added to positions.
    return values if (np.abs(values) < np.finfo(np.float32).max / 2).all() else None


def _integers(name: str) -> Callable[[list[Any], Array], tuple[Target, dict[int, str]]]:
    def integers(raw: list[Any], offsets: Array) -> tuple[Target, dict[int, str]]:
        good = [_is_integer(value) for value in raw]
        values = np.array([value if ok else 0 for value, ok in zip(raw, good, strict=True)], np.int64)
        wrong = {
            k: f"{name} must be a whole number, not {_shown(value)}"
            for k, (value, ok) in enumerate(zip(raw, good, strict=True))
            if not ok
        }
        return ObjectNumbers(values, offsets), wrong

    return integers


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, float)) and -(1 << 63) <= value < 1 << 63 and value == int(value)


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)) and len(value) > _SHOWN:
        return f"{len(value)} values"
    try:
        text = printable(repr(value))
    except (ValueError, RecursionError):  # an integer of more digits than Python prints
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_MAKERS: dict[str, Callable[[list[Any], Array], tuple[Target, dict[int, str]]]] = {
    "boxes": _boxes,
    "labels": _integers("category_id"),
    "masks": _masks,
    "area": _areas,
    "iscrowd": _integers("iscrowd"),
    "keypoints": _keypoints,
}
