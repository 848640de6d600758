"""``HuggingFace``: the images of a ``datasets.Dataset``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...codecs.limits import MAX_BYTES, Limits
from ...errors import DatasetError
from ...sources.columns import checked_columns
from ...sources.huggingface import HuggingFaceRows
from ..images import EncodedImages

__all__ = ["HuggingFace"]


class HuggingFace(EncodedImages):
    """The images of a Hugging Face ``datasets.Dataset``: their bytes are read from its Arrow files, or from the image
    files that it names, without that package. Rows that ``select``, ``shuffle``, ``filter`` or ``train_test_split``
    chose are these, in that order. Its own format and transform (``with_transform``) are not run.

    Args:
        dataset: a map-style ``datasets.Dataset``, such as ``load_dataset(..., split="train")``, that lies in files.
        transform: a gpupipe ``Compose``, or transforms for one.
        image: the column of images. ``None``: the only one of type ``Image``.
        label: the column of class numbers or names. ``None``: the only ``ClassLabel``, or ``label`` if there is one.
        columns: further columns: numbers, truth values and texts that come with each sample beside image and label. A
            sample that lacks one is a bad sample.
        return_dict: samples, and so batches, are dictionaries with ``"image"``, ``"label"`` and the columns by name,
            and not tuples of these.
        exif: turn images upright by their EXIF orientation. ``None``: as ``datasets`` does, which turns those that it
            decodes.
        max_pixels: larger images are bad samples of kind ``bomb``, and never decoded. ``None``: what Pillow allows,
            which is twice ``PIL.Image.MAX_IMAGE_PIXELS``.
        max_bytes: images that have more are bad samples of kind ``bomb``, and never read. The default of 2 GiB is more
            than so many pixels take without any compression.
        strict: JPEG files whose data libjpeg repairs with a warning, which Pillow delivers as if they were good, are
            bad samples of kind ``damaged``. All of each file is read and decoded once, when the index is built. See
            :mod:`gpupipe.codecs.damage` for what is found and what cannot be. Needs simplejpeg.

    Raises:
        DatasetError: an iterable dataset, one that lies in memory, several splits, or a column that cannot be used.

    >>> HuggingFace(datasets.load_dataset("imagenet-1k", split="train"))  # doctest: +SKIP
    HuggingFace(1,281,167 samples of 'image' with 'label', 1,000 classes)
    """

    def __init__(
        self,
        dataset: Any,
        transform: Any = None,
        *,
        image: str | None = None,
        label: str | None = None,
        columns: Sequence[str] = (),
        return_dict: bool = False,
        exif: bool | None = None,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
    ):
        features = _features(dataset)
        column = _only(features, "Image", image, "image")
        _refuse_lists(features, image)
        if column is None:
            raise DatasetError(
                f"HuggingFace: name the column of images by image=; the columns are {', '.join(map(str, features))}"
            )
        target = _only(features, "ClassLabel", label, "label")
        if target is None and label is None and "label" in features:
            target = "label"
        decoded = type(features[column]).__name__ == "Image" and features[column].decode
        if decoded and features[column].mode not in (None, "RGB"):
            raise DatasetError(
                f"HuggingFace: its column {column!r} is {features[column]}, and images are opened in RGB here; "
                f"cast_column({column!r}, datasets.Image()), and leave the mode to a transform such as Grayscale"
            )
        names = tuple(getattr(features[target], "names", None) or ()) if target is not None else ()
        self._columns = column, target
        further = checked_columns(columns, "HuggingFace", (column, target))
        for name in further:
            _only(features, "", name, "columns")
        source = HuggingFaceRows(dataset, column, target, names, further)
        upright = decoded if exif is None else exif
        super().__init__(source, transform, Limits(upright, max_pixels, max_bytes, strict), return_dict=return_dict)

    def __repr__(self) -> str:
        image, label = self._columns
        labels = "" if label is None else f" with {label!r}"
        classes = f", {len(self.classes):,} classes" if self.classes else ""
        return f"HuggingFace({len(self):,} samples of {image!r}{labels}{classes})"


def _features(dataset: Any) -> dict[str, Any]:
    """The columns of a dataset and their types. Raises :class:`DatasetError` if it is none with rows."""
    kind = type(dataset).__name__
    if kind in ("DatasetDict", "IterableDatasetDict"):
        raise DatasetError(
            f"HuggingFace: this has several splits; choose one: dataset[{next(iter(dataset), 'train')!r}]"
        )
    if kind == "IterableDataset":
        raise DatasetError(
            "HuggingFace: an IterableDataset has no rows to choose; load it without streaming=True, or give the "
            "Dataset that to_iterable_dataset() was called on"
        )
    if not all(hasattr(dataset, name) for name in ("features", "data", "cache_files", "_indices")):
        raise DatasetError(f"HuggingFace: {type(dataset).__module__}.{kind} is no datasets.Dataset")
    return dict(dataset.features)


def _refuse_lists(features: dict[str, Any], image: str | None) -> None:
    """Raises :class:`DatasetError` if the images are in lists."""
    kinds = [type(feature).__name__ for feature in features.values()]
    for name, feature in features.items():
        one = getattr(feature, "feature", feature[0] if isinstance(feature, list) else None)
        if type(one).__name__ == "Image" and (name == image or (image is None and "Image" not in kinds)):
            raise DatasetError(
                f"HuggingFace: each row of its column {name!r} is a list of images, and a sample has one image; "
                "make a row of each: "
                f"dataset.map(lambda rows: {{'image': [i for row in rows[{name!r}] for i in row]}}, batched=True, "
                "remove_columns=dataset.column_names), with further columns in the same way"
            )


def _only(features: dict[str, Any], kind: str, given: str | None, argument: str) -> str | None:
    """The column that was named, or else the only one of a type."""
    if given is None:
        found = [name for name, feature in features.items() if type(feature).__name__ == kind]
        return found[0] if len(found) == 1 else None
    if given not in features:
        raise DatasetError(f"HuggingFace: there is no column {argument}={given!r}; there are {', '.join(features)}")
    return given
