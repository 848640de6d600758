"""TFRecord files of ``tf.train.Example`` messages, read without TensorFlow; :mod:`gpupipe.codecs.tfrecord` has the
format."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, ClassVar

from ..codecs.limits import MAX_BYTES, Limits
from ..codecs.tfrecord import FOOT, HEAD, Checksum, masked
from ..sources.columns import checked_columns
from ..sources.extras import need
from ..sources.protobuf import BYTES, FIXED32, VARINT, fields, signed, varints
from ..sources.remote.options import Remote
from ..sources.shards import Row, Shards, claim
from .base import PathsLike, Sharded, Usual, files_of, names_of

__all__ = ["TFRecord", "TFRecords", "features_of"]

_FLOAT = struct.Struct("<f")


@dataclass(frozen=True, eq=False)
class TFRecords(Shards):
    """Args:
    image: features that an image may have; the first one that a record has is taken.
    label: likewise, with a class number or the name of a class.
    """

    image: tuple[str, ...]
    label: tuple[str, ...]

    owner: ClassVar[str] = "TFRecord"
    labels_file: ClassVar[bool] = True

    @property
    def key(self) -> tuple[Any, ...]:
        return "tfrecord", *self.paths.key, self.image, self.label

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        checksum: Checksum = need("google_crc32c", "tfrecord", "TFRecord checks checksums").value
        if file.read(2) == b"\x1f\x8b":
            raise ValueError("it is compressed with gzip, so its records cannot be read one by one; unpack it (gunzip)")
        at, number, total = 0, 0, file.seek(0, os.SEEK_END)
        while True:
            file.seek(at)
            head = file.read(HEAD.size)
            if not head:
                return
            if len(head) < HEAD.size:
                raise ValueError(f"it ends within record {number}, at byte {at + len(head)}")
            length, crc = HEAD.unpack(head)
            if masked(checksum(head[:8])) != crc:
                raise ValueError(f"it is no TFRecord, or damaged at byte {at}, in the length of record {number}")
            if at + HEAD.size + length + FOOT.size > total:
                raise claim(f"record {number}", at, length, total)
            if length > MAX_BYTES:
                raise ValueError(
                    f"record {number} at byte {at} has {length} bytes, and no tf.train.Example has so many"
                )
            data = file.read(length + FOOT.size)
            message, start = data[:length], at + HEAD.size
            if FOOT.unpack_from(data, length) != (masked(checksum(message)),):
                yield Row(b"%d" % number, 0, 0, problem="its checksum is wrong: it is damaged", kind="undecodable")
            else:
                yield self._row(message, start, b"%d" % number)
            at = start + length + FOOT.size
            number += 1

    def names(self, file: IO[bytes]) -> Iterable[str]:
        (length, _) = HEAD.unpack(file.read(HEAD.size))
        return sorted(features_of(file.read(min(length, MAX_BYTES))))

    def _row(self, message: bytes, start: int, name: bytes) -> Row:
        try:
            found = features_of(message)
        except ValueError as e:
            return Row(name, 0, 0, problem=f"it is no tf.train.Example: {e}", kind="undecodable")
        image = next((found[n] for n in self.image if isinstance(found.get(n), (slice, list))), None)
        if isinstance(image, list):
            return Row(name, 0, 0, problem="it has several images, and a sample has one; name another by image=")
        if not isinstance(image, slice):
            has = ", ".join(sorted(found)) or "no features"
            return Row(name, 0, 0, problem=f"it has {has}, and none of these is an image; name it by image=")
        at, length = start + image.start, image.stop - image.start
        names = [n for n in self.label if n in found]
        label = found[names[0]] if names else None
        if isinstance(label, (float, list)):
            what = f"is {label:.6g}" if isinstance(label, float) else "has several values"
            problem = (
                f"its {names[0]!r} {what}, and a label is one class number or name; name another feature by label=, "
                "and give arrays by datasets.Columns(dataset, {'target': array})"
            )
            return Row(name, at, length, problem=problem)
        values = [_python(message, found.get(n)) for n in self.columns]
        if isinstance(label, slice):
            return Row(name, at, length, message[label].decode(errors="replace"), values=values)
        return Row(name, at, length, label, values=values)


def _python(message: bytes, value: slice | float | list[Any] | None) -> Any:
    """Bytes as text, if they are some."""
    if not isinstance(value, slice):
        return value
    try:
        return message[value].decode()
    except UnicodeDecodeError:
        return message[value]


def features_of(message: bytes) -> dict[str, slice | int | float | list[Any]]:
    """The features of a ``tf.train.Example``: where the bytes of one lie in the message, or its number; of one that has
    several a list of the first two. One that is empty is left out.

    Raises :class:`ValueError` if it is none.
    """
    found: dict[str, slice | int | float | list[Any]] = {}
    for features in fields(message):
        if (features.number, features.wire) != (1, BYTES):
            continue
        for entry in fields(message, features.start, features.end):
            if (entry.number, entry.wire) != (1, BYTES):
                continue
            name, value = "", None
            for part in fields(message, entry.start, entry.end):
                if part.wire == BYTES and part.number == 1:
                    name = message[part.start : part.end].decode()
                elif part.wire == BYTES and part.number == 2:
                    some = list(islice(_values(message, part.start, part.end), 2))
                    value = some if len(some) > 1 else next(iter(some), None)
            if value is not None:
                found[name] = value
    return found


def _values(message: bytes, start: int, end: int) -> Iterator[slice | int | float]:
    """What a ``tf.train.Feature`` has."""
    for kind in fields(message, start, end):
        if kind.wire != BYTES or kind.number not in (1, 2, 3):
            continue
        for value in fields(message, kind.start, kind.end):
            if value.number != 1:
                continue
            if kind.number == 1 and value.wire == BYTES:
                yield slice(value.start, value.end)
            elif kind.number == 2 and value.wire in (FIXED32, BYTES):
                whole = (value.end - value.start) // _FLOAT.size
                yield from (_FLOAT.unpack_from(message, value.start + 4 * i)[0] for i in range(whole))
            elif kind.number == 3 and value.wire == VARINT:
                yield signed(value.value)
            elif kind.number == 3 and value.wire == BYTES:
                yield from map(signed, varints(message, value.start, value.end))


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
