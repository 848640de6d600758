"""``TFRecord``: images in TFRecord files, read without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...codecs.limits import MAX_BYTES, Limits
from ...sources.columns import checked_columns
from ...sources.remote.options import Remote
from ...sources.tfrecord import TFRecords
from .base import PathsLike, Sharded, Usual, files_of, names_of

__all__ = ["TFRecord"]


class TFRecord(Sharded):
    """Images in TFRecord files of ``tf.train.Example`` messages. TensorFlow is not needed; ``google-crc32c``, which
    checks the records while the index is made, comes with ``gpupipe-loader[tfrecord]``.

    A record that is damaged is a bad sample; records are named by their number: ``train-00001:17``.

    Args:
        paths: the files; ``"train-{00000..01023}-of-01024"``, a pattern, a folder with files ``*.tfrecord``, a URL,
            several of these with ``::`` between them, or a list.
        transform: a gpupipe ``Compose``, or transforms for one.
        image: the feature with the encoded image; of several the first that a record has.
        label: the feature with the class number, or with the name of the class; of several the first that a record
            has. Numbers stay as they are: those of ImageNet's usual files begin at 1.
        columns: further features: numbers, truth values and texts that come with each sample beside image and label. A
            sample that lacks one is a bad sample.
        return_dict: samples, and so batches, are dictionaries with ``"image"``, ``"label"`` and the columns by name,
            and not tuples of these.
        exif: turn images upright by their EXIF orientation.
        max_pixels: larger images are bad samples of kind ``bomb``, and never decoded. ``None``: what Pillow allows,
            which is twice ``PIL.Image.MAX_IMAGE_PIXELS``.
        max_bytes: images that have more are bad samples of kind ``bomb``, and never read. The default of 2 GiB is more
            than so many pixels take without any compression.
        strict: JPEG files whose data libjpeg repairs with a warning, which Pillow delivers as if they were good, are
            bad samples of kind ``damaged``. All of each file is read and decoded once, when the index is built. See
            :mod:`gpupipe.codecs.damage` for what is found and what cannot be. Needs simplejpeg.
        remote: how URLs are read; see :class:`~gpupipe.datasets.Remote`.

    Raises:
        DatasetError: a file that is missing, compressed, no TFRecord file, or cut.
        MissingDependency: ``google-crc32c`` is not installed.

    >>> TFRecord("imagenet/train-{00000..01023}-of-01024")  # doctest: +SKIP
    TFRecord(1,281,167 samples in 1,024 files below '/data/imagenet/')
    """

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        image: str = Usual("image/encoded;image_raw;image;jpeg;encoded"),
        label: str = Usual("image/class/label;label;image/label;class"),
        columns: Sequence[str] = (),
        return_dict: bool = False,
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        files, storage = files_of(paths, (".tfrecord", ".tfrecords", ".tfrec"), "TFRecord", remote)
        names = names_of(image, "TFRecord", "image"), names_of(label, "TFRecord", "label")
        source = TFRecords(files, *names, storage=storage, columns=checked_columns(columns, "TFRecord"))
        super().__init__(
            source,
            transform,
            Limits(exif, max_pixels, max_bytes, strict),
            return_dict=return_dict,
            image=image,
            label=label,
        )
