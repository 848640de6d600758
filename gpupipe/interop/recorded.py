"""Datasets of user code that open an image and give it to a transform that they hold: the file is taken before it is
decoded, and the transform is done by the engine."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from .. import transforms as ours
from ..codecs.decode import Media, decode
from ..codecs.unread import encoded_of, unread
from ..codecs.unread_array import UnreadArray, by_opencv, unread_arrays
from ..datasets.sample_form import Rest, SampleForm, View, leaves, mapped, rebuilt
from ..datasets.user_code import FromTorch
from ..errors import DatasetError, GpupipeError
from ..reading.global_rng import lent, seed_all
from .classes import shown
from .recording import Looked, StandIn, marked
from .same_names import Refused
from .transforms import translated

__all__ = ["Recorded", "pipeline_of", "record"]

_TRIED = 8
"""Samples that are looked at before a dataset is believed."""


class Recorded(FromTorch):
    """A dataset of user code, of which each sample is one image, given to transforms of its own.

    Args:
        ds: the script's dataset.
        marked: its copy with marks in the place of transforms.
        seen: a sample of it.
        arrays: whether its code gets arrays of images that are not read.
    """

    def __init__(self, ds: Any, marked: Any, seen: _Seen, arrays: bool, pipeline: Any, form: SampleForm | None):
        super().__init__(ds, "pil", pipeline, exif=seen.upright)
        self.marked = marked
        self.form = form
        self._mode, self._arrays = seen.mode, arrays
        self._example = _paths(seen.sample)

    def __repr__(self) -> str:
        return f"{type(self.ds).__name__}({len(self):,} samples, opened by itself)"

    def fetch(self, index: int) -> tuple[Media, Any]:
        name = f"{type(self.ds).__name__}[{index}]"
        advice = 'engine="torch" runs the dataset as it is'
        with unread():
            sample = _sample(self.marked, index, self._arrays)
            if _paths(sample) != self._example:
                raise DatasetError(
                    f"{name} gives its images to other transforms than the samples before, or returns another form: "
                    f"{_shown(sample)}; {advice}"
                )
            image, *others = (part.image for part in _images(sample))
            if any(other is not image for other in others):
                raise DatasetError(f"{name} has several images, and the samples before had one; {advice}")
            media, mode, upright = _media(image)
            if upright != self.exif and not isinstance(media, np.ndarray):
                media = _pixels(media, upright)  # opened in another way than the samples before
        if mode != self._mode:
            raise DatasetError(
                f"{name} is an image of mode {mode}, and the samples before had {self._mode}: convert all of them, or "
                f"{advice}"
            )
        return self._read(media) if isinstance(media, str) else media, self._target(sample)

    def open(self, media: Media, *, strict: bool = False) -> npt.NDArray[np.uint8] | Image.Image:
        opencv = self.exif and isinstance(media, bytes)  # whoever else opens images here turns none
        return by_opencv(media) if opencv else super().open(media, strict=strict)  # type: ignore[arg-type]

    def _target(self, sample: Any) -> Any:
        """All of a sample but its images, in whose places are zeros; if the rest is one thing only that."""
        if self.form is not None:
            return _placed(lambda part, _: 0 if isinstance(part, StandIn) else part, sample)
        return None if isinstance(sample, StandIn) else sample[1]


def record(ds: Any) -> Recorded:
    """The dataset in gpupipe's form.

    Raises :class:`Refused` if it is not what :class:`Recorded` says.
    """
    if not hasattr(ds, "__getitem__") or not hasattr(ds, "__len__"):
        raise Refused("a stream, which has no samples to be ordered")
    try:
        count = len(ds)
    except TypeError as e:
        raise Refused(str(e)) from None
    if not count:
        raise Refused("it has no samples")
    other, found = marked(ds)
    if not found:
        raise Refused("gpupipe does not know what it reads, and it holds no transforms that could be done for it")
    indices = sorted({round(k) for k in np.linspace(0, count - 1, _TRIED)})
    tried, arrays = _samples(other, indices, arrays=True), False
    if any(isinstance(part.image, UnreadArray) for seen in tried for part in _images(seen.sample)):
        read = _samples(other, indices, arrays=False)
        arrays = all(map(_same, tried, read))
        tried = tried if arrays else read
    example = tried[0].sample
    for seen in tried[1:]:
        if _paths(seen.sample) != _paths(example):
            raise Refused("its samples do not all have the same form and the same transforms")
    images = _images(example)
    if not images:
        raise Refused("no image in its samples comes from transforms that it holds")
    for seen in tried:
        of = [part.image for part in _images(seen.sample)]
        if any(image is not of[0] for image in of):
            raise Refused("its samples are of several images each")
        _refuse_moving(seen.sample, of[0])
    modes = {seen.mode for seen in tried}
    if len(modes) > 1:
        raise Refused(f"its images have several modes: {', '.join(sorted(modes))}")
    pipeline, form = _pipeline(example, images, 1 if modes == {"L"} else 3)
    return Recorded(ds, other, tried[0], arrays, pipeline, form)


class _Seen(NamedTuple):
    """A sample, and of its images the mode, and whether who opens their files turns them upright."""

    sample: Any
    mode: str
    upright: bool
    pixels: list[npt.NDArray[np.uint8]]
    """Of images that are arrays."""


def _samples(ds: Any, indices: list[int], *, arrays: bool) -> list[_Seen]:
    """Samples of a copy, which closes what it has opened."""
    ds = copy.copy(ds)
    before = dict(getattr(ds, "__dict__", {}))
    try:
        return [_tried(ds, index, arrays) for index in indices]
    finally:
        for name, value in getattr(ds, "__dict__", {}).items():
            if value is not before.get(name) and callable(close := getattr(value, "close", None)):
                close()


def _tried(ds: Any, index: int, arrays: bool) -> _Seen:
    with lent():
        for attempt in range(2):
            seed_all(attempt)
            before = dict(getattr(ds, "__dict__", {}))
            try:
                with unread():
                    sample = _sample(ds, index, arrays)
                    media = [_media(part.image) for part in _images(sample)]
            except Looked as e:
                raise Refused(f"{e} after a transform that it holds") from None
            except (GpupipeError, Refused):
                raise
            except Exception as e:
                raise Refused(f"sample {index} failed: {type(e).__name__}: {e}") from None
            now = getattr(ds, "__dict__", {})
            changed = [name for name in now if name not in before or before[name] is not now[name]]
            # What is opened at first use, such as a file, is no state.
            if any(before.get(name) is not None for name in changed):
                raise Refused(f"reading a sample changes its {', '.join(sorted(changed))}")
    modes = sorted({mode for _, mode, _ in media})
    is_array = any(isinstance(part.image, (np.ndarray, UnreadArray)) for part in _images(sample))
    pixels = [_pixels(found, upright) for found, _, upright in media] if is_array else []
    return _Seen(sample, " and ".join(modes), any(upright for *_, upright in media), pixels)


def _sample(ds: Any, index: int, arrays: bool) -> Any:
    """``ds[index]``, with ``arrays`` of images that are not read if all of them go to transforms, and nobody looks."""
    if arrays:
        with suppress(Exception), unread_arrays() as made:
            sample = ds[index]
            used = [part.image.made for part in _images(sample) if isinstance(part.image, UnreadArray)]
            if all(one in used and not one.looked for one in made):
                return sample
    return ds[index]


def _images(sample: Any) -> list[StandIn]:
    return [part for part in leaves(sample) if isinstance(part, StandIn)]


def _same(unread: _Seen, read: _Seen) -> bool:
    """Whether a sample whose arrays were not read has the pixels and all else of the one whose arrays were."""
    if _paths(unread.sample) != _paths(read.sample) or len(unread.pixels) != len(read.pixels):
        return False
    if not all(map(np.array_equal, unread.pixels, read.pixels)):
        return False
    pairs = zip_longest(leaves(_rest(unread.sample)), leaves(_rest(read.sample)))
    return all(type(a) is type(b) and (a is b or np.array_equal(np.asarray(a), np.asarray(b))) for a, b in pairs)


def _paths(sample: Any) -> Any:
    """The form of a sample: containers, and of every image its transforms."""

    def leaf(part: Any) -> Any:
        return tuple(map(id, part.steps)) if isinstance(part, StandIn) else "rest"

    return _kept(leaf, sample)


def _kept(leaf: Any, part: Any) -> Any:
    """A tree without what has no image in it."""
    if _holds_images(part):
        parts = part.items() if isinstance(part, dict) else enumerate(part)
        return type(part).__name__, tuple((key, _kept(leaf, value)) for key, value in parts)
    return leaf(part)


def _holds_images(part: Any) -> bool:
    return isinstance(part, (dict, list, tuple)) and any(isinstance(leaf, StandIn) for leaf in leaves(part))


def _rest(sample: Any) -> list[Any]:
    """What is no image, in order."""
    if isinstance(sample, StandIn):
        return []
    if _holds_images(sample):
        parts = sample.values() if isinstance(sample, dict) else sample
        return [other for part in parts for other in _rest(part)]
    return [sample]


def _placed(change: Callable[[Any, tuple[Any, ...]], Any], part: Any, path: tuple[Any, ...] = ()) -> Any:
    """The containers that lead to images, with ``change(part, path)`` of each image and of each part without any."""
    if not _holds_images(part):
        return change(part, path)
    if isinstance(part, dict):
        return {key: _placed(change, value, (*path, key)) for key, value in part.items()}
    return rebuilt(part, [_placed(change, value, (*path, i)) for i, value in enumerate(part)])


def _media(image: Any) -> tuple[Media, str, bool]:
    """(what an engine decodes or takes as it is, mode, whether a file's image is to be turned upright)"""
    swapped = False
    if isinstance(image, UnreadArray):
        swapped, image = image.swapped, image.made.image
        if isinstance(image, bytes):
            return (_swapped(by_opencv(image)) if swapped else image), "RGB", True
    elif isinstance(image, np.ndarray):
        return image, "RGB", False
    found = None if swapped else encoded_of(image)
    if found is not None:
        encoded, mode = found
        return (os.path.abspath(encoded) if isinstance(encoded, str) else encoded), mode, False
    pixels: npt.NDArray[np.uint8] = np.asarray(image)
    if image.mode not in ("RGB", "L"):
        return pixels, image.mode, False
    return (pixels[:, :, None] if image.mode == "L" else _swapped(pixels) if swapped else pixels), image.mode, False


def _pixels(media: Media, upright: bool) -> npt.NDArray[np.uint8]:
    return by_opencv(media) if upright and isinstance(media, bytes) else decode(media)


def _swapped(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(pixels[:, :, ::-1])


def _refuse_moving(sample: Any, image: Any) -> None:
    """Raises :class:`Refused` if what stands beside the image is another one of its size: it would have to follow crops
    and flips, and must not stay behind."""
    size = (image.height, image.width) if isinstance(image, Image.Image) else tuple(image.shape[:2])
    for value in leaves(_rest(sample)):
        shape = tuple(getattr(value, "shape", ()))
        is_picture = isinstance(value, Image.Image) or type(value).__module__.startswith("torchvision.tv_tensors")
        if is_picture or (isinstance(value, (np.ndarray, torch.Tensor)) and size in (shape[:2], shape[-2:])):
            what = f"{type(value).__name__}{list(shape) if shape else ''}"
            raise Refused(f"beside the image its samples have {what}, which has to follow crops and flips of the image")


def _pipeline(example: Any, images: list[StandIn], channels: int) -> tuple[Any, SampleForm | None]:
    """The pipeline of a sample, and its form; ``None`` if it is one image, or one with one thing beside it."""
    pipeline, views = pipeline_of(images, channels)
    if len(images) == 1 and views is None and (isinstance(example, StandIn) or _is_pair(example)):
        return pipeline, None
    numbers = iter(range(len(images)))

    def place(part: Any, path: tuple[Any, ...]) -> Any:
        if not isinstance(part, StandIn):
            return Rest(path)
        return View(next(numbers)) if views is None else views

    return pipeline, SampleForm(_placed(place, example))


def pipeline_of(images: list[StandIn], channels: int) -> tuple[ours.Compose, Any]:
    """One pipeline for all that is made of an image, and how several views that one transform makes stand; ``None`` if
    none does. Raises :class:`Refused`."""
    chains = [translated(list(image.steps), channels=channels) for image in images]
    if len(chains) == 1:
        return chains[0]
    if any(views is not None for _, views in chains):
        raise Refused("several of its transforms make several views each")
    return ours.Compose([ours.MultiView([chain for chain, _ in chains])]), None


def _is_pair(example: Any) -> bool:
    """Whether it is an image and a number or an array, whose batch is ``[images, tensor]``."""
    numbers = (int, float, np.ndarray, np.generic, torch.Tensor)
    pair = type(example) in (tuple, list) and len(example) == 2
    return pair and isinstance(example[0], StandIn) and isinstance(example[1], numbers)


def _shown(sample: Any) -> str:
    return shown(mapped(lambda part: "image" if isinstance(part, StandIn) else type(part).__name__, sample))
