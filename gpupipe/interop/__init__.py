"""torch's and torchvision's objects, read and translated: transforms, datasets, samplers.

torchvision is never imported: objects are recognised by the module and the name of their class, so gpupipe runs
without it, and with any version of it.
"""

from .datasets import translate_dataset
from .samplers import SamplerPlan, is_batch_sampler_of_torch, translate_batch_sampler, translate_sampler
from .transforms import translate_transform

__all__ = [
    "SamplerPlan",
    "is_batch_sampler_of_torch",
    "translate_batch_sampler",
    "translate_dataset",
    "translate_sampler",
    "translate_transform",
]
