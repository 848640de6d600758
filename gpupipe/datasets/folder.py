"""``ImageFolder``: one folder per class, as torchvision reads it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Unpack, overload

from PIL import Image

from ..errors import ConfigError, DatasetError
from ..sources.folder import Tree
from ..transforms.compose import Transforms
from .dataset import Seen
from .images import EncodedImages
from .options import ImageOptions, limits_of

if TYPE_CHECKING:
    from torch import Tensor

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's."""


def checked_extensions(extensions: Any, owner: str) -> tuple[str, ...]:
    """Return the argument ``extensions`` as a tuple. Raises :class:`ConfigError`."""
    endings = (extensions,) if isinstance(extensions, str) else tuple(extensions)
    wrong = [e for e in endings if not isinstance(e, str) or e != e.lower() or not e]
    if wrong or not endings:
        raise ConfigError(f"{owner}: extensions must be lower-case suffixes such as '.jpg', not {extensions!r}")
    return endings


def refuse_empty(empty: list[str], folder: Any, extensions: tuple[str, ...], owner: str) -> None:
    """Raise :class:`DatasetError` if classes have no file."""
    if empty:
        which = ", ".join(empty[:10]) + (f" and {len(empty) - 10} more" if len(empty) > 10 else "")
        raise DatasetError(
            f"{owner}: found no valid file for the classes {which} in {folder!r}. "
            f"Supported extensions are: {', '.join(extensions)}. "
            "Remove the folders, or pass allow_empty=True or other extensions"
        )


class ImageFolder(EncodedImages[tuple[Seen, int], "tuple[Tensor, Tensor]"]):
    """Images in one folder per class: ``root/cat/1.jpg``, ``root/dog/deeper/2.png``.

    Classes, files, their order and the attributes are those of ``torchvision.datasets.ImageFolder``. Links to folders
    are followed.

    Args:
        root: The folder that contains the class folders.
        extensions: Suffixes of image files, in any case.
        allow_empty: Whether a class may have no file.

    Raises:
        DatasetError: ``root`` is missing, has no class folder, or a class has no file.

    >>> ImageFolder("imagenet/train")  # doctest: +SKIP
    ImageFolder('/data/imagenet/train': 1,281,167 samples, 1,000 classes)
    """

    @overload
    def __init__(
        self: ImageFolder[Image.Image],
        root: str | os.PathLike[str],
        transform: None = None,
        *,
        extensions: str | tuple[str, ...] = ...,
        allow_empty: bool = ...,
        **options: Unpack[ImageOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: ImageFolder[Tensor],
        root: str | os.PathLike[str],
        transform: Transforms,
        *,
        extensions: str | tuple[str, ...] = ...,
        allow_empty: bool = ...,
        **options: Unpack[ImageOptions],
    ) -> None: ...
    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Transforms = None,
        *,
        extensions: str | tuple[str, ...] = IMG_EXTENSIONS,
        allow_empty: bool = False,
        **options: Unpack[ImageOptions],
    ):
        folder = os.path.expanduser(root)
        self.root = folder if isinstance(root, str) else root  # torchvision keeps a Path a Path
        self._folder = folder
        self.extensions = endings = checked_extensions(extensions, "ImageFolder")
        self.allow_empty = allow_empty
        super().__init__(Tree(os.path.abspath(folder), endings), transform, limits_of(options))

    def _open(self, *, rebuild: bool) -> None:
        super()._open(rebuild=rebuild)
        if not self.classes:  # a foreign index
            raise DatasetError(f"ImageFolder: the index of {self._folder!r} has no classes; call reindex()")
        if not self.allow_empty:
            refuse_empty(self._index.empty_classes, self._folder, self.extensions, "ImageFolder")

    def _shown_prefix(self) -> str:
        return os.path.join(self._folder, "")  # torchvision keeps a relative root relative

    def __repr__(self) -> str:
        return f"ImageFolder({self._folder!r}: {len(self):,} samples, {len(self.classes):,} classes)"
