"""What belongs to an image and moves with it: labels today; masks, boxes and keypoints are more of the same."""

from .base import Target
from .labels import Labels

__all__ = ["Labels", "Target"]
