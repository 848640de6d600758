"""The few operations that every transform resolves into.

A transform is what the user names (``RandomResizedCrop``); an op is what an engine executes (``Crop``, then
``Resize``), with one
number per sample. Engines implement ops, not transforms: a new transform that is made of known ops runs
everywhere at once, and a new op needs exactly one DALI lowering and one torch form.

An op has two kinds of fields: arrays with one row per sample, which change with every plan, and plain values, which
belong to
the pipeline. :meth:`Op.spec` is the second kind alone; it is what a DALI graph is built from.
"""

from __future__ import annotations

from collections.abc import Sequence

from .base import Dtype, Kind, Normalize, Op, ToDtype
from .color import (
    JPEG,
    AutoContrast,
    Blur,
    BoxBlur,
    Brightness,
    Contrast,
    Equalize,
    Erase,
    Gray,
    Hue,
    Invert,
    Noise,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
    SolarizeAdd,
)
from .geometry import Crop, Elastic, Flip, Perspective, Resize, Warp
from .structure import Call, CutMix, Mix, MixUp, Views

__all__ = [
    "JPEG",
    "OPS",
    "TARGET_OPS",
    "AutoContrast",
    "Blur",
    "BoxBlur",
    "Brightness",
    "Call",
    "Contrast",
    "Crop",
    "CutMix",
    "Dtype",
    "Elastic",
    "Equalize",
    "Erase",
    "Flip",
    "Gray",
    "Hue",
    "Invert",
    "Kind",
    "Mix",
    "MixUp",
    "Noise",
    "Normalize",
    "Op",
    "Perspective",
    "Posterize",
    "Resize",
    "Saturation",
    "Sharpness",
    "Solarize",
    "SolarizeAdd",
    "ToDtype",
    "Views",
    "Warp",
    "by_view",
    "split_off_mixing",
]

OPS: tuple[type[Op], ...] = (
    Crop, Resize, Flip, Gray, ToDtype, Normalize,
    Brightness, Contrast, Saturation, Hue, Sharpness, Posterize, Solarize, Invert, AutoContrast, Equalize, JPEG,
    SolarizeAdd, Blur, BoxBlur, Noise, Warp, Perspective, Elastic, Erase, Mix, Call, Views, MixUp, CutMix,
)  # fmt: skip
"""Every op there is. A test fails if an engine lacks one of them."""

TARGET_OPS: tuple[type[Op], ...] = (MixUp, CutMix)
"""Those that change targets too. They need the whole batch, and come last."""


def split_off_mixing(ops: Sequence[Op]) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """(ops on samples, ops on whole batches with their targets)"""
    cut = next((i for i, op in enumerate(ops) if isinstance(op, TARGET_OPS)), len(ops))
    return tuple(ops[:cut]), tuple(ops[cut:])


def by_view(ops: Sequence[Op]) -> tuple[tuple[Op, ...], ...]:
    """The ops on samples that each view goes through, from the decoded image on; one sequence where there are no
    views."""
    ops = split_off_mixing(ops)[0]
    if ops and isinstance(ops[-1], Views):
        return tuple((*ops[:-1], *branch) for branch in ops[-1].branches)
    return (ops,)
