"""What belongs to an image and moves with it: labels and
further columns today; masks, boxes and keypoints are more of the same."""

from .base import Target
from .columns import ChosenRows, NumberColumn, TextColumn
from .labels import Labels, as_labels

__all__ = ["ChosenRows", "Labels", "NumberColumn", "Target", "TextColumn", "as_labels"]
