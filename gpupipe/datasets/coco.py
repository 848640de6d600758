"""``CocoDetection``: images and objects of a COCO annotation file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ..codecs.files import Undecodable
from ..errors import BadSample, ConfigError, DatasetError
from ..targets import NumberColumn, Target
from ..transforms.compose import Transforms
from .coco_objects import column_of
from .images import EncodedImages
from .list import listed
from .options import ImageOptions, limits_of

_KEYS = ("image_id", "boxes", "labels", "masks", "area", "iscrowd", "keypoints")


class CocoDetection(EncodedImages[dict[str, Any], dict[str, Any]]):
    """Images and objects of a COCO annotation file (``instances_train2017.json``).

    A sample is a dictionary with ``"image"`` and the values named by ``target_keys``. They are those that torchvision's
    ``wrap_dataset_for_transforms_v2`` makes, after they moved with the image:

    - ``image_id``: i64 scalar; a batch is i64[B].
    - ``boxes``: f32[n, 4] in ``XYXY``, also f32[0, 4] for images without objects. In a batch, this and everything below
      is a list of B tensors, as torchvision's detection models take them.
    - ``labels``: i64[n], the ``category_id`` of the objects; ``iscrowd``: i64[n]; ``area``: f32[n], as annotated.
    - ``masks``: u8[n, H, W]. Polygons and run lengths stay compressed in memory, and are drawn when a batch needs them.
      Polygons need pycocotools (``gpupipe-loader[coco]``).
    - ``keypoints``: f32[n, K, 3]: x, y and visibility.

    Samples are in the order of their ids, as in torchvision. An image with an annotation that is unusable, such as a
    box with a NaN, is a bad sample.

    Args:
        root: The folder of the images.
        annFile: The annotation file.
        target_keys: What samples have besides the image: names of the list above.

    Raises:
        DatasetError: ``annFile`` cannot be read, or is not in COCO's format.
        ConfigError: A key is unknown.

    >>> CocoDetection("train2017", "annotations/instances_train2017.json")  # doctest: +SKIP
    CocoDetection('train2017': 118,287 samples, 860,001 objects)
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        annFile: str | os.PathLike[str],
        transform: Transforms = None,
        *,
        target_keys: Sequence[str] = ("image_id", "boxes", "labels"),
        **options: Unpack[ImageOptions],
    ):
        wrong = [key for key in target_keys if key not in _KEYS]
        if wrong or isinstance(target_keys, str):
            raise ConfigError(f"CocoDetection: target_keys must be some of {', '.join(_KEYS)}, not {target_keys!r}")
        folder = os.path.abspath(os.path.expanduser(root))
        self.root = os.fspath(root)
        images, objects, self.categories = _read(os.path.expanduser(annFile))
        self.ids: list[int] = [image["id"] for image in images]
        self._targets: dict[str, Target] = {}
        self._wrong: dict[int, str] = {}
        """What is wrong with the annotations of some images, by image."""
        try:
            names = [str(image["file_name"]) for image in images]
            for key in target_keys:
                if key == "image_id":
                    self._targets[key] = NumberColumn(np.array(self.ids, np.int64))
                else:
                    self._targets[key], unusable = column_of(key, objects)
                    self._wrong = {**unusable, **self._wrong}
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise DatasetError(f"CocoDetection: {os.fspath(annFile)!r} is not in COCO's format: {e!r}") from None
        self._objects = sum(map(len, objects))
        source = listed("CocoDetection", names, None, folder, False)
        super().__init__(source, transform, limits_of(options), return_dict=True)

    @property
    def columns(self) -> Mapping[str, Target]:
        return {**super().columns, **self._targets}

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(repr((self.ids, [*self._targets])).encode(), digest_size=4)
        if self._wrong:
            digest.update(repr(sorted(self._wrong.items())).encode())
        for target in self._targets.values():
            values = getattr(target, "values", None)
            if isinstance(values, np.ndarray):
                digest.update(values.tobytes())
        return f"{super().fingerprint}-{digest.hexdigest()}"

    def bad(self, indices: npt.NDArray[np.int64]) -> list[BadSample]:
        """Return those of ``indices`` whose file or whose annotations are unusable."""
        found = {sample.index: sample for sample in super().bad(indices)}
        for i in indices.tolist() if self._wrong else ():
            if i in self._wrong and i not in found:
                found[i] = BadSample(i, self.describe(i), "annotation", self._wrong[i])
        return [found[i] for i in indices.tolist() if i in found]

    def fetch(self, index: int) -> tuple[str | bytes, int | None]:
        i = self.checked_index(index)
        if i in self._wrong:
            raise Undecodable("annotation", self._wrong[i])
        return super().fetch(i)

    def __repr__(self) -> str:
        return f"CocoDetection({self.root!r}: {len(self):,} samples, {self._objects:,} objects)"


def _read(file: str) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]], dict[int, str]]:
    """Return images in the order of their ids, the objects of each, and names of categories by id."""
    try:
        with open(file, "rb") as data:
            found = json.load(data)
        images = sorted(found["images"], key=lambda image: int(image["id"]))
        objects: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in images}
        for annotation in found.get("annotations", ()):
            if not isinstance(annotation, dict):
                raise TypeError(f"an annotation is no object but {annotation!r:.60}")
            if annotation["image_id"] in objects:
                objects[annotation["image_id"]].append(annotation)
        categories = {category["id"]: category["name"] for category in found.get("categories", ())}
    except OSError as e:
        raise DatasetError(f"CocoDetection: {e.strerror}: {file!r}; give the JSON file of annotations") from None
    except RecursionError:
        raise DatasetError(f"CocoDetection: annFile {file!r} is nested too deeply") from None
    except (ValueError, KeyError, TypeError, OverflowError) as e:
        raise DatasetError(f"CocoDetection: annFile {file!r} is not in COCO's format: {e!r}") from None
    return images, [*objects.values()], categories
