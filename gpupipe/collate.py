"""Functions for ``DataLoader(collate_fn=...)``: batches of images of different sizes, as detection models take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import ConfigError

__all__ = ["Padded", "PaddedImages", "as_lists"]


def as_lists(samples: Sequence[Any]) -> tuple[list[Any], ...]:
    """Return lists instead of batches: ``(images, targets)``, as torchvision's detection models take them.

    Samples with several parts give one list for each part. A dictionary with ``"image"`` gives a list of images and a
    list of dictionaries with everything else.

    >>> images, targets = as_lists([{"image": torch.zeros(3, 4, 5), "boxes": torch.zeros(2, 4)}])
    >>> images[0].shape, targets[0]["boxes"].shape
    (torch.Size([3, 4, 5]), torch.Size([2, 4]))
    """
    return tuple(map(list, zip(*map(_parts, samples), strict=True)))


def _parts(sample: Any) -> tuple[Any, ...]:
    if isinstance(sample, dict) and "image" in sample:
        return sample["image"], {name: value for name, value in sample.items() if name != "image"}
    return tuple(sample) if isinstance(sample, (tuple, list)) else (sample,)


class PaddedImages(NamedTuple):
    """Images of different sizes in one tensor."""

    images: Tensor
    """[B, C, H, W], zero outside the images."""
    mask: Tensor
    """bool[B, H, W]: whether a pixel is padding."""


@dataclass(frozen=True)
class Padded:
    """Pad images on the right and at the bottom to a common size, as DETR takes them: ``(PaddedImages, targets)``.

    Everything else is a list, as from :func:`as_lists`. Masks [H, W] of the images' size, such as those of
    segmentation, stay unpadded in ``targets``.

    Args:
        divisor: the common height and width are multiples of this.

    Raises:
        ConfigError: ``divisor`` is not a positive integer.

    >>> batch, _ = Padded(divisor=32)([(torch.ones(3, 40, 50), 0), (torch.ones(3, 20, 60), 1)])
    >>> batch.images.shape, batch.mask[1].sum().item()
    (torch.Size([2, 3, 64, 64]), 2896)
    """

    divisor: int = 1

    def __post_init__(self) -> None:
        if type(self.divisor) is not int or self.divisor < 1:
            raise ConfigError(f"Padded: divisor must be a positive integer, not {self.divisor!r}")

    def __call__(self, samples: Sequence[Any]) -> tuple[Any, ...]:
        images, *rest = as_lists(samples)
        size = [-(-max(image.shape[axis] for image in images) // self.divisor) * self.divisor for axis in (-2, -1)]
        batch = images[0].new_zeros((len(images), images[0].shape[0], *size))
        mask = torch.ones((len(images), *size), dtype=torch.bool, device=batch.device)
        for row, image in enumerate(images):
            height, width = image.shape[-2:]
            batch[row, :, :height, :width] = image
            mask[row, :height, :width] = False
        return PaddedImages(batch, mask), *rest
