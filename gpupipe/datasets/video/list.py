"""``VideoList``: video files listed in Python or in a CSV or TSV file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Unpack

from ..list import listed
from ..options import ClipOptions
from .files import VideoFiles


class VideoList(VideoFiles):
    """Clips of listed videos. A missing file is a bad sample, not an error.

    Args:
        videos: The paths; or the path of a CSV or TSV file with the columns path and, optionally, label. A header is
            recognized.
        labels: int[V], or V class names, which are numbered in sorted order (``classes``, ``class_to_idx``).
        root: Base of relative paths. Default: the folder of the list file, or the current folder for paths from Python.
        allow_outside: Allow paths that lead out of ``root``. Without ``root``: paths in a list file that lead out of
            its folder by ``..``; absolute ones may, and so may all paths from Python.

    Raises:
        DatasetError: a list file cannot be read, labels do not match, or a path leads out of ``root``.
        ConfigError: an argument is wrong, or two do not fit together.
        MissingDependency: PyAV is not installed (``pip install 'gpupipe-loader[video]'``).

    >>> from gpupipe import DataLoader
    >>> from gpupipe.pipelines import kinetics
    >>> videos = VideoList("train.csv", 16, stride=4, transform=kinetics.train(112))  # doctest: +SKIP
    >>> clips, target = next(iter(DataLoader(videos, batch_size=8)))  # doctest: +SKIP
    >>> clips.shape  # doctest: +SKIP
    torch.Size([8, 3, 16, 112, 112])
    """

    def __init__(
        self,
        videos: Sequence[Any] | str | os.PathLike[str],
        frames: int = 16,
        *,
        labels: Any = None,
        root: str | os.PathLike[str] | None = None,
        allow_outside: bool = False,
        **options: Unpack[ClipOptions],
    ):
        source = listed("VideoList", videos, labels, root, allow_outside)
        self.root = os.fsdecode(source.prefix)
        super().__init__(source, frames, options)

    def __repr__(self) -> str:
        return f"VideoList({len(self):,} clips of {self.video_count:,} videos below {self.root!r})"
