"""Targets: values that belong to an image and move with it, such as labels and further columns."""

from .base import Target
from .columns import ChosenRows, NumberColumn, TextColumn
from .labels import Labels, as_labels

__all__ = ["ChosenRows", "Labels", "NumberColumn", "Target", "TextColumn", "as_labels"]
