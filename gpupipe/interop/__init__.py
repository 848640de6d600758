"""Translation of torch's and torchvision's transforms, datasets and samplers.

gpupipe never imports torchvision. It recognizes objects by the module and the name of their class, so it runs without
torchvision, and with any version of it.
"""

from .datasets import translate_dataset
from .samplers import is_batch_sampler_of_torch, translate_batch_sampler, translate_sampler
from .transforms import translate_transform

__all__ = [
    "is_batch_sampler_of_torch",
    "translate_batch_sampler",
    "translate_dataset",
    "translate_sampler",
    "translate_transform",
]
