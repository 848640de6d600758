"""Datasets: locations of samples, and what is known about them before reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..sources.remote.options import Remote
from .arrays import Arrays
from .coco import CocoDetection
from .columns import Columns
from .dataset import Dataset
from .folder import ImageFolder
from .index.summary import Summary
from .list import ImageList
from .mixture import Mixture
from .segmentation import SegmentationFolder
from .subset import Subset
from .video import VideoFolder, VideoList

if TYPE_CHECKING:
    from ..formats.huggingface import HuggingFace
    from ..formats.manifest import Manifest
    from ..formats.tfrecord import TFRecord
    from ..formats.webdataset import WebDataset
    from ..formats.zip import Zip
    from .user_code import from_torch

__all__ = [
    "Arrays",
    "CocoDetection",
    "Columns",
    "Dataset",
    "HuggingFace",
    "ImageFolder",
    "ImageList",
    "Manifest",
    "Mixture",
    "Remote",
    "SegmentationFolder",
    "Subset",
    "Summary",
    "TFRecord",
    "VideoFolder",
    "VideoList",
    "WebDataset",
    "Zip",
    "from_torch",
]


def __getattr__(name: str) -> Any:
    # Lazy, because formats build on the datasets of this folder, and these do not need torch.
    if name == "from_torch":
        from .user_code import from_torch

        return from_torch
    from ..formats.registry import load

    return load(name)


def __dir__() -> list[str]:
    return __all__
