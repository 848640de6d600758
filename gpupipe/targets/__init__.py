"""Targets: values that belong to an image, such as labels and further columns, and move with it, such as masks."""

from .columns import ChosenRows, NumberColumn, TextColumn
from .labels import Labels, as_labels
from .masks import Masks
from .objects import Boxes, Keypoints, ObjectNumbers
from .segments import ObjectMasks
from .target import Collated, Moves, Target

__all__ = [
    "Boxes",
    "ChosenRows",
    "Collated",
    "Keypoints",
    "Labels",
    "Masks",
    "Moves",
    "NumberColumn",
    "ObjectMasks",
    "ObjectNumbers",
    "Target",
    "TextColumn",
    "as_labels",
]
