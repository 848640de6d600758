"""Datasets: where samples are, and what is known of them before they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .arrays import Arrays
from .base import Dataset
from .folder import ImageFolder
from .index.summary import Summary
from .list import ImageList
from .subset import Subset
from .video import VideoFolder, VideoList
from .webdataset import WebDataset

if TYPE_CHECKING:
    from .user_code import from_torch

__all__ = [
    "Arrays",
    "Dataset",
    "ImageFolder",
    "ImageList",
    "Subset",
    "Summary",
    "VideoFolder",
    "VideoList",
    "WebDataset",
    "from_torch",
]


def __getattr__(name: str) -> Any:
    if name == "from_torch":  # lazy, because this module does not need torch and that one does
        from .user_code import from_torch

        return from_torch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
