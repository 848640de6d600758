"""Conversions of data types and value ranges, from PIL images to normalized tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from ..errors import ConfigError
from . import fields
from .fields import Converted, frozen
from .ops import Dtype, Normalize as NormalizeOp, ToDtype as ToDtypeOp
from .ops.op import F64
from .transform import Images, Ops, Transform

if TYPE_CHECKING:
    import torch

__all__ = ["ConvertImageDtype", "Normalize", "PILToTensor", "ToDtype", "ToImage", "ToTensor"]

Name: TypeAlias = Converted["torch.dtype | Dtype", Dtype]
Channels: TypeAlias = Converted[float | Sequence[float], tuple[float, ...]]


@frozen
class ToTensor(Transform):
    """Convert a PIL image to a float32 tensor in [0, 1], channels first.

    Takes a PIL image of H x W pixels, and returns a tensor f32 ``[1 or 3, H, W]``.

    >>> ToTensor()
    ToTensor()
    """

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if images.kind != "pil":
            raise self.refuse("the image is already a tensor at this point; remove one of the two conversions")
        return (ToDtypeOp("float32"),), replace(images, kind="tensor", dtype="float32")


@frozen
class PILToTensor(Transform):
    """Convert a PIL image to a uint8 tensor, channels first.

    Takes a PIL image of H x W pixels, and returns a tensor u8 ``[1 or 3, H, W]``.

    >>> PILToTensor()
    PILToTensor()
    """

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if images.kind != "pil":
            raise self.refuse("the image is already a tensor at this point; remove one of the two conversions")
        return (), replace(images, kind="tensor")


@frozen
class ToImage(Transform):
    """Convert a PIL image to a uint8 tensor, channels first. Tensors stay as they are.

    Takes a PIL image of H x W pixels, and returns a tensor u8 ``[1 or 3, H, W]``.

    >>> ToImage()
    ToImage()
    """

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        return (), replace(images, kind="tensor")


@frozen
class ToDtype(Transform):
    """Convert the data type. With ``scale``, integers in [0, 255] become floats in [0, 1]; otherwise values stay the
    same.

    The target may be float32, float16 or bfloat16. uint8 is accepted only for images that are uint8 already:
    torchvision's conversion from floats truncates, and training does not need it.

    Takes a tensor ``[1 or 3, H, W]``, and returns one of ``dtype``.

    Args:
        dtype: a torch dtype or its name: float32, float16, bfloat16 or uint8.
        scale: divide by 255.

    >>> ToDtype("float16", scale=True)
    ToDtype(dtype='float16', scale=True)
    """

    _divides: ClassVar[bool] = False

    dtype: Name = Converted(fields.dtype)
    scale: bool = False

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if images.kind != "tensor":
            raise self.refuse("the image is still a PIL image at this point; put ToImage() or PILToTensor() before it")
        if self.dtype == images.dtype:
            return (), images
        if self.dtype == "uint8":
            raise self.refuse(f"the image is {images.dtype} here and cannot become uint8 again; remove this step")
        op = ToDtypeOp(self.dtype, scale=self.scale, kind="pil" if self._divides else "tensor")
        return (op,), replace(images, dtype=self.dtype)


@frozen
class ConvertImageDtype(ToDtype):
    """Convert like ``ToDtype(dtype, scale=True)``, rounding like torchvision's transforms v1.

    Version 1 divides by 255, version 2 multiplies by 1/255.

    Takes a tensor ``[1 or 3, H, W]``, and returns one of ``dtype``.

    Args:
        dtype: a torch dtype or its name: float32, float16, bfloat16 or uint8.
        scale: divide by 255.

    >>> ConvertImageDtype()
    ConvertImageDtype(dtype='float32', scale=True)
    """

    _divides: ClassVar[bool] = True

    dtype: Name = Converted(fields.dtype, default="float32")
    scale: bool = True


@frozen
class Normalize(Transform):
    """Compute ``(x - mean) / std`` per channel of a float tensor.

    Takes and returns a float tensor ``[1 or 3, H, W]``.

    Args:
        mean: a number, or one per channel.
        std: a number, or one per channel; not zero.
        inplace: accepted for compatibility with torchvision; it has no effect on the result.

    >>> Normalize(0.5, 0.25)
    Normalize(mean=(0.5,), std=(0.25,), inplace=False)
    """

    mean: Channels = Converted(fields.floats)
    std: Channels = Converted(fields.floats)
    inplace: bool = False

    def __post_init__(self) -> None:
        counts = len(self.mean), len(self.std)
        if counts not in ((1, 1), (3, 3)):
            raise ConfigError(
                f"Normalize: mean and std need one or three numbers each, not {counts[0]} and {counts[1]}"
            )
        if 0.0 in self.std:
            raise ConfigError(f"Normalize: std {self.std} contains a zero, which would divide by zero")

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if images.kind != "tensor" or images.dtype == "uint8":
            raise self.refuse(
                f"the image is {'a PIL image' if images.kind == 'pil' else 'uint8'} at this point and must be a float "
                "tensor; put ToTensor(), or ToDtype(torch.float32, scale=True), before it"
            )
        if len(self.mean) not in (1, images.channels):
            raise self.refuse(f"{len(self.mean)} numbers for an image of {images.channels} channel(s)")
        return (NormalizeOp(self.mean, self.std),), images
