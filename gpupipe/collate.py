"""Functions for ``DataLoader(collate_fn=...)``: batches of images of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import default_collate

from .errors import ConfigError

__all__ = ["Padded", "PaddedImages", "Patches", "as_lists"]


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


@dataclass(frozen=True)
class Patches:
    """Cut images into patches and pad these sequences to the longest one, as timm's NaFlex models take them.

    The result is ``({"patches", "patch_coord", "patch_valid"}, ...)``: patches [B, L, P * P * C] with channels last,
    their rows and columns i64[B, L, 2], and bool[B, L], whether a patch is real. Everything else is collated by torch's
    ``default_collate``. Heights and widths of images must be multiples of ``patch_size``, as
    :class:`~gpupipe.transforms.ResizeToPatches` makes them.

    Args:
        patch_size: P, edge of a patch in pixels.

    Raises:
        ConfigError: ``patch_size`` is not a positive integer, or an image is not made of whole patches.

    >>> batch, labels = Patches(16)([(torch.ones(3, 32, 48), 0), (torch.ones(3, 32, 32), 1)])
    >>> batch["patches"].shape, batch["patch_valid"].sum(1).tolist(), labels.tolist()
    (torch.Size([2, 6, 768]), [6, 4], [0, 1])
    """

    patch_size: int

    def __post_init__(self) -> None:
        if type(self.patch_size) is not int or self.patch_size < 1:
            raise ConfigError(f"Patches: patch_size must be a positive integer, not {self.patch_size!r}")

    def __call__(self, samples: Sequence[Any]) -> tuple[Any, ...]:
        parts = [_parts(sample) for sample in samples]
        images, edge = [part[0] for part in parts], self.patch_size
        for image in images:
            if image.shape[-2] % edge or image.shape[-1] % edge:
                size = f"{image.shape[-2]}x{image.shape[-1]}"
                raise ConfigError(
                    f"Patches: an image of {size} pixels is not made of patches of {edge}; resize with "
                    f"transforms.ResizeToPatches({edge}, max_patches)"
                )
        grids = [(image.shape[-2] // edge, image.shape[-1] // edge) for image in images]
        longest, channels = max(rows * columns for rows, columns in grids), images[0].shape[0]
        patches = images[0].new_zeros((len(images), longest, edge * edge * channels))
        coord = torch.zeros((len(images), longest, 2), dtype=torch.int64, device=patches.device)
        valid = torch.zeros((len(images), longest), dtype=torch.bool, device=patches.device)
        for row, (image, (rows, columns)) in enumerate(zip(images, grids, strict=True)):
            count = rows * columns
            # [C, rows, P, columns, P] becomes [rows, columns, P, P, C]: patch by patch, with channels last.
            cut = image.reshape(channels, rows, edge, columns, edge).permute(1, 3, 2, 4, 0)
            patches[row, :count] = cut.reshape(count, -1)
            at = (torch.arange(length, device=patches.device) for length in (rows, columns))
            coord[row, :count] = torch.cartesian_prod(*at).reshape(count, 2)
            valid[row, :count] = True
        found = {"patches": patches, "patch_coord": coord, "patch_valid": valid}
        return found, *(default_collate([part[k] for part in parts]) for k in range(1, len(parts[0])))
