"""Datasets of user code that open an image and give it to a transform that they hold: the file is taken before it is
decoded, and the transform is done by the engine."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from .. import transforms as ours
from ..codecs.decode import Media
from ..codecs.unread import encoded_of, unread
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
        example: a sample of it.
    """

    def __init__(self, ds: Any, marked: Any, example: Any, mode: str, pipeline: Any, form: SampleForm | None):
        super().__init__(ds, "pil", pipeline)
        self.marked = marked
        self.form = form
        self._mode = mode
        self._example = _paths(example)

    def __repr__(self) -> str:
        return f"{type(self.ds).__name__}({len(self):,} samples, opened by itself)"

    def fetch(self, index: int) -> tuple[Media, Any]:
        name = f"{type(self.ds).__name__}[{index}]"
        advice = 'engine="torch" runs the dataset as it is'
        with unread():
            sample = self.marked[index]
            if _paths(sample) != self._example:
                raise DatasetError(
                    f"{name} gives its images to other transforms than the samples before, or returns another form: "
                    f"{_shown(sample)}; {advice}"
                )
            image, *others = (part.image for part in leaves(sample) if isinstance(part, StandIn))
            if any(other is not image for other in others):
                raise DatasetError(f"{name} has several images, and the samples before had one; {advice}")
            media, mode = _media(image)
        if mode != self._mode:
            raise DatasetError(
                f"{name} is an image of mode {mode}, and the samples before had {self._mode}: convert all of them, or "
                f"{advice}"
            )
        return self._read(media) if isinstance(media, str) else media, self._target(sample)

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
    tried = _samples(other, sorted({round(k) for k in np.linspace(0, count - 1, _TRIED)}))
    samples, modes = [sample for sample, _ in tried], set().union(*(modes for _, modes in tried))
    example = samples[0]
    for sample in samples[1:]:
        if _paths(sample) != _paths(example):
            raise Refused("its samples do not all have the same form and the same transforms")
    images = [part for part in leaves(example) if isinstance(part, StandIn)]
    if not images:
        raise Refused("no image in its samples comes from transforms that it holds")
    for sample in samples:
        of = [part.image for part in leaves(sample) if isinstance(part, StandIn)]
        if any(image is not of[0] for image in of):
            raise Refused("its samples are of several images each")
        _refuse_moving(sample, of[0])
    if len(modes) > 1:
        raise Refused(f"its images have several modes: {', '.join(sorted(modes))}")
    (mode,) = modes
    pipeline, form = _pipeline(example, images, 1 if mode == "L" else 3)
    return Recorded(ds, other, example, mode, pipeline, form)


def _samples(ds: Any, indices: list[int]) -> list[tuple[Any, set[str]]]:
    """Samples of a copy, which closes what it has opened."""
    ds = copy.copy(ds)
    before = dict(getattr(ds, "__dict__", {}))
    try:
        return [_tried(ds, index) for index in indices]
    finally:
        for name, value in getattr(ds, "__dict__", {}).items():
            if value is not before.get(name) and callable(close := getattr(value, "close", None)):
                close()


def _tried(ds: Any, index: int) -> tuple[Any, set[str]]:
    """A sample, and the modes of its images."""
    with lent():
        for attempt in range(2):
            seed_all(attempt)
            before = dict(getattr(ds, "__dict__", {}))
            try:
                with unread():
                    sample = ds[index]
                    media = [_media(part.image) for part in leaves(sample) if isinstance(part, StandIn)]
            except Looked as e:
                raise Refused(f"{e} after a transform that it holds") from None
            except GpupipeError:
                raise
            except Exception as e:
                raise Refused(f"sample {index} failed: {type(e).__name__}: {e}") from None
            now = getattr(ds, "__dict__", {})
            changed = [name for name in now if name not in before or before[name] is not now[name]]
            # What is opened at first use, such as a file, is no state.
            if any(before.get(name) is not None for name in changed):
                raise Refused(f"reading a sample changes its {', '.join(sorted(changed))}")
    return sample, {mode for _, mode in media}


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


def _media(image: Any) -> tuple[Media, str]:
    """(what an engine decodes or takes as it is, mode)"""
    found = encoded_of(image)
    if found is not None:
        encoded, mode = found
        return (os.path.abspath(encoded) if isinstance(encoded, str) else encoded), mode
    if image.mode not in ("RGB", "L"):
        return np.asarray(image), image.mode
    pixels: npt.NDArray[np.uint8] = np.asarray(image)
    return (pixels[:, :, None] if image.mode == "L" else pixels), image.mode


def _refuse_moving(sample: Any, image: Any) -> None:
    """Raises :class:`Refused` if what stands beside the image is another one of its size: it would have to follow crops
    and flips, and must not stay behind."""
    size = image.height, image.width
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
