"""Transforms with the names, arguments and rules of ``torchvision.transforms.v2``."""

from .base import Transform
from .color import (
    ConvertImageDtype,
    Grayscale,
    Normalize,
    PILToTensor,
    RandomGrayscale,
    ToDtype,
    ToImage,
    ToTensor,
)
from .compose import Compose
from .geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)

__all__ = [
    "CenterCrop",
    "Compose",
    "ConvertImageDtype",
    "Grayscale",
    "Normalize",
    "PILToTensor",
    "Pad",
    "RandomCrop",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "ToImage",
    "ToTensor",
    "Transform",
]
