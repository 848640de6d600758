"""Datasets of clips of video files. A *sample* is one clip; each video has ``clips`` of them."""

from __future__ import annotations

from .folder import VideoFolder
from .list import VideoList

__all__ = ["VideoFolder", "VideoList"]
