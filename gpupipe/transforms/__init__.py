"""Transforms with the names, arguments and rules of ``torchvision.transforms.v2``."""

from .auto_augment import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from .base import Transform
from .blur_noise import GaussianBlur, GaussianNoise
from .color import ColorJitter
from .compose import Compose
from .containers import RandomApply, RandomChoice, RandomOrder
from .dtype import ConvertImageDtype, Grayscale, Normalize, PILToTensor, RandomGrayscale, ToDtype, ToImage, ToTensor
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
from .geometry import CenterCrop, Pad, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from .lambda_ import Lambda
from .mixing import CutMix, MixUp
from .random_resize import RandomShortestSize, RandomZoomOut, ScaleJitter
from .resize import RandomResizedCrop, Resize
from .temporal import RandomTemporalReverse, TemporalSubsample, UniformTemporalSubsample
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
