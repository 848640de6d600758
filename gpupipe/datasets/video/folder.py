"""``VideoFolder``: one folder per class."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any

from ...media import Layout
from ...sources.folder import Tree
from ..folder import checked_extensions, refuse_empty
from .files import VideoFiles
from .sampling import Clips, Padding, Sampling

VIDEO_EXTENSIONS = (
    *(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".m2ts", ".mts"),
    *(".flv", ".wmv", ".3gp", ".ogv"),
)


class VideoFolder(VideoFiles):
    """Clips of videos in one folder per class: ``root/run/1.mp4``, ``root/jump/deeper/2.mkv``.

    Classes, files and their order are those of :class:`~gpupipe.datasets.ImageFolder`. Links to folders are followed.

    Args:
        root: the folder that contains the class folders.
        frames: frames per clip (T).
        stride: distance between consecutive frames of a clip; 1 if neither this nor ``fps`` is given.
        fps: frames per second of the clips, regardless of the rate of the videos: the frames on screen at 0, 1 / fps, 2
            / fps ... seconds of the clip.
        clips: clips per video. A sample is one clip, so there are ``clips`` times as many samples as videos.
        sampling: ``random`` starts (for training); ``uniform``, evenly spread, a single clip in the center (for
            evaluation); ``segments``, a random frame of each of T parts of the video; ``segment_middles``, their middle
            frames.
        padding: treatment of videos that are too short for a clip: ``repeat`` the last frame, ``loop``, or ``skip`` the
            video.
        transform: a gpupipe ``Compose``, the transforms for one, or transforms of torchvision.
        upright: rotate frames as their file requests, like players do. torchvision and PyAV do not.
        layout: of a batch: ``CTHW`` for [B, C, T, H, W], which torchvision's video models take, or ``TCHW``.
        extensions: suffixes of video files, in any case.
        allow_empty: whether a class may have no file.

    Raises:
        DatasetError: ``root`` is missing, has no class folder, or a class has no file.
        ConfigError: an argument is wrong, or two do not fit together.
        MissingDependency: PyAV is not installed (``pip install 'gpupipe-loader[video]'``).

    >>> from gpupipe import DataLoader
    >>> from gpupipe.pipelines import kinetics
    >>> videos = VideoFolder("kinetics/train", 16, stride=4, transform=kinetics.train(112))  # doctest: +SKIP
    >>> clips, target = next(iter(DataLoader(videos, batch_size=8)))  # doctest: +SKIP
    >>> clips.shape  # doctest: +SKIP
    torch.Size([8, 3, 16, 112, 112])
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        frames: int = 16,
        *,
        stride: int | None = None,
        fps: float | Fraction | None = None,
        clips: int = 1,
        sampling: Sampling = "random",
        padding: Padding = "repeat",
        transform: Any = None,
        upright: bool = False,
        layout: Layout = "CTHW",
        extensions: str | tuple[str, ...] = VIDEO_EXTENSIONS,
        allow_empty: bool = False,
    ):
        folder = os.path.expanduser(root)
        self.root = folder if isinstance(root, str) else root
        self._folder = folder
        self.extensions = checked_extensions(extensions, "VideoFolder")
        self.allow_empty = allow_empty
        how = Clips(frames, stride, fps, clips, sampling, padding)
        super().__init__(Tree(os.path.abspath(folder), self.extensions, "VideoFolder"), transform, how, upright, layout)

    def _open(self, *, rebuild: bool) -> None:
        super()._open(rebuild=rebuild)
        if not self.allow_empty:
            refuse_empty(self._index.empty_classes, self._folder, self.extensions, "VideoFolder")

    def __repr__(self) -> str:
        return (
            f"VideoFolder({self._folder!r}: {len(self):,} clips of {self.video_count:,} videos, "
            f"{len(self.classes):,} classes)"
        )
