"""Transforms with the names, arguments and rules of ``torchvision.transforms.v2``."""

from .base import Transform
from .batch import CutMix, MixUp
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
from .containers import RandomApply, RandomChoice, RandomOrder
from .function import Lambda
from .geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from .policy import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from .views import FiveCrop, MultiView, TenCrop

__all__ = [
    "AugMix",
    "AutoAugment",
    "CenterCrop",
    "Compose",
    "ConvertImageDtype",
    "CutMix",
    "FiveCrop",
    "Grayscale",
    "Lambda",
    "MixUp",
    "MultiView",
    "Normalize",
    "PILToTensor",
    "Pad",
    "RandAugment",
    "RandomApply",
    "RandomChoice",
    "RandomCrop",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomOrder",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "TenCrop",
    "ToDtype",
    "ToImage",
    "ToTensor",
    "Transform",
    "TrivialAugmentWide",
]
