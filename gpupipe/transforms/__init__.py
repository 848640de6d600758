"""Transforms with the names, arguments and rules of ``torchvision.transforms.v2``."""

from .base import Transform
from .batch import CutMix, MixUp
from .clip import RandomTemporalReverse, TemporalSubsample, UniformTemporalSubsample
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
from .enhance import (
    JPEG,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from .erasing import RandomErasing
from .filter import GaussianBlur, GaussianNoise
from .function import Lambda
from .geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
from .jitter import ColorJitter
from .policy import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from .resizing import RandomResizedCrop, Resize
from .sizes import RandomShortestSize, RandomZoomOut, ScaleJitter
from .views import FiveCrop, MultiView, TenCrop
from .warp import ElasticTransform, RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "JPEG",
    "AugMix",
    "AutoAugment",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "ConvertImageDtype",
    "CutMix",
    "ElasticTransform",
    "FiveCrop",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "Lambda",
    "MixUp",
    "MultiView",
    "Normalize",
    "PILToTensor",
    "Pad",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPerspective",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomTemporalReverse",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Resize",
    "ScaleJitter",
    "TemporalSubsample",
    "TenCrop",
    "ToDtype",
    "ToImage",
    "ToTensor",
    "Transform",
    "TrivialAugmentWide",
    "UniformTemporalSubsample",
]
