"""``CocoDetection``: images and objects of a COCO annotation file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Unpack

import numpy as np

from ..errors import ConfigError, DatasetError
from ..targets import Boxes, Keypoints, NumberColumn, ObjectMasks, ObjectNumbers, Target
from ..targets.segments import Segments
from ..transforms.compose import Transforms
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

    Samples are in the order of their ids, as in torchvision.

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
        try:
            names = [str(image["file_name"]) for image in images]
            self._targets = {key: _column(key, self.ids, objects) for key in target_keys}
        except (KeyError, TypeError, ValueError) as e:
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
        for target in self._targets.values():
            values = getattr(target, "values", None)
            if isinstance(values, np.ndarray):
                digest.update(values.tobytes())
        return f"{super().fingerprint}-{digest.hexdigest()}"

    def __repr__(self) -> str:
        return f"CocoDetection({self.root!r}: {len(self):,} samples, {self._objects:,} objects)"


Objects = list[list[dict[str, Any]]]


def _read(file: str) -> tuple[list[dict[str, Any]], Objects, dict[int, str]]:
    """Return images in the order of their ids, the objects of each, and names of categories by id."""
    try:
        with open(file, "rb") as data:
            found = json.load(data)
        images = sorted(found["images"], key=lambda image: int(image["id"]))
        objects: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in images}
        for annotation in found.get("annotations", ()):
            if annotation["image_id"] in objects:
                objects[annotation["image_id"]].append(annotation)
        categories = {category["id"]: category["name"] for category in found.get("categories", ())}
    except OSError as e:
        raise DatasetError(f"CocoDetection: annFile {file!r} cannot be read: {e.strerror}") from None
    except (ValueError, KeyError, TypeError) as e:
        raise DatasetError(f"CocoDetection: annFile {file!r} is not in COCO's format: {e!r}") from None
    return images, [*objects.values()], categories


def _column(key: str, ids: list[int], objects: Objects) -> Target:
    offsets = np.concatenate([[0], np.cumsum([len(them) for them in objects])]).astype(np.int64)
    every = [one for them in objects for one in them]
    if key == "image_id":
        return NumberColumn(np.array(ids, np.int64))
    if key == "boxes":
        # As in torchvision, which converts in float32.
        boxes = np.array([one["bbox"] for one in every], np.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        return Boxes(boxes, offsets)
    if key == "masks":
        return ObjectMasks(Segments.of([one["segmentation"] for one in every]), offsets)
    if key == "keypoints":
        points = [one.get("keypoints", ()) for one in every]
        return Keypoints(np.array(points, np.float32).reshape(len(every), -1, 3), offsets)
    name = {"labels": "category_id"}.get(key, key)
    return ObjectNumbers(np.array([one[name] for one in every], np.float32 if key == "area" else np.int64), offsets)
