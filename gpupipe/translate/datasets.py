"""Translation of torchvision's image datasets, and of torch's ``Subset`` and ``ConcatDataset`` of them.

Only what is exactly known is translated: classes of the library itself, with its own methods, transforms and image
loader. Everything else runs as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from .. import datasets as ours
from ..datasets.dataset import Dataset
from ..errors import ConfigError, DatasetError, TranslationError
from ..transforms import Compose
from ..transforms.lambda_ import Lambda
from .classes import exact_name
from .replaced import replaced
from .transforms import translation

_FOLDERS = ("ImageFolder", "DatasetFolder")
_COLOR_ARRAYS = ("CIFAR10", "CIFAR100", "SVHN", "STL10")
_PLANES = ("SVHN", "STL10")
"""Datasets that hold u8[N, 3, H, W], and ``labels`` instead of ``targets``."""
_GRAY_ARRAYS = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "USPS")


class NotKnown(Exception):
    """A dataset is not exactly one that gpupipe knows."""


def translated(ds: Any) -> Dataset | None:
    """Return a gpupipe dataset with the same samples, labels and transforms; ``None`` if ``ds`` is not exactly known.

    Args:
        ds: torchvision's ImageFolder or DatasetFolder with its own image loader, CIFAR10, CIFAR100, SVHN, STL10,
            MNIST, FashionMNIST, KMNIST, EMNIST or USPS; torch's ``Subset`` of these or of gpupipe datasets, in any
            depth, and ``ConcatDataset`` of folders; a gpupipe dataset, which is returned as it is.
    """
    try:
        return _translated(ds)
    except (NotKnown, TranslationError, ConfigError, DatasetError, AttributeError, TypeError, ValueError):
        return None


def fingerprint(ds: Any) -> tuple[Any, ...]:
    """Return what tells whether a known dataset has changed. Cheap enough for every epoch."""
    if isinstance(ds, Dataset):
        return (type(ds), len(ds), *(part.transform for part in ds.parts))  # its samples never change
    name = exact_name(ds, "torch.utils.data")
    if name == "Subset":
        return (type(ds), _numbers(ds.indices), *fingerprint(ds.dataset))
    if name == "ConcatDataset":
        return (type(ds), *(fingerprint(part) for part in ds.datasets))
    transform = *_replaced_in(ds.transform), repr(ds.transform), repr(ds.target_transform)
    own = replaced(ds), *transform, torch.get_default_dtype()  # of what ToTensor() makes
    if type(ds).__name__ in _FOLDERS:
        files = hash(tuple(map(tuple, ds.samples))), os.path.abspath(ds.samples[0][0] if ds.samples else "")
        return (type(ds), *own, len(ds.samples), *files, ds.loader, Image.MAX_IMAGE_PIXELS)
    labels = ds.labels if type(ds).__name__ in _PLANES else ds.targets
    return (type(ds), *own, id(ds.data), len(ds.data), _numbers(labels))


def _replaced_in(transform: Any) -> Iterator[str]:
    """Iterate over what the script has replaced in a transform and its parts."""
    yield replaced(transform)
    parts = getattr(transform, "transforms", ())
    for part in parts if isinstance(parts, (list, tuple)) else ():
        yield from _replaced_in(part)


def _numbers(values: Any) -> tuple[int, int]:
    return len(values), crc32(np.asarray(values).tobytes())


def _translated(ds: Any) -> Dataset:
    if isinstance(ds, Dataset):
        return ds
    name = exact_name(ds, "torch.utils.data")
    known = exact_name(ds, "torchvision.datasets")
    if not (name or known) or replaced(ds):
        raise NotKnown
    if name == "Subset":
        indices = np.asarray(ds.indices)
        if indices.dtype.kind == "i" and (indices < 0).any():
            raise NotKnown  # only the inner dataset knows what that means
        return ours.Subset(_translated(ds.dataset), indices)
    if name == "ConcatDataset":
        return _concatenated([_translated(part) for part in ds.datasets])
    if known in _FOLDERS:
        return _folder(ds)
    if known in _COLOR_ARRAYS or known in _GRAY_ARRAYS:
        return _arrays(ds, known)
    raise NotKnown


def _pipeline(ds: Any, channels: int = 3) -> Compose:
    # torchvision's __getitem__ uses these two attributes, not `transforms`.
    if ds.target_transform is not None:
        raise NotKnown
    found = translation(ds.transform, channels=channels)
    pipeline = found.pipeline
    # torch's default_collate rejects PIL images; several views and functions of the script run as they are.
    if found.kind == "pil" or len(pipeline.outputs) > 1 or _has_functions(pipeline):
        raise NotKnown
    return pipeline


def _has_functions(transforms: Any) -> bool:
    return any(isinstance(t, Lambda) or _has_functions(getattr(t, "transforms", ())) for t in transforms)


def _arrays(ds: Any, name: str) -> Dataset:
    pixels = np.asarray(ds.data) if name in _COLOR_ARRAYS else ds.data
    labels = ds.labels if name in _PLANES else ds.targets
    if name in _PLANES:
        pixels = np.moveaxis(pixels, 1, -1)
    return ours.Arrays(pixels, _labels(labels), transform=_pipeline(ds, 3 if name in _COLOR_ARRAYS else 1))


def _labels(labels: Any) -> npt.NDArray[np.int64]:
    made = np.asarray(labels)
    if made.ndim != 1 or (len(made) and made.dtype.kind not in "iu"):
        raise NotKnown
    return made.astype(np.int64)


def _concatenated(parts: list[Dataset]) -> Dataset:
    """Join folders and lists of image files into one list of files."""
    first = parts[0]
    if not all(part.whole_files and not part.limits.exif and not part.columns for part in parts):
        raise NotKnown
    limits = {part.limits for part in parts}
    if any(part.transform != first.transform for part in parts) or len(limits) > 1:
        raise NotKnown
    if any(part.labels is None for part in parts):
        raise NotKnown
    paths = [os.fsdecode(path.tobytes()) for part in parts for path in part.encoded_paths(np.arange(len(part)))]
    labels = np.concatenate([part.labels for part in parts if part.labels is not None])
    return ours.ImageList(paths, labels, transform=first.transform, **limits.pop()._asdict())


def _folder(ds: Any) -> Dataset:
    loader = ds.loader
    if getattr(loader, "__module__", "") != "torchvision.datasets.folder" or loader.__name__ not in (
        "default_loader",
        "pil_loader",
    ):
        raise NotKnown
    pipeline, labels = _pipeline(ds), _labels([label for _, label in ds.samples])
    # `imgs` is torchvision's second name for the list, and shows whether a script has replaced the list. The folder
    # stands for the list only if it has the same files with the same labels.
    if getattr(ds, "imgs", ds.samples) is ds.samples and ds.extensions:
        try:
            found = ours.ImageFolder(ds.root, pipeline, extensions=tuple(ds.extensions), allow_empty=True)
        except ConfigError:
            pass  # the folder has changed or never was one; the list names the files
        else:
            if _same_samples(found, ds.samples):
                return found
    return ours.ImageList([os.path.abspath(path) for path, _ in ds.samples], labels, transform=pipeline)


def _same_samples(found: ours.ImageFolder, samples: Sequence[tuple[str, int]]) -> bool:
    if len(found) != len(samples) or found.labels is None:
        return False
    if not np.array_equal(found.labels, np.fromiter((label for _, label in samples), np.int64, len(samples))):
        return False
    here = os.path.join(os.getcwd(), "")
    # os.path.abspath would cost more than all the rest for a million files. Both sides start at the same root.
    return all(
        found.describe(i) == (path if path.startswith("/") else os.path.normpath(here + path))
        for i, (path, _) in enumerate(samples)
    )
