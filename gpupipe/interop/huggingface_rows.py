"""Samples of a Hugging Face dataset whose transform looks at more than its images, such as captions. Its own code reads
the rows, and an engine does the transforms of the images."""

from __future__ import annotations

import copy
import io
import os
from typing import Any

import numpy as np
from PIL import Image

from ..codecs.unread import unread
from ..global_rng import drawn, lent, seed_all
from ..reasons import failure
from ..signal_handlers import pass_on
from .chains import Chains
from .isolation import Isolated
from .same_names import UnsupportedError
from .shapes import Structure, rest_of
from .steps import SampleCall, running
from .trials import standing


class RowsOneByOne:
    """Samples of a ``datasets.Dataset`` with a transform, each read by itself. An image is decoded at its first use.

    Args:
        ds: the script's dataset.
        image: its column of images.
    """

    def __init__(self, ds: Any, image: str):
        self.transform = ds._format_kwargs["transform"]
        # Shallow copies down to the feature of the images: the script's dataset keeps its own.
        self._ds = copy.copy(ds)
        self._ds._format_kwargs = {}
        self._ds._info = copy.copy(ds._info)
        self._ds._info.features = type(ds.features)(ds.features)
        self._ds._info.features[image] = _Unloaded(ds.features[image])

    def __len__(self) -> int:
        return len(self._ds)

    def __getitem__(self, key: Any) -> Any:
        ds = copy.copy(self._ds)
        # The transform is an attribute of this object, where marks and copies are put in its place.
        ds._format_kwargs = {"transform": self.transform}
        return ds[key]

    def __getitems__(self, keys: list[int]) -> list[dict[str, Any]]:
        batch = self[keys]
        return [{name: values[i] for name, values in batch.items()} for i in range(len(keys))]


class _Unloaded:
    """A feature ``Image`` that opens images without loading them."""

    def __init__(self, feature: Any):
        self._feature, self.decode, self.pa_type = feature, feature.decode, feature.pa_type

    def decode_example(self, value: Any, token_per_repo_id: Any = None) -> Any:
        # A feature with a mode converts what it decodes.
        encoded = None if self._feature.mode else _encoded(value)
        if encoded is not None:
            image = Image.open(io.BytesIO(encoded))
            if image.getexif().get(_ORIENTATION) is None:
                return image
        return self._feature.decode_example(value, token_per_repo_id=token_per_repo_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feature, name)


def _encoded(value: Any) -> bytes | None:
    """Return the file that a value of the column contains or names; ``None`` if it is stored elsewhere."""
    if not isinstance(value, dict):
        return None
    if value["bytes"] is None and value["path"] is not None and os.path.isfile(value["path"]):
        with open(value["path"], "rb") as file:
            return file.read()
    found: bytes | None = value["bytes"]
    return found


_ORIENTATION = 0x0112
"""EXIF tag. An image with an orientation has to be turned, and therefore decoded."""
_TOGETHER = 3


def rows_one_by_one(ds: Any) -> RowsOneByOne:
    """Return the samples of a dataset whose transform may look at its columns.

    Raises :class:`UnsupportedError` if it has no such transform, or if rows that are read together, as by torch's
    loader, become different samples than rows read one by one.
    """
    images = [name for name in ds.column_names if type(ds.features[name]).__name__ == "Image"]
    if ds._format_type != "custom" or len(images) != 1 or not len(ds):
        raise UnsupportedError("it has no transform, or not exactly one column of images", "dataset-form")
    try:
        rows = RowsOneByOne(ds, images[0])
        with Isolated(rows) as isolated:
            _check_rows(*standing(isolated.made[0])[:2])
            isolated.check()
    except UnsupportedError:
        raise
    except Exception as e:
        pass_on(e)
        raise UnsupportedError(f"its transform failed: {failure(e)}", "sample-fails") from None
    return rows


def _check_rows(rows: Any, held: list[Any]) -> None:
    keys = [k % len(rows) for k in range(_TOGETHER)]
    seen = []
    for together in (True, False):
        run = SampleCall(Chains(held), 0, 0, 0)
        with lent(), unread(), running(run):
            seed_all(0)
            before = drawn()
            samples = rows.__getitems__(keys) if together else [rows[key] for key in keys]
            seen.append((samples, drawn(), drawn() != before))
    (batch, state, draws), (singles, other, _) = seen
    for one, single in zip(batch, singles, strict=True):
        alike = Structure(one).shape == Structure(single).shape and all(map(_equal, rest_of(one), rest_of(single)))
        # If the code draws, a batch must take as many numbers as its rows do one by one.
        if not alike or (draws and state != other):
            raise UnsupportedError(
                "its transform makes different samples of rows that are read together", "mixes-samples"
            )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Image.Image):
        return isinstance(other, Image.Image) and one.size == other.size and one.mode == other.mode
    return type(one) is type(other) and bool(np.array_equal(np.asarray(one), np.asarray(other)))
