"""Datasets of images from a folder, files or a URL on the command line."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from pathlib import Path

from ..datasets.images import EncodedImages
from ..errors import ConfigError, DatasetError
from ..formats.registry import format_of, formats, others_files
from ..sources.names import is_url
from .inputs import open_dataset

FOLDER = "imagefolder"
KINDS = (FOLDER, *formats())
"""Names of the kinds of datasets."""


def open_images(
    given: str,
    *,
    kind: str | None = None,
    image: str | None = None,
    label: str | None = None,
    columns: Sequence[str] = (),
    exif: bool = False,
) -> EncodedImages:
    """Open the dataset of a folder, a file, a pattern such as ``"train-{000..127}.tar"``, or a URL.

    Args:
        kind: a name from :data:`KINDS`; by default the names of the files decide.
        image, label: column, feature or extension of images and labels, if the format has such.
        columns: names of further columns.
        exif: report sizes after EXIF orientation.

    Raises:
        ConfigError: ``kind`` is unknown, or has no columns.
        DatasetError: there are no images, or the arguments are ambiguous.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"unknown kind of source {kind!r}; choose from {', '.join(KINDS)}")
    name = kind or kind_of(given)
    format = formats().get(name)
    named = {"image": image, "label": label, "columns": columns}
    options = {key: value for key, value in named.items() if value}
    refused = [key for key in options if format is None or key not in inspect.signature(format).parameters]
    if refused:
        raise ConfigError(f"--{refused[0]}: {name} has no columns to choose from; remove it")
    if format is None:
        return open_dataset(Path(given), exif=exif)
    return format.from_path(given if is_url(given) else os.path.expanduser(given), exif=exif, **options)


def kind_of(given: str) -> str:
    """Return the name from :data:`KINDS` that the names of files imply. Raises :class:`DatasetError` if none does."""
    found = format_of(given)
    if found is None and (why := others_files(given)):
        raise DatasetError(why)
    if found is None and is_url(given):
        raise DatasetError(
            f"{given}: cannot infer its kind from its name; add --source with one of {', '.join(KINDS)}, or name the "
            "files, as in s3://bucket/train-{000..127}.tar"
        )
    return FOLDER if found is None else found.__name__.lower()
