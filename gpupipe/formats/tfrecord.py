"""TFRecord files of ``tf.train.Example`` messages, read without TensorFlow.

A record is its length, a checksum of the length, the message and a checksum of the message
(https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details). A message maps names to lists of
bytes or numbers (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import IO, Any, Unpack

import numpy as np

from ..codecs.limits import MAX_BYTES
from ..sources.extras import need
from ..sources.protobuf import BYTES, FIXED32, VARINT, fields, signed, varints
from ..sources.shards import Row, Shards, claim
from ..transforms.compose import Transforms
from .base import PathsLike, Sharded, ShardOptions, Usual, names_of

_HEAD = struct.Struct("<QI")
"""Header of a message: its length, and the checksum of the length."""
_FOOT = struct.Struct("<I")
"""Footer of a message: its checksum."""
_FLOAT = struct.Struct("<f")
_OF = re.compile(r"-(\d{5}|\{[^}]*\}|\*)-of-\d{5}$")
"""End of file names without a suffix, as TensorFlow Datasets writes them."""


@dataclass(frozen=True, eq=False)
class TFRecords(Shards):
    """Rows of TFRecord files.

    Args:
        image: features that may contain the image; the first that a record has is used.
        label: features that may contain a class number or class name; the first that a record has is used.
    """

    image: tuple[str, ...]
    label: tuple[str, ...]

    owner = "TFRecord"
    labels_file = True

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        crc = need("google_crc32c", "tfrecord", "TFRecord checks checksums").value
        at, number, total = 0, 0, file.seek(0, os.SEEK_END)
        while True:
            file.seek(at)
            head = file.read(_HEAD.size)
            if not head:
                return
            if len(head) < _HEAD.size:
                raise ValueError(f"it ends within record {number}, at byte {at + len(head)}")
            length, checksum = _HEAD.unpack(head)
            if _masked(crc(head[:8])) != checksum:
                raise ValueError(
                    f"it is not a TFRecord file, or it is damaged at byte {at}, in the length of record {number}"
                )
            if at + _HEAD.size + length + _FOOT.size > total:
                raise claim(f"record {number}", at, length, total)
            if length > MAX_BYTES:
                raise ValueError(f"record {number} at byte {at} has {length} bytes, more than any tf.train.Example has")
            data = file.read(length + _FOOT.size)
            message, start = data[:length], at + _HEAD.size
            if _FOOT.unpack_from(data, length) != (_masked(crc(message)),):
                yield Row(b"%d" % number, 0, 0, problem="its checksum is wrong: it is damaged", kind="undecodable")
            else:
                yield self._row(message, start, b"%d" % number)
            at = start + length + _FOOT.size
            number += 1

    def names(self, file: IO[bytes]) -> Iterable[str]:
        (length, _) = _HEAD.unpack(file.read(_HEAD.size))
        return sorted(features_of(file.read(min(length, MAX_BYTES))))

    def _row(self, message: bytes, start: int, name: bytes) -> Row:
        try:
            found = features_of(message, self.columns)
        except ValueError as e:
            return Row(name, 0, 0, problem=f"it is not a tf.train.Example: {e}", kind="undecodable")
        image = next((found[n] for n in self.image if isinstance(found.get(n), (slice, list))), None)
        if isinstance(image, list):
            return Row(name, 0, 0, problem="it has several images, but a sample has one; name another by image=")
        if not isinstance(image, slice):
            has = ", ".join(sorted(found)) or "no features"
            return Row(name, 0, 0, problem=f"it has {has}, none of which is an image; name it by image=")
        at, length = start + image.start, image.stop - image.start
        names = [n for n in self.label if n in found]
        label = found[names[0]] if names else None
        if isinstance(label, (float, list)):
            what = f"is {label:.6g}" if isinstance(label, float) else "has several values"
            problem = (
                f"its {names[0]!r} {what}, but a label is one class number or name; name another feature by label=, "
                f"and several values by columns=[{names[0]!r}]"
            )
            return Row(name, at, length, problem=problem)
        values = [_python(message, found.get(n)) for n in self.columns]
        if isinstance(label, slice):
            return Row(name, at, length, message[label].decode(errors="replace"), values=values)
        return Row(name, at, length, label, values=values)


def _masked(crc: int) -> int:
    """Convert a checksum to the form that records store."""
    # Rotated by 15 bits, plus a constant: a plain CRC is of little use over data that contain CRCs.
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _python(message: bytes, value: slice | float | list[Any] | None) -> Any:
    """Convert bytes to text if they are valid, and several floats to f32, their type in the file."""
    if isinstance(value, list) and isinstance(value[0], float):
        return np.array(value, np.float32)
    if not isinstance(value, slice):
        return value
    try:
        return message[value].decode()
    except UnicodeDecodeError:
        return message[value]


def features_of(message: bytes, columns: Collection[str] = ()) -> dict[str, slice | int | float | list[Any]]:
    """Return the features of a ``tf.train.Example``: the position of bytes in the message, or a number.

    A feature with several values gives a list, of the first two only unless ``columns`` names it. Empty features are
    omitted. Raises :class:`ValueError` if it is not an example.
    """
    found: dict[str, slice | int | float | list[Any]] = {}
    # Example: 1 its features. They are a map, whose entries have the name in field 1 and the feature in field 2.
    for features in fields(message):
        if (features.number, features.wire) != (1, BYTES):
            continue
        for entry in fields(message, features.start, features.end):
            if (entry.number, entry.wire) != (1, BYTES):
                continue
            # Either field may come first.
            parts = {part.number: part for part in fields(message, entry.start, entry.end) if part.wire == BYTES}
            name = message[parts[1].start : parts[1].end].decode() if 1 in parts else ""
            if 2 in parts:
                limit = None if name in columns else 2
                some = list(islice(_values(message, parts[2].start, parts[2].end), limit))
                if some:
                    found[name] = some if len(some) > 1 else some[0]
    return found


def _values(message: bytes, start: int, end: int) -> Iterator[slice | int | float]:
    """Yield the values of a ``tf.train.Feature``."""
    for kind in fields(message, start, end):
        # Feature: 1 bytes, 2 floats, 3 integers, each a message with its values in field 1.
        if kind.wire != BYTES or kind.number not in (1, 2, 3):
            continue
        for value in fields(message, kind.start, kind.end):
            if value.number != 1:
                continue
            if kind.number == 1 and value.wire == BYTES:
                yield slice(value.start, value.end)
            elif kind.number == 2 and value.wire in (FIXED32, BYTES):
                # One float, or several that are packed.
                whole = (value.end - value.start) // _FLOAT.size
                yield from (_FLOAT.unpack_from(message, value.start + 4 * i)[0] for i in range(whole))
            elif kind.number == 3 and value.wire == VARINT:
                yield signed(value.value)
            elif kind.number == 3 and value.wire == BYTES:
                yield from map(signed, varints(message, value.start, value.end))


class TFRecord(Sharded):
    """Images in TFRecord files of ``tf.train.Example`` messages. TensorFlow is not needed; ``google-crc32c``, which
    checks the records while the index is built, comes with ``gpupipe-loader[tfrecord]``.

    Records are named by their number: ``train-00001:17``.

    Not supported: compressed files; damaged lengths. A damaged record is a bad
    sample, and so is a record whose label has several values or is a fraction.

    Args:
        image: The feature with the encoded image, or several separated by ``;``: the first that a record has is used.
        label: The feature with the class number or class name, or several separated by ``;``. Numbers are not changed:
            those of ImageNet's usual files begin at 1.
        columns: Further features: numbers, texts, and equally many numbers in each record, such as embeddings (f32 or
            i64). A record without a value is a bad sample.

    Raises:
        DatasetError: A file is missing, compressed, not a TFRecord file, or cut.
        MissingDependency: ``google-crc32c`` is not installed.

    >>> TFRecord("imagenet/train-{00000..01023}-of-01024")  # doctest: +SKIP
    TFRecord(1,281,167 samples in 1,024 files below '/data/imagenet/')
    """

    suffixes = (".tfrecord", ".tfrecords", ".tfrec")

    def __init__(
        self,
        paths: PathsLike,
        transform: Transforms = None,
        *,
        image: str = Usual("image/encoded;image_raw;image;jpeg;encoded"),
        label: str = Usual("image/class/label;label;image/label;class"),
        **options: Unpack[ShardOptions],
    ):
        names = [names_of(text, "TFRecord", name) for text, name in ((image, "image"), (label, "label"))]
        rows = partial(TFRecords, image=names[0], label=names[1])
        super().__init__(rows, self.files(paths, options), transform, options, image, label)

    @classmethod
    def is_at(cls, path: str, entries: Sequence[str]) -> bool:
        return _OF.search(path) is not None
