"""``VideoFolder``: one folder per class."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Unpack

from ...sources.folder import Tree
from ..folder import checked_extensions, refuse_empty
from ..options import ClipOptions
from .files import VideoFiles

if TYPE_CHECKING:
    from torch import Tensor  # noqa: F401

VIDEO_EXTENSIONS = (
    *(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".m2ts", ".mts"),
    *(".flv", ".wmv", ".3gp", ".ogv"),
)


class VideoFolder(VideoFiles[tuple[Any, int], "tuple[Tensor, Tensor]"]):
    """Clips of videos in one folder per class: ``root/run/1.mp4``, ``root/jump/deeper/2.mkv``.

    Classes, files and their order are those of :class:`~gpupipe.datasets.ImageFolder`. Links to folders are followed.

    Args:
        root: The folder that contains the class folders.
        extensions: Suffixes of video files, in any case.
        allow_empty: Whether a class may have no file.

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
        extensions: str | tuple[str, ...] = VIDEO_EXTENSIONS,
        allow_empty: bool = False,
        **options: Unpack[ClipOptions],
    ):
        folder = os.path.expanduser(root)
        self.root = folder if isinstance(root, str) else root
        self._folder = folder
        self.extensions = checked_extensions(extensions, "VideoFolder")
        self.allow_empty = allow_empty
        super().__init__(Tree(os.path.abspath(folder), self.extensions, "VideoFolder"), frames, options)

    def _open(self, *, rebuild: bool) -> None:
        super()._open(rebuild=rebuild)
        if not self.allow_empty:
            refuse_empty(self._index.empty_classes, self._folder, self.extensions, "VideoFolder")

    def __repr__(self) -> str:
        return (
            f"VideoFolder({self._folder!r}: {len(self):,} clips of {self.video_count:,} videos, "
            f"{len(self.classes):,} classes)"
        )
