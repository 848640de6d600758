"""From a folder, files or a URL that a person typed to the dataset of images that is there."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

from ..datasets.images import EncodedImages
from ..errors import ConfigError, DatasetError
from ..formats.registry import format_of, formats
from ..sources.names import is_url
from .inputs import open_dataset

__all__ = ["KINDS", "kind_of", "open_images"]

FOLDER = "imagefolder"
KINDS = (FOLDER, *formats())
"""What a dataset may be, by name."""


def open_images(
    given: str, *, kind: str | None = None, image: str | None = None, label: str | None = None, exif: bool = False
) -> EncodedImages:
    """The dataset of a folder, a file, a pattern such as ``"train-{000..127}.tar"``, or a URL.

    Args:
        kind: a name of :data:`KINDS`; ``None``: what the names of the files say.
        image: the column, feature or extension of images, if the format has such; and ``label`` of labels.
        exif: sizes as turned upright.

    Raises:
        ConfigError: a kind that there is not, or one without columns.
        DatasetError: there are no images, or more must be said.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"{kind!r} is no kind of source; there are {', '.join(KINDS)}")
    name = kind or kind_of(given)
    format = formats().get(name)
    columns = {key: value for key, value in (("image", image), ("label", label)) if value is not None}
    refused = [key for key in columns if format is None or key not in inspect.signature(format).parameters]
    if refused:
        raise ConfigError(f"--{refused[0]}: {name} has no columns to choose from; leave it out")
    if format is None:
        return open_dataset(Path(given), exif=exif)
    return format.from_path(given if is_url(given) else os.path.expanduser(given), exif=exif, **columns)


def kind_of(given: str) -> str:
    """What the names of files say: a name of :data:`KINDS`. Raises :class:`DatasetError`."""
    found = format_of(given)
    if found is None and is_url(given):
        raise DatasetError(
            f"{given}: its name does not say what it is; say --source and one of {', '.join(KINDS)}, or name the "
            "files, as in s3://bucket/train-{000..127}.tar"
        )
    return FOLDER if found is None else found.__name__.lower()
