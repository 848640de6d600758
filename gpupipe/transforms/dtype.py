"""Colour, data type and normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from ..errors import ConfigError
from .base import F64, Images, Transform, check_probability, dtype_name, items, resolves
from .ops import Gray, Normalize as NormalizeOp, Op, ToDtype as ToDtypeOp

__all__ = [
    "ConvertImageDtype",
    "Grayscale",
    "Normalize",
    "PILToTensor",
    "RandomGrayscale",
    "ToDtype",
    "ToImage",
    "ToTensor",
]


@dataclass(frozen=True, repr=False)
class Grayscale(Transform):
    """Luma of ITU-R BT.601, ``0.299 R + 0.587 G + 0.114 B``, in one channel or repeated in three."""

    num_output_channels: Literal[1, 3] = 1

    def __post_init__(self) -> None:
        if self.num_output_channels not in (1, 3):
            raise ConfigError(f"Grayscale: num_output_channels must be 1 or 3, not {self.num_output_channels!r}")

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        channels = self.num_output_channels
        gray = Gray(np.ones(len(u), np.bool_), channels=channels, always=True, kind=images.kind)
        return resolves((gray,), replace(images, channels=channels))


@dataclass(frozen=True, repr=False)
class RandomGrayscale(Transform):
    """Take the colour out with probability ``p``; the number of channels stays."""

    DRAWS: ClassVar[int] = 1

    p: float = 0.1

    def __post_init__(self) -> None:
        self.set(p=check_probability(self.p, "RandomGrayscale: p"))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        if images.channels == 1:
            return resolves((), images)
        return resolves((Gray(u[:, 0] < self.p, kind=images.kind),), images)


@dataclass(frozen=True, repr=False)
class ToTensor(Transform):
    """A PIL image to float32 in 0..1, channels first."""

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        if images.kind != "pil":
            raise self.refuse("the image is a tensor already at this place; remove one of the two conversions")
        return resolves((ToDtypeOp("float32"),), replace(images, kind="tensor", dtype="float32"))


@dataclass(frozen=True, repr=False)
class PILToTensor(Transform):
    """A PIL image to a uint8 tensor, channels first."""

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        if images.kind != "pil":
            raise self.refuse("the image is a tensor already at this place; remove one of the two conversions")
        return resolves((), replace(images, kind="tensor"))


@dataclass(frozen=True, repr=False)
class ToImage(Transform):
    """A PIL image to a uint8 tensor, channels first; a tensor stays as it is."""

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        return resolves((), replace(images, kind="tensor"))


@dataclass(frozen=True, repr=False)
class ToDtype(Transform):
    """Change the data type. With ``scale``, integer 0..255 becomes float 0..1; without, the values stay.

    float32, float16 and bfloat16 as a target; uint8 only for what is uint8 already (torchvision's way back from floats
    truncates, and nothing that trains needs it).
    """

    _divides: ClassVar[bool] = False

    dtype: Any
    scale: bool = False

    def __post_init__(self) -> None:
        self.set(dtype=dtype_name(self.dtype))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        if images.kind != "tensor":
            raise self.refuse("the image is still a PIL image at this place; put ToImage() or PILToTensor() before it")
        if self.dtype == images.dtype:
            return resolves((), images)
        if self.dtype == "uint8":
            raise self.refuse(f"the image is {images.dtype} here and cannot become uint8 again; leave this step out")
        op = ToDtypeOp(self.dtype, scale=self.scale, kind="pil" if self._divides else "tensor")
        return resolves((op,), replace(images, dtype=self.dtype))


@dataclass(frozen=True, repr=False)
class ConvertImageDtype(ToDtype):
    """``ToDtype(dtype, scale=True)`` as torchvision's first transforms have it: they divide by 255, the second ones
    multiply by 1/255, which rounds differently."""

    _divides: ClassVar[bool] = True

    dtype: Any = "float32"
    scale: bool = True


@dataclass(frozen=True, repr=False)
class Normalize(Transform):
    """``(x - mean) / std`` by channel, on a float tensor."""

    mean: Sequence[float]
    std: Sequence[float]
    inplace: bool = False
    """Accepted for torchvision's sake: nobody else holds the tensor, so both values mean the same."""

    def __post_init__(self) -> None:
        mean, std = (tuple(float(x) for x in items(v)) for v in (self.mean, self.std))
        if len(mean) != len(std) or len(mean) not in (1, 3):
            raise ConfigError(f"Normalize: mean and std need one or three numbers each, not {len(mean)} and {len(std)}")
        if 0.0 in std:
            raise ConfigError(f"Normalize: std {std} contains a zero, which would divide by zero")
        self.set(mean=mean, std=std)

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        if images.kind != "tensor" or images.dtype == "uint8":
            raise self.refuse(
                f"the image is {'a PIL image' if images.kind == 'pil' else 'uint8'} at this place and must be a float "
                "tensor; put ToTensor(), or ToDtype(torch.float32, scale=True), before it"
            )
        if len(self.mean) not in (1, images.channels):
            raise self.refuse(f"{len(self.mean)} numbers for an image of {images.channels} channel(s)")
        return resolves((NormalizeOp(tuple(self.mean), tuple(self.std)),), images)
