"""``SegmentationFolder``: images with one mask file each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from ..errors import DatasetError
from ..targets import Masks, Target
from ..transforms.compose import Transforms
from .folder import IMG_EXTENSIONS, checked_extensions
from .images import EncodedImages
from .list import listed
from .options import ImageOptions, limits_of

_OWNER = "SegmentationFolder"
_MASK_EXTENSIONS = (".png", ".bmp", ".tif", ".tiff", ".pgm", ".gif")


class SegmentationFolder(EncodedImages):
    """Images in one folder, with masks of the same names in another: ``images/a.jpg`` and ``masks/a.png``.

    Folders may be nested alike. Samples are in sorted order of the images' names, or in the order of ``split``. A
    sample is a tuple (image, mask), a batch [images, masks] with masks [B, H, W] that moved with the images; see
    :class:`gpupipe.targets.Masks` for what files may hold.

    Args:
        images: The folder of the images.
        masks: The folder of the masks.
        split: A text file with the names of the samples to use, one per line, without suffixes. Default: every image.
        image_suffix: The end of the images' names that masks lack, such as ``"_leftImg8bit"`` in Cityscapes.
        mask_suffix: The end of the masks' names that images lack, such as ``"_gtFine_labelIds"``.
        nearest: The pixel of a mask that resizes and warps read: ``"floor"`` as ``tv_tensors.Mask``, or ``"center"`` as
            PIL images.
        fill: Id of pixels outside the image.
        dtype: Data type to convert masks to, such as ``"int64"``. Default: that of the files.
        rgb_ids: Whether colors of the masks encode ids: ``red + 256 * green + 65536 * blue``.
        return_dict: Return samples, and therefore batches, as dictionaries with ``"image"`` and ``"mask"``.

    Raises:
        DatasetError: A folder or ``split`` is missing, there are no images, an image has no mask, or several files have
            one name.

    >>> SegmentationFolder("images", "masks", fill=255)  # doctest: +SKIP
    SegmentationFolder('images': 2,913 samples)
    """

    def __init__(
        self,
        images: str | os.PathLike[str],
        masks: str | os.PathLike[str],
        transform: Transforms = None,
        *,
        split: str | os.PathLike[str] | None = None,
        image_suffix: str = "",
        mask_suffix: str = "",
        nearest: Literal["floor", "center"] = "floor",
        fill: float = 0,
        dtype: Any = None,
        rgb_ids: bool = False,
        return_dict: bool = False,
        **options: Unpack[ImageOptions],
    ):
        self.images_folder, self.masks_folder = (
            os.path.abspath(os.path.expanduser(folder)) for folder in (images, masks)
        )
        pictures = _by_name(self.images_folder, IMG_EXTENSIONS, image_suffix)
        found = _by_name(self.masks_folder, _MASK_EXTENSIONS, mask_suffix)
        names = sorted(pictures) if split is None else _read(os.path.expanduser(split))
        if not names:
            raise DatasetError(
                f"{_OWNER}: {self.images_folder!r} has no images; suffixes are {', '.join(IMG_EXTENSIONS)}"
            )
        for kind, folder, files in (("image", self.images_folder, pictures), ("mask", self.masks_folder, found)):
            lost = [name for name in names if name not in files]
            if lost:
                raise DatasetError(
                    f"{_OWNER}: {len(lost)} of {len(names)} samples have no {kind} in {folder!r}, such as {lost[0]!r}; "
                    f"add the files, list the samples to use in a text file, with split=, or say how names end, with "
                    f"mask_suffix= and image_suffix="
                )
        # Relative names, so that a state also fits a copy of the folders in another place.
        relative = "\n".join(found[name] for name in names).encode(errors="surrogatepass")
        self._names = hashlib.blake2b(relative, digest_size=4).hexdigest()
        paths = [os.path.join(self.masks_folder, found[name]) for name in names]
        self._masks = Masks(paths, nearest=nearest, fill=fill, dtype=dtype, rgb_ids=rgb_ids)
        source = listed(_OWNER, [pictures[name] for name in names], None, self.images_folder, False)
        super().__init__(source, transform, limits_of(options), return_dict=return_dict)

    @property
    def columns(self) -> Mapping[str, Target]:
        return {**super().columns, "mask": self._masks}

    @property
    def fingerprint(self) -> str:
        return f"{super().fingerprint}-{self._names}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.images_folder!r}: {len(self):,} samples)"


def _by_name(folder: str, extensions: Sequence[str], suffix: str) -> dict[str, str]:
    """Return the files below a folder, as paths relative to it, by their names without suffixes."""
    if not os.path.isdir(folder):
        raise DatasetError(f"{_OWNER}: {folder!r} is not a folder")
    endings = checked_extensions(tuple(extensions), _OWNER)
    found: dict[str, str] = {}
    for where, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        for file in sorted(files):
            stem, extension = os.path.splitext(file)
            if extension.lower() not in endings or not stem.endswith(suffix):
                continue
            path = os.path.relpath(os.path.join(where, file), folder)
            name = os.path.join(os.path.dirname(path), stem[: len(stem) - len(suffix)])
            if name in found:
                raise DatasetError(f"{_OWNER}: {found[name]!r} and {path!r} in {folder!r} have one name; remove one")
            found[name] = path
    return found


def _read(file: str) -> list[str]:
    try:
        with open(file, encoding="utf-8") as lines:
            return [os.path.normpath(line.strip()) for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError) as e:
        raise DatasetError(f"{_OWNER}: split={file!r} cannot be read: {e}") from None
